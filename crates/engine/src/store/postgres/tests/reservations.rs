//! A reservation is committed before its call goes out: whoever leads next knows of it.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use sandbar_api::SandboxId;
use sandbar_gateway::{Refused, Reservation, Reserve, Settlement, llm::Usage};
use sandbar_policy::Amount;
use sqlx::Connection as _;
use tokio::time::{sleep, timeout};

use super::{Database, database};
use crate::{
    gate::Ledger,
    store::{
        NewSandbox, Store,
        suite::{Home as _, Outcome, new_sandbox},
    },
};

async fn reserve(ledger: &Ledger, new: &NewSandbox, tokens: u64) -> Result<Reservation, Refused> {
    let bound = Amount { tokens, micros: 0 };
    let call = Reserve { model: "m".into(), upstream: "u".into(), bound, price: None, budgeted: true, priced: false };
    ledger.reserve(&new.row.sandbox.session, &SandboxId::from_parts(1, [1; 10]), call).await
}

#[tokio::test]
async fn whoever_leads_next_knows_of_every_call() -> Outcome {
    let home = database!();
    let old: Arc<dyn Store> = Arc::new(home.open().await?);
    let new = new_sandbox("s");
    old.create_sandbox(new.clone()).await?;
    let session = &new.row.sandbox.session;
    let ledger = Ledger::open(old.clone()).await?;
    let _known = ledger.know(session).await?;
    let first = reserve(&ledger, &new, 100).await.map_err(|refused| format!("{refused:?}"))?;
    let held: Vec<_> = old.held_calls().await?.into_iter().map(|call| call.id).collect();
    assert_eq!(held.as_slice(), std::slice::from_ref(&first.id), "it is there when it is told");
    let usage = Some(Usage { input: 3, output: 4, ..Usage::default() });
    ledger.settle(first, Settlement { usage, status: Some(200), ..Settlement::default() });
    let second = reserve(&ledger, &new, 100).await.map_err(|refused| format!("{refused:?}"))?;

    // Whoever stops waiting makes no call, and holds nothing.
    assert!(reserve(&ledger, &new, 1000).now_or_never().is_none());
    let struck = async {
        while old.held_calls().await?.len() != 1
            || ledger.spent(session).is_none_or(|spent| spent.reserved.tokens != 100)
        {
            sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, crate::store::Error>(())
    };
    timeout(Duration::from_secs(30), struck).await??;

    let mut raw = home.raw().await?;
    sqlx::query("SELECT pg_terminate_backend(CAST(backend AS INTEGER)) FROM leadership").execute(&mut raw).await?;
    raw.close().await?;
    let next: Arc<dyn Store> = Arc::new(timeout(Duration::from_secs(30), home.open()).await??);
    let refused = reserve(&ledger, &new, 100).await;
    assert!(matches!(refused, Err(Refused::Unavailable(_))), "a server that was overtaken lets nothing out");
    assert_eq!(next.held_calls().await?.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), [second.id.as_str()]);
    let _ledger = Ledger::open(next.clone()).await?;
    assert_eq!(next.used(session).await?, (107, 0), "what was under way counts as it was held");
    Ok(())
}

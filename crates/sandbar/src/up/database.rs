//! A server on PostgreSQL, which others may share: it stands by, passing connections on to the one that leads, until it
//! leads itself; and it ends when it may not lead any more.

use sandbar_engine::store::postgres::lead::{self, Lead, Leader};
use sandbar_server::{Entrance, Tls};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Up, bind_failure, engine_failure};
use crate::{
    exit::{self, Failure},
    print::Printer,
};

/// A server that may lead, at its address.
pub(super) struct Led {
    pub(super) entrance: Entrance,
    pub(super) lead: Lead,
}

/// None when it was asked to end before it led.
pub(super) async fn lead(
    args: &Up,
    url: &str,
    tls: Option<&Tls>,
    print: Printer,
    closing: CancellationToken,
) -> Result<Option<Led>, Failure> {
    let entrance = Entrance::open(args.listen, tls).await.map_err(|error| bind_failure(&error))?;
    let address = match &args.advertise {
        Some(address) => address.clone(),
        None if entrance.address().ip().is_unspecified() => {
            let what = format!("other servers cannot be told to reach this one at {}", entrance.address());
            return Err(Failure::usage(what).hint("Give --advertise with the address of this host, as HOST:PORT."));
        }
        None => entrance.address().to_string(),
    };
    let about = Leader { server: format!("{address} (process {})", std::process::id()), address };
    let failed = |error| engine_failure(&sandbar_engine::OpenError::Store(error));
    if let Some(lead) = lead::try_lead(url, &about).await.map_err(failed)? {
        return Ok(Some(Led { entrance, lead }));
    }
    let leaders = lead::watch(url).await.map_err(failed)?;
    let named = leaders.borrow().as_ref().map_or_else(|| "another server".to_owned(), |leader| leader.server.clone());
    print.say(format!("standing by at {}; {named} leads", entrance.address()));
    let (tell, addresses) = watch::channel(leaders.borrow().as_ref().map(|leader| leader.address.clone()));
    let telling = tokio::spawn(follow(leaders, tell));
    let done = closing.child_token();
    let (waiting, standing) =
        (lead::wait_to_lead(url, &about), entrance.stand_by(env!("CARGO_PKG_VERSION"), addresses, done.clone()));
    let led = tokio::select! {
        () = closing.cancelled() => None,
        () = standing => None,
        lead = waiting => Some(lead.map_err(failed)?),
    };
    telling.abort();
    Ok(led.map(|lead| Led { entrance, lead }))
}

async fn follow(mut leaders: watch::Receiver<Option<Leader>>, tell: watch::Sender<Option<String>>) {
    while leaders.changed().await.is_ok() {
        let address = leaders.borrow_and_update().as_ref().map(|leader| leader.address.clone());
        tell.send_replace(address);
    }
}

/// At once, and without closing anything: another server may lead by now, and whatever this one still did would be wrong.
pub(super) fn end_when_lost(lead: Lead) {
    tokio::spawn(async move {
        lead.lost().await;
        tracing::error!("another server may lead now: this one ends; start it again to stand by");
        std::process::exit(i32::from(exit::FAILED));
    });
}

//! Texts that somebody else wrote: none of them stops what is written with it.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Home, Outcome, all_events, ledger::begin, new_process, new_sandbox, now};
use crate::store::{
    GateStore as _, LedgerStore as _, SandboxFilter, Store as _,
    gate::{CallEnd, FactRow, LedgerEntry},
};

pub(in crate::store) async fn a_nul_stops_nothing<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let mut new = new_sandbox("s");
    let labels = BTreeMap::from([("a\0".to_owned(), "\0b".to_owned())]);
    new.row.sandbox.labels.clone_from(&labels);
    new.row.sandbox.env.insert("A".into(), "\0".into());
    let id = new.row.sandbox.id.clone();
    store.create_sandbox(new).await?;
    let found = store.sandboxes(&SandboxFilter { labels, limit: 10, ..SandboxFilter::default() }).await?;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].sandbox.env["A"], "\0", "within JSON it is kept");
    assert_eq!(store.sandbox_named("\0").await?, None);
    let mut process = new_process(&id);
    (process.cwd, process.argv) = ("/a\0b".into(), vec!["a\0b".into()]);
    store.create_process(&process).await?;
    let kept = store.process(&id, &process.id).await?.ok_or("it is there")?;
    assert_eq!((kept.cwd.as_str(), kept.argv), ("/a\u{fffd}b", process.argv));
    // A sandbox names the model, and a vendor says what failed.
    let began = begin("llm-nul", &(id.clone(), found[0].sandbox.session.clone()), "m\0", now());
    let end = CallEnd { id: "llm-nul".into(), note: Some("\0".into()), ..CallEnd::default() };
    store.write_ledger(vec![began, LedgerEntry::End(end)]).await?;
    let data = json!({ "host": "a\0b" });
    store.append_facts(vec![FactRow { kind: "net.denied", sandbox: id, data: data.clone() }]).await?;
    let told = all_events(&store).await?.pop().ok_or("it is told")?;
    assert_eq!(told.data, data);
    Ok(())
}

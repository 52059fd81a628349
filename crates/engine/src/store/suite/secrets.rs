//! Secrets: one row a name, told without what they are.

use chrono::TimeDelta;
use sandbar_api::SecretInfo;
use serde_json::json;

use super::{Home, Outcome, all_events, now};
use crate::store::{Error, SecretStore as _, gate::SecretRow};

pub(in crate::store) fn row(name: &str, sealed: &[u8]) -> SecretRow {
    let (at, hosts) = (now(), vec!["api.github.com".into(), "10.0.0.1".into()]);
    let placement = "header:Authorization:Bearer {}".into();
    let info = SecretInfo { name: name.into(), hosts, placement, created_at: at, changed_at: at };
    SecretRow { info, sealed: sealed.to_vec() }
}

pub(in crate::store) async fn secrets_are_set_replaced_and_removed<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (other, first) = (row("B_TOKEN", b"sealed of b"), row("A_TOKEN", b"sealed of a"));
    store.set_secret(&other).await?;
    store.set_secret(&first).await?;
    let mut again = row("A_TOKEN", b"sealed anew");
    again.info.hosts.truncate(1);
    again.info.changed_at += TimeDelta::seconds(5);
    store.set_secret(&again).await?;
    drop(store);

    let store = home.open().await?;
    assert_eq!(store.secrets().await?, [again, other.clone()]);
    store.remove_secret("A_TOKEN").await?;
    let missing = store.remove_secret("A_TOKEN").await;
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    assert_eq!(store.secrets().await?, [other]);
    let told: Vec<_> = all_events(&store).await?.into_iter().map(|event| (event.kind, event.data)).collect();
    let set = |name: &str, hosts: &[&str]| {
        let data = json!({ "name": name, "hosts": hosts, "as": "header:Authorization:Bearer {}" });
        ("secret.set".to_owned(), data)
    };
    let both = ["api.github.com", "10.0.0.1"];
    let removed = ("secret.removed".to_owned(), json!({ "name": "A_TOKEN" }));
    assert_eq!(told, [set("B_TOKEN", &both), set("A_TOKEN", &both), set("A_TOKEN", &both[..1]), removed]);
    Ok(())
}

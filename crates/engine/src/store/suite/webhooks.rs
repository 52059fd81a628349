//! Webhooks: one row each, with a cursor that never goes back, and told without what they send or where exactly.

use sandbar_api::{Webhook, WebhookId, WebhookState};
use serde_json::json;

use super::{Home, Outcome, all_events, next, now};
use crate::store::{
    Error,
    webhook::{WebhookMark, WebhookStore as _},
};

fn webhook(name: &str) -> Webhook {
    let (millis, random) = next();
    Webhook {
        id: WebhookId::from_parts(millis, random),
        name: name.into(),
        url: "https://hooks.example.org/services/s3cret".into(),
        kinds: vec!["approval.".into(), "process.crash_loop".into()],
        state: WebhookState::Ok,
        created_at: now(),
        delivered_at: None,
        failing_since: None,
        attempts: 0,
        last_error: None,
    }
}

pub(in crate::store) async fn webhooks_are_added_found_again_and_removed<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (one, two) = (webhook("one"), webhook("two"));
    let first = store.add_webhook(&one, b"sealed of one", "hooks.example.org").await?;
    assert_eq!((&first.webhook, first.sealed.as_slice(), first.cursor), (&one, &b"sealed of one"[..], 1));
    let second = store.add_webhook(&two, b"sealed of two", "hooks.example.org").await?;
    assert_eq!(second.cursor, 2, "only what happens afterwards is told");
    let taken = store.add_webhook(&webhook("one"), b"", "x").await;
    assert!(matches!(&taken, Err(Error::NameTaken(name)) if name == "one"), "{taken:?}");
    drop(store);

    let store = home.open().await?;
    assert_eq!(store.webhooks().await?, [first.clone(), second.clone()]);
    assert_eq!(store.webhook(&one.id).await?, Some(first));
    store.remove_webhook(&one.id).await?;
    let missing = store.remove_webhook(&one.id).await;
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    let missing = store.mark_webhook(&one.id, WebhookMark::Delivered { seq: 9 }).await;
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    assert_eq!(store.webhook(&one.id).await?, None);
    assert_eq!(store.webhooks().await?, [second]);
    let events = all_events(&store).await?;
    let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["webhook.added", "webhook.added", "webhook.removed"]);
    let added = json!({ "webhook": one.id.as_str(), "name": "one", "host": "hooks.example.org", "kinds": one.kinds });
    assert_eq!(events[0].data, added);
    assert!(!serde_json::to_string(&events)?.contains("s3cret"));
    Ok(())
}

pub(in crate::store) async fn a_webhooks_cursor_and_failures_are_kept<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let one = webhook("one");
    store.add_webhook(&one, b"", "x").await?;
    let mark = async |mark| store.mark_webhook(&one.id, mark).await;
    assert_eq!(mark(WebhookMark::Passed { to: 7 }).await?.cursor, 7);
    assert_eq!(mark(WebhookMark::Passed { to: 5 }).await?.cursor, 7, "it never goes back");
    let failed = mark(WebhookMark::Failed { error: "refused".into() }).await?;
    let since = failed.first_failed_at;
    assert_eq!((failed.cursor, failed.webhook.state), (7, WebhookState::Failing));
    assert!(since.is_some() && failed.webhook.failing_since == since);
    let failed = mark(WebhookMark::Failed { error: "slow".into() }).await?;
    assert_eq!((failed.first_failed_at, failed.webhook.attempts), (since, 2));
    assert_eq!(failed.webhook.last_error.as_deref(), Some("slow"));
    let given_up = mark(WebhookMark::GivenUp { seq: 9, kind: "approval.opened".into() }).await?;
    assert_eq!((given_up.cursor, given_up.webhook.attempts, given_up.first_failed_at), (9, 0, None));
    assert_eq!(
        (given_up.webhook.state, given_up.webhook.failing_since),
        (WebhookState::Failing, since),
        "it still fails"
    );
    let missed = mark(WebhookMark::Missed { from: 10, to: 20 }).await?;
    assert_eq!((missed.cursor, missed.webhook.state), (20, WebhookState::Failing));
    let delivered = mark(WebhookMark::Delivered { seq: 21 }).await?;
    assert!(delivered.webhook.delivered_at.is_some() && delivered.webhook.last_error.is_none());
    assert_eq!((delivered.cursor, delivered.webhook.state), (21, WebhookState::Ok));
    let disabled = mark(WebhookMark::Disabled { error: "410".into() }).await?;
    assert_eq!((disabled.cursor, disabled.webhook.state), (21, WebhookState::Disabled));
    drop(store);

    let store = home.open().await?;
    assert_eq!(store.webhook(&one.id).await?, Some(disabled));
    let told: Vec<_> = all_events(&store).await?.into_iter().skip(1).map(|event| (event.kind, event.data)).collect();
    let id = one.id.as_str();
    let given_up = json!({ "webhook": id, "name": "one", "seq": 9, "kind": "approval.opened", "reason": "slow" });
    assert_eq!(
        told,
        [
            ("webhook.given_up".to_owned(), given_up),
            ("webhook.missed".to_owned(), json!({ "webhook": id, "name": "one", "from": 10, "to": 20 })),
            ("webhook.disabled".to_owned(), json!({ "webhook": id, "name": "one", "reason": "410" })),
        ]
    );
    Ok(())
}

//! Gates: rules of a sandbox's own, and the events of what happens at it.

use chrono::TimeDelta;
use sandbar_api::{NetworkRule, SandboxId, SandboxState};
use sandbar_policy::{Effect, Source};
use serde_json::json;

use super::{Home, Outcome, all_events, gate_row, new_sandbox, now, sandbox};
use crate::store::{Error, GateStore as _, Store as _, gate::FactRow, gate::GateRow};

fn rule(text: &str) -> NetworkRule {
    NetworkRule { effect: Effect::Allow, rule: text.into(), source: Source::Sandbox }
}

pub(in crate::store) async fn gates_are_changed_told_and_found_again<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    assert_eq!(store.gate(&id).await?, Some(gate_row()), "it is there from birth");
    let (rules, secrets) = (vec![rule("a.org"), rule("b.org")], vec!["TOKEN".to_owned()]);
    let change = json!({ "effect": "allow", "rules": ["a.org", "b.org"], "by": "socket" });
    store.set_network(&id, &rules, &secrets, change.clone()).await?;
    let other = GateRow { certificate: "another".into(), key: vec![4], ..gate_row() };
    store.add_gate(&id, &other).await?;
    drop(store);

    let store = home.open().await?;
    let wanted = GateRow { rules, secrets, ..other };
    assert_eq!(store.gate(&id).await?, Some(wanted), "where there is one, only its authority is replaced");
    let event = all_events(&store).await?.pop().ok_or("it was told")?;
    assert_eq!((event.kind.as_str(), event.sandbox.as_deref()), ("net.changed", Some(id.as_str())));
    assert_eq!(event.data, change);

    let nobody = SandboxId::from_parts(9, [9; 10]);
    assert_eq!(store.gate(&nobody).await?, None);
    let head = *store.head().borrow();
    let missing = store.set_network(&nobody, &[], &[], json!({})).await;
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    assert!(store.add_gate(&nobody, &gate_row()).await.is_err(), "there is no such sandbox");
    assert_eq!(*store.head().borrow(), head, "and nothing was told");
    Ok(())
}

pub(in crate::store) async fn gates_go_with_their_sandbox<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    store.transition(&id, SandboxState::Deleted, None).await?;
    store.prune(now() + TimeDelta::days(1)).await?;
    assert_eq!(store.gate(&id).await?, None);
    Ok(())
}

pub(in crate::store) async fn facts_are_appended_in_order_and_at_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (one, two) = (sandbox(&store, "one").await?, sandbox(&store, "two").await?);
    let head = *store.head().borrow();
    let fact = |number: u64| FactRow {
        kind: if number.is_multiple_of(3) { "net.denied" } else { "net.request" },
        sandbox: if number.is_multiple_of(2) { one.clone() } else { two.clone() },
        data: json!({ "host": "\"quoted\".org", "sent": number, "path": "/ü\u{1f}", "secrets": ["A"] }),
    };
    store.append_facts(vec![]).await?;
    assert_eq!(*store.head().borrow(), head);
    store.append_facts((0..1000).map(fact).collect()).await?;
    store.append_facts(vec![fact(1000)]).await?;
    assert_eq!(*store.head().borrow(), head + 1001);
    let events = store.events(head, 2000, None).await?;
    assert_eq!(events.len(), 1001);
    for (number, event) in (0..).zip(events) {
        let wanted = fact(number);
        assert_eq!(event.seq, head + 1 + number);
        let sandbox = event.sandbox.ok_or("it has a sandbox")?;
        assert_eq!(
            (event.kind.as_str(), sandbox.as_str(), event.data),
            (wanted.kind, wanted.sandbox.as_str(), wanted.data)
        );
    }
    assert_eq!(store.events(head, 2000, Some(&two)).await?.len(), 500);
    Ok(())
}

/// What a sub-session used counts for its parent as long as the parent is there.
pub(in crate::store) async fn sessions_are_pruned_by_families<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let parent = new_sandbox("parent");
    let mut child = new_sandbox("child");
    child.parent = Some(parent.row.sandbox.session.clone());
    let mut grandchild = new_sandbox("grandchild");
    grandchild.parent = Some(child.row.sandbox.session.clone());
    let all = [&parent, &child, &grandchild].map(|new| new.row.sandbox.clone());
    for new in [parent, child, grandchild] {
        store.create_sandbox(new).await?;
    }
    // The eldest and the middle one first: neither may go alone.
    for (deleted, left) in [(&all[0], 3), (&all[1], 3), (&all[2], 0)] {
        store.transition(&deleted.id, SandboxState::Deleted, None).await?;
        assert_eq!(store.prune(now() + TimeDelta::days(1)).await?.sandboxes, 1);
        let mut found = 0;
        for sandbox in &all {
            found += usize::from(crate::store::SessionStore::session(&store, &sandbox.session).await?.is_some());
        }
        assert_eq!(found, left, "after {}", deleted.name);
    }
    Ok(())
}

//! Pools: members are kept apart from sandboxes, and become one exactly once.

use sandbar_api::SandboxState;

use super::{Home, Outcome, all_events, kinds, new_sandbox, now, sandbox};
use crate::store::{Created, Error, IdempotencyKey, NewSandbox, PoolMember, PoolRow, SandboxFilter, Store};

/// A member, and the sandbox that a claim makes of it.
async fn member(store: &impl Store, name: &str) -> Result<(PoolMember, NewSandbox), Error> {
    let mut new = new_sandbox(name);
    new.row.sandbox.state = SandboxState::Ready;
    let member = PoolMember {
        id: new.row.sandbox.id.clone(),
        template: "default".into(),
        digest: [7; 32],
        provider: "local".into(),
        created_at: now(),
    };
    store.add_pool_member(&member).await?;
    Ok((member, new))
}

pub(in crate::store) async fn they_are_set_changed_and_ended<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let row = |template: &str, size| PoolRow { template: template.into(), size };
    for (template, size) in [("b", 3), ("a", 1), ("b", 5), ("b", 5), ("none", 0)] {
        store.set_pool(template, size).await?;
    }
    assert_eq!(store.pools().await?, [row("a", 1), row("b", 5)]);
    store.set_pool("b", 0).await?;
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.pools().await?, [row("a", 1)]);
    let told: Vec<_> = all_events(&store).await?.into_iter().map(|event| (event.kind, event.data)).collect();
    let set =
        |template: &str, size: u32| ("pool.set".to_owned(), serde_json::json!({ "template": template, "size": size }));
    assert_eq!(told, [set("b", 3), set("a", 1), set("b", 5), set("b", 0)], "only what changes something is told");
    Ok(())
}

pub(in crate::store) async fn members_come_and_go_unseen_among_sandboxes<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (first, _) = member(&store, "a").await?;
    let (second, _) = member(&store, "b").await?;
    assert!(store.add_pool_member(&first).await.is_err(), "an id is one member's");
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.pool_members().await?, [first.clone(), second.clone()]);
    assert_eq!(store.sandboxes(&SandboxFilter { limit: 10, ..SandboxFilter::default() }).await?, []);
    assert_eq!(store.sandbox(&first.id).await?, None);
    for _ in 0..2 {
        store.remove_pool_member(&first.id).await?;
    }
    assert_eq!(store.pool_members().await?, [second]);
    assert_eq!(*store.head().borrow(), 0);
    Ok(())
}

pub(in crate::store) async fn a_claim_makes_a_sandbox_of_a_member_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (_, new) = member(&store, "a").await?;
    let wanted = new.row.clone();
    assert_eq!(store.claim_pool_member(new.clone()).await?, Created::New(wanted.clone()));
    assert_eq!(store.pool_members().await?, []);
    assert_eq!(store.sandbox_named("a").await?, Some(wanted.clone()));
    assert_eq!(kinds(&store).await?, ["session.created", "sandbox.created", "sandbox.ready"]);
    let events = all_events(&store).await?;
    assert_eq!((&events[1].data["claimed"], &events[2].data["state"]), (&true.into(), &"ready".into()));

    let mut again = new;
    again.row.sandbox.name = "b".into();
    again.row.sandbox.session = new_sandbox("x").row.sandbox.session;
    assert!(store.claim_pool_member(again).await.is_err(), "it is a sandbox already");
    let nobody = store.claim_pool_member(new_sandbox("c")).await;
    assert!(matches!(nobody, Err(Error::Missing(_))), "{nobody:?}");
    assert_eq!(*store.head().borrow(), 3);

    let (_, mut slow) = member(&store, "slow").await?;
    slow.row.sandbox.state = SandboxState::Creating;
    let id = slow.row.sandbox.id.clone();
    store.claim_pool_member(slow).await?;
    assert_eq!(kinds(&store).await?.last().map(String::as_str), Some("sandbox.created"));
    assert_eq!(store.transition(&id, SandboxState::Ready, None).await?.sandbox.state, SandboxState::Ready);
    Ok(())
}

pub(in crate::store) async fn a_claim_that_is_refused_leaves_the_member<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    sandbox(&store, "taken").await?;
    let key = |digest| IdempotencyKey { owner: "socket".into(), key: "k".into(), digest: [digest; 32] };
    let keyed = NewSandbox { key: Some(key(1)), ..new_sandbox("keyed") };
    let Created::New(made) = store.create_sandbox(keyed).await? else { return Err("it was replayed".into()) };
    let head = *store.head().borrow();

    let (member, new) = member(&store, "taken").await?;
    let refused = store.claim_pool_member(new.clone()).await;
    assert!(matches!(refused, Err(Error::NameTaken(_))), "{refused:?}");
    let mut renamed = new;
    renamed.row.sandbox.name = "free".into();
    let refused = store.claim_pool_member(NewSandbox { new_session: false, ..renamed.clone() }).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    let refused = store.claim_pool_member(NewSandbox { key: Some(key(2)), ..renamed.clone() }).await;
    assert!(matches!(refused, Err(Error::KeyReused)), "{refused:?}");
    let replayed = store.claim_pool_member(NewSandbox { key: Some(key(1)), ..renamed.clone() }).await?;
    assert_eq!(replayed, Created::Replayed(made));
    assert_eq!(store.pool_members().await?, [member]);
    assert_eq!((*store.head().borrow(), store.sandbox_named("free").await?), (head, None));

    assert!(matches!(store.claim_pool_member(renamed).await?, Created::New(_)));
    assert_eq!(store.pool_members().await?, []);
    Ok(())
}

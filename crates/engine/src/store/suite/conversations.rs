//! Sessions that are there before they have a sandbox; and what their workspaces have: a token, a lease.

use chrono::TimeDelta;
use sandbar_api::{HumanDuration, Role, SandboxState, SessionId, SetBudget, Token, TokenId};
use serde_json::json;

use super::{Home, Outcome, all_events, kinds, new_sandbox, next, now};
use crate::store::{
    Error, NewSandbox, SessionStore as _, Store,
    sessions::{Begun, Deletion, External, NewSession, SessionFilter, SessionMarks, SessionRow},
};

fn new(user: &str, id: &str) -> NewSession {
    let (millis, random) = next();
    NewSession {
        id: SessionId::from_parts(millis, random),
        owner: "socket".into(),
        marks: SessionMarks::default(),
        limits: SetBudget::default(),
        agent: "ns/coder".into(),
        external: Some(External { user: user.into(), id: id.into() }),
        created_at: now(),
    }
}

async fn begun(store: &impl Store, new: NewSession) -> Result<SessionRow, Error> {
    let (Begun::New(row) | Begun::Known(row)) = store.create_session(new).await?;
    Ok(row)
}

async fn listed(store: &impl Store) -> Result<Vec<SessionId>, Error> {
    let filter = SessionFilter { limit: 100, ..SessionFilter::default() };
    Ok(store.sessions(&filter).await?.into_iter().map(|row| row.id).collect())
}

fn joining(name: &str, session: &SessionId) -> NewSandbox {
    let mut new = NewSandbox { new_session: false, ..new_sandbox(name) };
    new.row.sandbox.session = session.clone();
    new
}

pub(in crate::store) async fn they_are_there_before_and_after_their_sandboxes<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    // As long as it may be, and not cut.
    let long = format!("{}ü", "x".repeat(510));
    let one = begun(&store, new("ann", &long)).await?;
    assert_eq!(listed(&store).await?, std::slice::from_ref(&one.id), "it has not ended, though it has no sandbox");
    let told = all_events(&store).await?.pop().ok_or("it was told")?;
    let want = json!({ "session": one.id.as_str(), "owner": "socket", "agent": "ns/coder", "user": "ann", "external_id": long });
    assert_eq!((told.kind.as_str(), told.data), ("session.created", want));
    drop(store);

    let store = home.open().await?;
    let id = |user: &str, id: &str| External { user: user.into(), id: id.into() };
    assert_eq!(store.session(&one.id).await?, Some(one.clone()));
    assert_eq!(store.conversation(&id("ann", &long)).await?, Some(one.clone()));
    assert_eq!(store.conversation(&id("bob", &long)).await?, None, "another user's");
    assert_eq!(store.conversation(&id("ann", &long[..510])).await?, None);
    let sandbox = joining("a", &one.id);
    store.create_sandbox(sandbox.clone()).await?;
    store.transition(&sandbox.row.sandbox.id, SandboxState::Deleted, None).await?;
    assert_eq!(store.prune(now() + TimeDelta::days(1)).await?.sandboxes, 1);
    assert_eq!(listed(&store).await?, std::slice::from_ref(&one.id), "it outlives its sandbox");
    let named =
        NewSession { marks: SessionMarks { name: Some("n".into()), ..SessionMarks::default() }, ..new("ann", "n") };
    begun(&store, named.clone()).await?;
    let again = NewSession { id: new("", "").id, external: None, ..named };
    assert!(matches!(store.create_session(again).await, Err(Error::SessionNameTaken(_))));
    Ok(())
}

pub(in crate::store) async fn of_twenty_that_begin_one_a_user_has_one<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let all = futures_util::future::try_join_all((0..20).map(|_| store.create_session(new("ann", "talk")))).await?;
    let made = all.iter().filter(|begun| matches!(begun, Begun::New(_))).count();
    let ids =
        all.into_iter().map(|(Begun::New(row) | Begun::Known(row))| row.id).collect::<std::collections::HashSet<_>>();
    assert_eq!((made, ids.len()), (1, 1));
    let other = begun(&store, new("bob", "talk")).await?;
    assert!(!ids.contains(&other.id));
    assert_eq!(kinds(&store).await?, ["session.created", "session.created"]);
    store.delete_session(&other.id).await?;
    let next = begun(&store, new("bob", "talk")).await?;
    assert_ne!(next.id, other.id, "a deleted one gives its id back");
    let found = store.conversation(&External { user: "bob".into(), id: "talk".into() }).await?;
    assert_eq!(found.map(|row| row.id), Some(next.id));
    Ok(())
}

pub(in crate::store) async fn the_forgotten_are_found_and_pruned_when_they_are_deleted<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let old = now() - TimeDelta::days(31);
    let mut ids = vec![];
    for name in ["forgotten", "used", "inhabited"] {
        ids.push(begun(&store, NewSession { created_at: old, ..new("ann", name) }).await?.id);
    }
    let [forgotten, used, inhabited] = &ids[..] else { return Err("three were begun".into()) };
    store.use_session(used, now()).await?;
    let sandbox = joining("a", inhabited);
    store.create_sandbox(sandbox.clone()).await?;
    store.transition(&sandbox.row.sandbox.id, SandboxState::Deleted, None).await?;
    // One that was begun with a sandbox and has none any more is none of these.
    let ordinary = new_sandbox("b");
    store.create_sandbox(ordinary.clone()).await?;
    store.transition(&ordinary.row.sandbox.id, SandboxState::Deleted, None).await?;
    let before = now() - TimeDelta::days(30);
    assert_eq!(
        store.forgotten(before).await?,
        std::slice::from_ref(forgotten),
        "a deleted sandbox was used not long ago"
    );
    for other in [used, inhabited, &ordinary.row.sandbox.session] {
        assert_eq!(store.forget_session(other, before).await?, None, "{other} was asked for since");
    }
    assert_eq!(store.forget_session(forgotten, before).await?, Some(vec![]));
    assert_eq!(store.forget_session(forgotten, before).await?, None, "it is deleted");
    assert_eq!(store.delete_session(forgotten).await?, Deletion::Before);
    assert_eq!(store.forgotten(before).await?, []);
    store.prune(now() + TimeDelta::hours(1)).await?;
    assert_eq!(store.session(forgotten).await?, None);
    for stays in [used, inhabited] {
        assert!(store.session(stays).await?.is_some());
    }
    assert_eq!(store.session(&ordinary.row.sandbox.session).await?, None);
    Ok(())
}

fn token(session: &SessionId) -> Token {
    let ((millis, random), created_at) = (next(), now());
    let id = TokenId::from_parts(millis, random);
    Token { id, name: "w".into(), role: Role::Agent, session: Some(session.clone()), created_at, expires_at: None }
}

pub(in crate::store) async fn a_workspace_has_one_token_that_ends_with_its_session<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let session = begun(&store, new("ann", "talk")).await?.id;
    assert_eq!(store.workspace_token(&session).await?, None);
    let (first, second, bound) = (token(&session), token(&session), token(&session));
    assert_eq!(store.add_workspace_token(&first, [1; 32]).await?, first.id);
    assert_eq!(store.add_workspace_token(&second, [2; 32]).await?, first.id, "there is one");
    store.create_token(&bound, [3; 32]).await?;
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.workspace_token(&session).await?, Some(first.id.clone()));
    assert_eq!(store.token([2; 32], now()).await?, None);
    store.revoke_token(&first.id).await?;
    assert_eq!(store.workspace_token(&session).await?, None);
    assert_eq!(store.add_workspace_token(&second, [2; 32]).await?, second.id, "after it was revoked another");
    assert!(store.token([2; 32], now()).await?.is_some() && store.token([3; 32], now()).await?.is_some());

    store.delete_session(&session).await?;
    assert_eq!(store.tokens().await?, []);
    // One that is made while its session goes is of no use.
    store.create_token(&bound, [3; 32]).await?;
    for digest in [2, 3] {
        assert_eq!(store.token([digest; 32], now()).await?, None);
    }
    let refused = store.add_workspace_token(&token(&session), [4; 32]).await;
    assert!(matches!(refused, Err(Error::SessionEnded(id)) if id == session));
    let nobody = token(&new("", "").id);
    assert!(matches!(store.add_workspace_token(&nobody, [5; 32]).await, Err(Error::Missing(_))));
    let told = kinds(&store).await?;
    assert_eq!(told.iter().filter(|kind| *kind == "token.revoked").count(), 3);
    store.prune(now() + TimeDelta::hours(1)).await?;
    assert_eq!(store.tokens().await?, [], "none is left of a session that is gone");
    Ok(())
}

pub(in crate::store) async fn expiry_is_put_off<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let mut new = new_sandbox("a");
    new.row.lease = Some(HumanDuration(std::time::Duration::from_millis(90_061_001)));
    new.row.sandbox.expires_at = Some(now());
    let (id, lease) = (new.row.sandbox.id.clone(), new.row.lease);
    store.create_sandbox(new).await?;
    let later = now() + TimeDelta::hours(1);
    assert_eq!(store.renew(&id, later).await?.sandbox.expires_at, Some(later));
    assert_eq!(store.expired(now()).await?, []);
    let told = all_events(&store).await?.pop().ok_or("it was told")?;
    assert_eq!((told.kind.as_str(), &told.data["expires_at"]), ("sandbox.renewed", &json!(later)));
    drop(store);
    let store = home.open().await?;
    let row = store.sandbox(&id).await?.ok_or("it is there")?;
    assert_eq!((row.sandbox.expires_at, row.lease), (Some(later), lease));
    store.transition(&id, SandboxState::Deleted, None).await?;
    assert!(matches!(store.renew(&id, later).await, Err(Error::Missing(_))));
    Ok(())
}

pub(in crate::store) async fn the_last_sandbox_is_the_one_that_came_last<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let session = begun(&store, new("ann", "talk")).await?.id;
    assert_eq!(store.last_sandbox(&session).await?, None);
    // Out of a pool: its id is older than that of the one before it.
    let (mut late, early) = (joining("late", &session), joining("early", &session));
    late.row.sandbox.created_at = now() + TimeDelta::seconds(1);
    for new in [&early, &late] {
        store.create_sandbox(new.clone()).await?;
    }
    let (late, early) = (late.row.sandbox.id, early.row.sandbox.id);
    assert!(late < early);
    let ids: Vec<_> = store.belongings(&session).await?.sandboxes.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [early, late.clone()]);
    store.transition(&late, SandboxState::Deleted, None).await?;
    let last = store.last_sandbox(&session).await?.ok_or("there is one")?;
    assert_eq!((last.sandbox.id, last.sandbox.state), (late, SandboxState::Deleted));
    Ok(())
}

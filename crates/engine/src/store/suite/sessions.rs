//! Sessions: found by what they are called, deleted once and only when they are empty.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use sandbar_api::{ApprovalState, ProcessState, SandboxId, SandboxState, SessionId};
use serde_json::json;

use super::{Home, Outcome, all_events, approvals, kinds, new_process, new_sandbox, now};
use crate::store::{
    ApprovalStore as _, Error, NewSandbox, Result, SessionStore as _, Store,
    sessions::{Belongings, Deletion, SessionFilter, SessionMarks},
};

fn marked(sandbox: &str, name: Option<&str>, labels: &[(&str, &str)]) -> NewSandbox {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    NewSandbox { marks: SessionMarks { name: name.map(str::to_owned), labels }, ..new_sandbox(sandbox) }
}

async fn made(store: &impl Store, new: NewSandbox) -> Result<(SandboxId, SessionId)> {
    let ids = (new.row.sandbox.id.clone(), new.row.sandbox.session.clone());
    store.create_sandbox(new).await?;
    Ok(ids)
}

async fn page(store: &impl Store, filter: SessionFilter) -> Result<Vec<SessionId>> {
    let filter = SessionFilter { limit: filter.limit.max(1), ..filter };
    Ok(store.sessions(&filter).await?.into_iter().map(|row| row.id).collect())
}

pub(in crate::store) async fn they_are_found_by_name_and_labels<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (_, one) = made(&store, marked("one", Some("agent"), &[("task", "42"), ("team", "a")])).await?;
    let (ended, two) = made(&store, marked("two", None, &[("task", "42")])).await?;
    let (_, three) = made(&store, new_sandbox("three")).await?;
    let told = all_events(&store).await?.into_iter().find(|event| event.kind == "session.created");
    let want =
        json!({ "session": one.as_str(), "owner": "socket", "name": "agent", "labels": { "task": "42", "team": "a" } });
    assert_eq!(told.map(|event| event.data), Some(want));
    drop(store);
    let store = home.open().await?;
    let row = store.session_named("agent").await?.ok_or("it has a name")?;
    assert_eq!((row.id, row.marks.labels.len(), row.deleted_at), (one.clone(), 2, None));
    assert_eq!(store.session_named("one").await?, None, "that is a sandbox's");

    let all = || SessionFilter { limit: 10, ..SessionFilter::default() };
    let labelled = |pairs: &[(&str, &str)]| SessionFilter {
        labels: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>(),
        ..all()
    };
    assert_eq!(page(&store, all()).await?, [one.clone(), two.clone(), three.clone()]);
    assert_eq!(page(&store, SessionFilter { limit: 2, ..all() }).await?, [one.clone(), two.clone()]);
    assert_eq!(page(&store, SessionFilter { after: Some(two.clone()), ..all() }).await?, std::slice::from_ref(&three));
    assert_eq!(page(&store, SessionFilter { only: Some(two.clone()), ..all() }).await?, std::slice::from_ref(&two));
    assert_eq!(page(&store, labelled(&[("task", "42")])).await?, [one.clone(), two.clone()]);
    assert_eq!(page(&store, labelled(&[("task", "42"), ("team", "a")])).await?, std::slice::from_ref(&one));
    assert_eq!(page(&store, labelled(&[("task", "4")])).await?, []);
    store.transition(&ended, SandboxState::Deleted, None).await?;
    assert_eq!(page(&store, labelled(&[("task", "42")])).await?, std::slice::from_ref(&one), "the other has ended");
    assert_eq!(page(&store, SessionFilter { ended: true, ..all() }).await?, [one, two, three]);
    Ok(())
}

pub(in crate::store) async fn names_are_unique_until_they_are_deleted<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (sandbox, first) = made(&store, marked("a", Some("agent"), &[])).await?;
    let before = *store.head().borrow();
    let taken = store.create_sandbox(marked("b", Some("agent"), &[])).await;
    assert!(matches!(&taken, Err(Error::SessionNameTaken(name)) if name == "agent"), "{taken:?}");
    assert_eq!((*store.head().borrow(), store.sandbox_named("b").await?), (before, None), "nothing was made");
    // A session without a sandbox still has its name.
    store.transition(&sandbox, SandboxState::Deleted, None).await?;
    assert!(matches!(made(&store, marked("b", Some("agent"), &[])).await, Err(Error::SessionNameTaken(_))));
    assert_eq!(store.delete_session(&first).await?, Deletion::Now(vec![]));
    assert_eq!(store.session_named("agent").await?.map(|row| row.id), Some(first), "the last that had it");
    let (_, second) = made(&store, marked("b", Some("agent"), &[])).await?;
    assert_eq!(store.session_named("agent").await?.map(|row| row.id), Some(second));
    Ok(())
}

pub(in crate::store) async fn what_belongs_to_one_is_told<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (first, session) = made(&store, new_sandbox("a")).await?;
    let mut joined = NewSandbox { new_session: false, ..new_sandbox("b") };
    joined.row.sandbox.session = session.clone();
    let (second, _) = made(&store, joined).await?;
    let (other, elsewhere) = made(&store, new_sandbox("c")).await?;
    store.transition(&first, SandboxState::Ready, None).await?;
    let mut terminal = new_process(&second);
    terminal.terminal = true;
    let mut over = new_process(&first);
    over.terminal = true;
    for process in [&terminal, &over, &new_process(&first), &new_process(&other)] {
        store.create_process(process).await?;
    }
    store.end_process(&over.id, ProcessState::Lost, None, now()).await?;
    let mut approval = approvals::new(&first, now() + TimeDelta::minutes(1));
    approval.session = session.clone();
    store.open_approval(&approval).await?;
    let belongings = store.belongings(&session).await?;
    assert_eq!(belongings.sandboxes, [(first, SandboxState::Ready), (second.clone(), SandboxState::Creating)]);
    assert_eq!(belongings.open_approvals, 1);
    let terminals: Vec<_> = belongings.terminals.iter().map(|one| (&one.process, &one.sandbox, &one.argv)).collect();
    assert_eq!(terminals, [(&terminal.id, &second, &terminal.argv)]);
    store.transition(&second, SandboxState::Deleted, None).await?;
    assert_eq!(store.belongings(&session).await?.terminals, [], "gone with its sandbox");
    let elsewhere = store.belongings(&elsewhere).await?;
    assert_eq!(elsewhere, Belongings { sandboxes: vec![(other, SandboxState::Creating)], ..Belongings::default() });
    Ok(())
}

pub(in crate::store) async fn one_with_sandboxes_is_not_deleted<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (sandbox, session) = made(&store, marked("a", Some("agent"), &[])).await?;
    let before = *store.head().borrow();
    assert_eq!(store.delete_session(&session).await?, Deletion::Inhabited(vec![sandbox]));
    assert_eq!(*store.head().borrow(), before);
    assert_eq!(store.session(&session).await?.and_then(|row| row.deleted_at), None);
    let nobody = new_sandbox("x").row.sandbox.session;
    assert!(matches!(store.delete_session(&nobody).await, Err(Error::Missing(_))));
    Ok(())
}

pub(in crate::store) async fn deleting_withdraws_and_tells_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (sandbox, session) = made(&store, marked("a", Some("agent"), &[])).await?;
    let (mut own, mut other) = (approvals::new(&sandbox, now() + TimeDelta::minutes(1)), None);
    own.session = session.clone();
    for approval in [&own, other.insert(approvals::new(&sandbox, now() + TimeDelta::minutes(1)))] {
        store.open_approval(approval).await?;
    }
    store.transition(&sandbox, SandboxState::Deleted, None).await?;
    let before = *store.head().borrow();
    let Deletion::Now(withdrawn) = store.delete_session(&session).await? else { panic!("it was empty") };
    assert_eq!(
        withdrawn.iter().map(|approval| (&approval.id, approval.state)).collect::<Vec<_>>(),
        [(&own.id, ApprovalState::Withdrawn)]
    );
    let told: Vec<_> =
        store.events(before, 10, None).await?.into_iter().map(|event| (event.kind, event.data)).collect();
    assert_eq!(
        told.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(),
        ["approval.withdrawn", "session.deleted"]
    );
    assert_eq!(told[1].1, json!({ "session": session.as_str(), "owner": "socket", "name": "agent" }));
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.delete_session(&session).await?, Deletion::Before);
    assert_eq!(kinds(&store).await?.len() as u64, before + 2, "told once");
    assert!(store.session(&session).await?.is_some_and(|row| row.deleted_at.is_some()));
    Ok(())
}

pub(in crate::store) async fn nothing_joins_a_deleted_one<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (sandbox, session) = made(&store, new_sandbox("a")).await?;
    let child = NewSandbox { parent: Some(session.clone()), ..new_sandbox("child") };
    let (_, child) = made(&store, child).await?;
    store.transition(&sandbox, SandboxState::Deleted, None).await?;
    store.delete_session(&session).await?;
    let mut joins = NewSandbox { new_session: false, ..new_sandbox("b") };
    joins.row.sandbox.session = session.clone();
    let below = NewSandbox { parent: Some(session.clone()), ..new_sandbox("c") };
    for refused in [joins, below] {
        let refused = store.create_sandbox(refused).await;
        assert!(matches!(&refused, Err(Error::SessionEnded(id)) if *id == session), "{refused:?}");
    }
    assert_eq!(store.session(&child).await?.and_then(|row| row.parent), Some(session), "what it uses still counts");
    Ok(())
}

/// Agents name what is theirs; of what others have not even the time of an answer may tell.
pub(in crate::store) async fn a_bounded_lookup_finds_nothing_beyond_its_session<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (box_one, one) = made(&store, marked("one", Some("agent"), &[])).await?;
    let below = NewSandbox { parent: Some(one.clone()), ..marked("two", Some("helper"), &[]) };
    let (box_two, two) = made(&store, below).await?;
    let (box_three, three) = made(&store, marked("three", Some("stranger"), &[])).await?;
    let (store, found) = (&store, async |below: bool, of: &str| {
        Ok::<_, Error>(store.session_within(&one, below, of).await?.map(|row| row.id))
    });
    for of in [one.as_str(), "agent", box_one.as_str(), "one"] {
        assert_eq!(found(false, of).await?.as_ref(), Some(&one), "{of}");
        assert_eq!(found(true, of).await?.as_ref(), Some(&one), "{of}");
    }
    for of in [two.as_str(), "helper", box_two.as_str(), "two"] {
        assert_eq!(found(false, of).await?, None, "{of}");
        assert_eq!(found(true, of).await?.as_ref(), Some(&two), "{of}");
    }
    for of in [three.as_str(), "stranger", box_three.as_str(), "three", "nobody", "", "\0"] {
        assert_eq!(found(true, of).await?, None, "{of:?}");
        assert_eq!(store.sandbox_within(&one, of).await?, None, "{of:?}");
    }
    // What it had stays its own, whoever has the name now.
    store.transition(&box_one, SandboxState::Deleted, None).await?;
    made(store, new_sandbox("one")).await?;
    for of in [box_one.as_str(), "one"] {
        assert_eq!(found(false, of).await?.as_ref(), Some(&one), "{of}");
        assert_eq!(store.sandbox_within(&one, of).await?.as_ref(), Some(&box_one), "{of}");
    }
    let mut joins = NewSandbox { new_session: false, ..new_sandbox("four") };
    joins.row.sandbox.session = one.clone();
    let (box_four, _) = made(store, joins).await?;
    assert_eq!(store.sandbox_within(&one, "four").await?, Some(box_four));
    Ok(())
}

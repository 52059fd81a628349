//! Sandboxes: what is stored, how they change, how they are found.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use sandbar_api::{HumanDuration, Root, SandboxState, SessionId, StateReason, Template, WorkspaceSource};

use super::{Home, Outcome, all_events, new_sandbox, now, sandbox};
use crate::store::{Created, Error, SandboxFilter, Store as _};

pub(in crate::store) async fn they_come_back_as_they_were_made<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let mut new = new_sandbox("full");
    let made = &mut new.row.sandbox;
    made.labels = BTreeMap::from([("team/a".into(), "ü \" '".into()), ("b".into(), String::new())]);
    made.workspace = WorkspaceSource::Bind { path: "/srv/x".into() };
    made.expires_at = Some(now() + TimeDelta::hours(1));
    made.reason = Some(StateReason { code: "requested".into(), detail: "as asked".into() });
    new.row.template = Template {
        name: "other".into(),
        root: Root::Image { path: "/images/a".into() },
        ttl: Some("1h".parse::<HumanDuration>()?),
        ..Template::default()
    };
    let wanted = new.row.clone();
    assert_eq!(store.create_sandbox(new).await?, Created::New(wanted.clone()));
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.sandbox(&wanted.sandbox.id).await?.as_ref(), Some(&wanted));
    assert_eq!(store.sandbox_named("full").await?.as_ref(), Some(&wanted));
    assert_eq!(store.sandboxes(&SandboxFilter { limit: 10, ..SandboxFilter::default() }).await?, [wanted]);
    assert_eq!(store.sandbox(&new_sandbox("none").row.sandbox.id).await?, None);
    Ok(())
}

pub(in crate::store) async fn only_legal_transitions_change_anything<H: Home>(home: H) -> Outcome {
    use SandboxState::{Creating, Deleted, Failed, Paused, Ready, Stopped, Stopping};
    let store = home.open().await?;
    // From `creating` to each state and out of it again, so that every pair is tried from a state that was reached.
    let ways: [&[SandboxState]; 7] =
        [&[], &[Ready], &[Ready, Paused], &[Ready, Stopping], &[Ready, Stopping, Stopped], &[Failed], &[Deleted]];
    for (number, way) in ways.into_iter().enumerate() {
        for to in SandboxState::ALL {
            let id = sandbox(&store, &format!("s{number}-{}", to.as_str())).await?;
            let mut from = Creating;
            for state in way {
                from = store.transition(&id, *state, None).await?.sandbox.state;
            }
            let before = store.sandbox(&id).await?.ok_or("it is there")?;
            let events = *store.head().borrow();
            let reason = StateReason { code: "why".into(), detail: format!("{from:?} to {to:?}") };
            match store.transition(&id, to, Some(reason.clone())).await {
                Ok(after) => {
                    assert!(from.may_become(to), "{from:?} to {to:?}");
                    assert_eq!((after.sandbox.state, &after.sandbox.reason), (to, &Some(reason)));
                    assert!(after.sandbox.changed_at >= before.sandbox.changed_at);
                    assert_eq!(store.sandbox(&id).await?, Some(after));
                    let event = all_events(&store).await?.pop().ok_or("it was told")?;
                    assert_eq!((event.kind, event.seq), (format!("sandbox.{}", to.as_str()), events + 1));
                    assert_eq!(
                        (event.sandbox.as_deref(), &event.data["state"]),
                        (Some(id.as_str()), &to.as_str().into())
                    );
                    assert_eq!(event.data["reason"]["code"], "why");
                }
                Err(Error::Illegal { from: was, to: asked }) => {
                    assert!(!from.may_become(to), "{from:?} to {to:?}");
                    assert_eq!((was, asked), (from, to));
                    assert_eq!(store.sandbox(&id).await?, Some(before));
                    assert_eq!(*store.head().borrow(), events);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let nobody = store.transition(&new_sandbox("none").row.sandbox.id, Ready, None).await;
    assert!(matches!(nobody, Err(Error::Missing(_))), "{nobody:?}");
    Ok(())
}

pub(in crate::store) async fn they_page_and_filter_by_label_and_state<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    for number in 0..10 {
        let mut new = new_sandbox(&format!("s{number}"));
        new.row.sandbox.labels = BTreeMap::from([
            label("parity", if number % 2 == 0 { "even" } else { "odd" }),
            label("half", &(number / 5).to_string()),
        ]);
        let id = new.row.sandbox.id.clone();
        store.create_sandbox(new).await?;
        match number {
            0..3 => drop(store.transition(&id, SandboxState::Ready, None).await?),
            9 => drop(store.transition(&id, SandboxState::Deleted, None).await?),
            _ => {}
        }
    }
    let names = async |filter: SandboxFilter| -> Result<String, Error> {
        let rows = store.sandboxes(&filter).await?;
        Ok(rows.iter().map(|row| row.sandbox.name.trim_start_matches('s')).collect())
    };
    let all = SandboxFilter { limit: 100, ..SandboxFilter::default() };
    assert_eq!(names(all.clone()).await?, "012345678", "all but deleted");
    let labels = BTreeMap::from([label("parity", "odd")]);
    assert_eq!(names(SandboxFilter { labels, ..all.clone() }).await?, "1357");
    let labels = BTreeMap::from([label("parity", "odd"), label("half", "0")]);
    assert_eq!(names(SandboxFilter { labels, ..all.clone() }).await?, "13", "all labels have to be there");
    for none in [label("parity", "o"), label("odd", "parity"), label("parity' OR 1=1 --", "odd")] {
        let labels = BTreeMap::from([none]);
        assert_eq!(names(SandboxFilter { labels, ..all.clone() }).await?, "");
    }
    let states = vec![SandboxState::Ready, SandboxState::Deleted];
    assert_eq!(names(SandboxFilter { states: states.clone(), ..all.clone() }).await?, "0129");
    let labels = BTreeMap::from([label("parity", "odd")]);
    assert_eq!(names(SandboxFilter { states, labels, ..all.clone() }).await?, "19");

    let (mut after, mut pages) = (None, vec![]);
    loop {
        let page = store.sandboxes(&SandboxFilter { after, limit: 4, ..SandboxFilter::default() }).await?;
        pages.push(page.len());
        let Some(last) = page.last() else { break };
        after = Some(last.sandbox.id.clone());
    }
    assert_eq!(pages, [4, 4, 1, 0]);

    let counts = store.count().await?;
    assert_eq!((counts["creating"], counts["ready"], counts["deleted"], counts["failed"]), (6, 3, 1, 0));
    Ok(())
}

pub(in crate::store) async fn the_expired_are_found<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    assert_eq!(store.next_expiry().await?, None);
    let start = now();
    let mut ids = vec![];
    for minutes in [3, 1, 2] {
        let mut new = new_sandbox(&format!("in-{minutes}"));
        new.row.sandbox.expires_at = Some(start + TimeDelta::minutes(minutes));
        ids.push(new.row.sandbox.id.clone());
        store.create_sandbox(new).await?;
    }
    sandbox(&store, "never").await?;
    assert_eq!(store.next_expiry().await?, Some(start + TimeDelta::minutes(1)));
    assert_eq!(store.expired(start).await?, []);
    assert_eq!(store.expired(start + TimeDelta::minutes(2)).await?, [ids[1].clone(), ids[2].clone()]);
    store.transition(&ids[1], SandboxState::Deleted, None).await?;
    assert_eq!(store.next_expiry().await?, Some(start + TimeDelta::minutes(2)));
    assert_eq!(store.expired(start + TimeDelta::minutes(2)).await?, [ids[2].clone()]);
    Ok(())
}

pub(in crate::store) async fn a_session_may_be_joined_if_it_is_there<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let mut stranger = new_sandbox("stranger");
    stranger.new_session = false;
    let refused = store.create_sandbox(stranger.clone()).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    assert_eq!(*store.head().borrow(), 0);

    let first = new_sandbox("first");
    let session: SessionId = first.row.sandbox.session.clone();
    store.create_sandbox(first).await?;
    stranger.row.sandbox.session = session.clone();
    store.create_sandbox(stranger).await?;
    assert_eq!(*store.head().borrow(), 3, "one session, two sandboxes");
    assert_eq!(store.sandbox_named("stranger").await?.map(|row| row.sandbox.session), Some(session));
    Ok(())
}

pub(in crate::store) async fn why_it_is_in_its_state_can_be_said_anew<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let before = store.transition(&id, SandboxState::Ready, None).await?;
    let why = StateReason { code: "requested".into(), detail: "Somebody asked.".into() };
    let after = store.restate(&id, why.clone()).await?;
    assert_eq!((after.sandbox.state, after.sandbox.changed_at), (SandboxState::Ready, before.sandbox.changed_at));
    assert_eq!(after.sandbox.reason, Some(why.clone()));
    assert_eq!(store.sandbox(&id).await?, Some(after));
    let event = all_events(&store).await?.pop().ok_or("it was told")?;
    assert_eq!((event.kind.as_str(), &event.data["reason"]["code"]), ("sandbox.ready", &"requested".into()));
    let nobody = store.restate(&super::new_sandbox("n").row.sandbox.id, why).await;
    assert!(matches!(nobody, Err(Error::Missing(_))), "{nobody:?}");
    Ok(())
}

//! Forking: all of them or none, each a sandbox of its own.

use std::{collections::HashSet, time::Instant};

use sandbar_api::{Code, CreateSandbox, Fork, Sandbox, SandboxState};

use super::{Bed, Tested, code, exec, owner, script::kernel::cannot};
use crate::{
    ListQuery, create,
    owner::{Keep, Verb},
};

fn fork(count: u32, name: &str) -> Fork {
    Fork { count, name: Some(name.into()), ..Fork::default() }
}

async fn names(bed: &Bed) -> Result<Vec<String>, sandbar_api::Problem> {
    let page = bed.engine.list(ListQuery { limit: Some(1000), ..ListQuery::default() }).await?;
    Ok(page.sandboxes.into_iter().map(|sandbox| sandbox.name).collect())
}

#[tokio::test]
async fn they_are_sandboxes_of_their_own() -> Tested {
    let bed = Bed::new().await?;
    std::fs::write(bed.home.join("templates/tested.toml"), "ttl = \"1h\"")?;
    let request = CreateSandbox {
        name: Some("a".into()),
        template: Some("tested".into()),
        env: [("WHO".to_owned(), "origin".to_owned())].into(),
        labels: [("team".to_owned(), "one".to_owned())].into(),
        ..CreateSandbox::default()
    };
    let origin = bed.engine.create(&owner(), request, None).await?.sandbox;
    bed.provider.kernel.done();
    let labels = [("team".to_owned(), "two".to_owned())].into();
    let forked = bed.engine.fork(&owner(), "a", Fork { labels, ..fork(40, "f") }).await?;
    assert_eq!(bed.provider.kernel.done(), ["freeze", "snapshot", "thaw", "discard"], "one moment for all");
    let wanted: Vec<_> = (1..=40).map(|number| format!("f-{number}")).collect();
    assert_eq!(forked.iter().map(|one| one.name.clone()).collect::<Vec<_>>(), wanted);
    let different = |what: fn(&Sandbox) -> &str| forked.iter().chain([&origin]).map(what).collect::<HashSet<_>>().len();
    assert_eq!((different(|one| one.id.as_str()), different(|one| one.session.as_str())), (41, 41));
    for one in &forked {
        assert_eq!((one.state, one.template.as_str()), (SandboxState::Ready, "tested"));
        assert_eq!((&one.env, one.labels["team"].as_str()), (&origin.env, "two"));
        assert!(one.from.is_some() && one.from == forked[0].from);
        assert_eq!(one.expires_at, origin.expires_at);
        bed.engine.exec(&one.name, exec(&["echo", "x"], None, 10)).await?;
    }
    assert!(bed.engine.snapshots().await?.is_empty(), "the moment was nobody else's business");
    assert!(bed.provider.kernel.snapshots().is_empty());
    let made_up = bed.engine.fork(&owner(), "f-1", Fork::default()).await?;
    assert!(made_up[0].name.starts_with("sb-"), "{}", made_up[0].name);
    assert!(bed.engine.events(0, 1000, None).await?.iter().all(|event| !event.kind.starts_with("snapshot.")));
    Ok(())
}

#[tokio::test]
async fn they_end_with_their_origin_unless_told_otherwise() -> Tested {
    let bed = Bed::new().await?;
    for (name, template) in [("eternal", ""), ("short", "ttl = \"1h\"")] {
        std::fs::write(bed.home.join("templates/tested.toml"), template)?;
        for (origin, ttl) in [("none", None), ("given", "2h".parse().ok())] {
            let name = format!("{name}-{origin}");
            let request = CreateSandbox {
                name: Some(name.clone()),
                template: Some("tested".into()),
                ttl,
                ..CreateSandbox::default()
            };
            let origin = bed.engine.create(&owner(), request, None).await?.sandbox;
            let forked = bed.engine.fork(&owner(), &name, Fork::default()).await?;
            assert_eq!(forked[0].expires_at, origin.expires_at, "{name}");
            let told = Fork { ttl: "3h".parse().ok(), ..Fork::default() };
            let forked = bed.engine.fork(&owner(), &name, told).await?;
            let lives = forked[0].expires_at.map(|end| end - forked[0].created_at);
            assert_eq!(lives, Some(chrono::TimeDelta::hours(3)), "{name}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn all_or_none() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    bed.provider.kernel.refuse("f-17");
    assert_eq!(code(bed.engine.fork(&owner(), "a", fork(30, "f")).await), Some(Code::BadPath));
    assert_eq!(names(&bed).await?, ["a"]);
    assert!(bed.provider.kernel.snapshots().is_empty());
    assert_eq!(bed.provider.all().len(), 1, "none is left with the provider either");

    bed.create("g-2").await?;
    bed.provider.kernel.done();
    let taken = bed.engine.fork(&owner(), "a", fork(3, "g")).await.err().ok_or("a name was given twice")?;
    assert_eq!((taken.code, taken.detail.contains("g-2")), (Code::NameTaken, true));
    assert!(bed.provider.kernel.done().is_empty(), "nothing stood still for it");
    assert_eq!(names(&bed).await?, ["a", "g-2"]);

    bed.provider.kernel.fail("freeze", cannot);
    assert_eq!(code(bed.engine.fork(&owner(), "a", fork(2, "h")).await), Some(Code::NotEnforceable));
    assert_eq!(code(bed.engine.fork(&owner(), "a", fork(0, "h")).await), Some(Code::BadRequest));
    assert_eq!(code(bed.engine.fork(&owner(), "none", fork(1, "h")).await), Some(Code::UnknownSandbox));
    assert_eq!(names(&bed).await?, ["a", "g-2"]);
    Ok(())
}

#[tokio::test]
async fn what_a_crash_left_of_a_fork_is_removed() -> Tested {
    let mut bed = Bed::new().await?;
    let origin = bed.create("a").await?;
    // As far as a fork comes before it is told of.
    let handle = bed.engine.inner.handle("a").await?;
    let id = crate::ids::snapshot(crate::clock::now())?;
    let keep = Keep { name: id.to_string(), id, hidden: true, owner: "socket".into() };
    let moment = handle.ask(|reply| Verb::Keep(keep, reply)).await?;
    let from = moment.snapshot.id.clone();
    let request = CreateSandbox { name: Some("half".into()), ..CreateSandbox::default() };
    let new = create::plan(&owner(), request, moment.template, Some(from.clone()), None)?;
    let half = create::create(&bed.engine.inner, new, handle.provider.clone(), Instant::now()).await?.sandbox;
    drop(handle);
    bed.restart().await?;
    assert_eq!(names(&bed).await?, ["a"]);
    let gone = bed.engine.get(half.id.as_str()).await?;
    assert_eq!(gone.reason.map(|reason| reason.code).as_deref(), Some("interrupted"));
    assert!(bed.provider.get(&half.id).is_none());
    assert!(bed.provider.kernel.snapshots().is_empty());
    assert!(bed.engine.inner.store.snapshot(&from).await?.is_none());
    assert_eq!(bed.engine.get("a").await?.id, origin.id);
    Ok(())
}

//! Snapshots: taken of what stands still, kept apart from their origin, and made to agree after a crash.

use sandbar_api::{Code, CreateSandbox, CreateSnapshot, SandboxState, Snapshot, SnapshotId, WorkspaceSource};
use sandbar_provider::{Made, Mark, Provider as _};

use super::{
    Bed, Tested, code, exec, owner,
    script::kernel::{broken, cannot},
};

fn named(name: &str) -> CreateSnapshot {
    CreateSnapshot { name: Some(name.into()) }
}

fn from(name: &str, snapshot: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), from: Some(snapshot.into()), ..CreateSandbox::default() }
}

async fn take(bed: &Bed, sandbox: &str, name: &str) -> Result<Snapshot, sandbar_api::Problem> {
    bed.engine.snapshot(&owner(), sandbox, named(name)).await
}

#[tokio::test]
async fn one_outlives_its_origin_and_makes_sandboxes() -> Tested {
    let bed = Bed::new().await?;
    let origin = bed.create_of("origin", "ttl = \"1h\"").await?;
    let snapshot = take(&bed, "origin", "base").await?;
    assert_eq!((&snapshot.sandbox, snapshot.template.as_str(), snapshot.size), (&origin.id, "tested", 42));
    assert_eq!(bed.provider.kernel.done(), ["freeze", "snapshot", "thaw"]);
    bed.engine.exec("origin", exec(&["echo", "x"], None, 10)).await?;
    let nameless = bed.engine.snapshot(&owner(), "origin", CreateSnapshot::default()).await?;
    assert_eq!(nameless.name, format!("snap-{}", &nameless.id.as_str()[22..]));

    bed.engine.delete("origin").await?;
    std::fs::remove_file(bed.home.join("templates/tested.toml"))?;
    assert_eq!(bed.engine.snapshots().await?, [snapshot.clone(), nameless.clone()]);
    assert_eq!(bed.engine.snapshot_named("base").await?, snapshot);
    assert_eq!(bed.engine.snapshot_named(snapshot.id.as_str()).await?, snapshot);
    let made = bed.engine.create(&owner(), from("copy", "base"), None).await?.sandbox;
    assert_eq!((made.from.as_ref(), made.template.as_str()), (Some(&snapshot.id), "tested"));
    assert!(made.expires_at.is_some(), "the template is the one of then");
    assert_ne!(made.session, origin.session);
    assert_eq!(bed.engine.get("copy").await?.from, Some(snapshot.id.clone()));

    let other = CreateSandbox { template: Some("default".into()), ..from("b", "base") };
    assert_eq!(code(bed.engine.create(&owner(), other, None).await), Some(Code::BadRequest));
    let bound = CreateSandbox { workspace: WorkspaceSource::Bind { path: "/srv".into() }, ..from("b", "base") };
    assert_eq!(code(bed.engine.create(&owner(), bound, None).await), Some(Code::BadRequest));
    assert_eq!(code(bed.engine.create(&owner(), from("b", "none"), None).await), Some(Code::UnknownSnapshot));
    let same = CreateSandbox { template: Some("tested".into()), ..from("b", nameless.id.as_str()) };
    bed.engine.create(&owner(), same, None).await?;

    bed.engine.delete_snapshot("base").await?;
    bed.engine.delete_snapshot("base").await?;
    bed.engine.delete_snapshot(snapshot.id.as_str()).await?;
    assert_eq!(code(bed.engine.delete_snapshot("none").await), Some(Code::UnknownSnapshot));
    assert_eq!(code(bed.engine.snapshot_named("base").await), Some(Code::UnknownSnapshot));
    assert_eq!(code(bed.engine.create(&owner(), from("c", "base"), None).await), Some(Code::UnknownSnapshot));
    assert_eq!(bed.provider.kernel.snapshots(), [nameless.id]);
    assert_eq!(bed.engine.get("copy").await?.state, SandboxState::Ready);
    let events = bed.engine.events(0, 100, None).await?;
    let told = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!((told("snapshot.created"), told("snapshot.deleted")), (2, 1));
    Ok(())
}

#[tokio::test]
async fn what_stands_still_already_is_left_so() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    bed.engine.pause("a").await?;
    bed.provider.kernel.done();
    take(&bed, "a", "paused").await?;
    assert_eq!(bed.provider.kernel.done(), ["snapshot"]);
    assert_eq!(bed.state("a").await, Some(SandboxState::Paused));
    bed.engine.stop("a").await?;
    bed.provider.kernel.done();
    take(&bed, "a", "stopped").await?;
    assert_eq!(bed.provider.kernel.done(), ["snapshot"]);
    bed.engine.delete("a").await?;
    assert_eq!(code(take(&bed, "a", "gone").await), Some(Code::SandboxGone));
    Ok(())
}

#[tokio::test]
async fn one_that_fails_leaves_nothing_and_lets_the_sandbox_go_on() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let kernel = &bed.provider.kernel;
    kernel.fail("freeze", cannot);
    let refused = take(&bed, "a", "s").await.err().ok_or("it was taken")?;
    assert_eq!(refused.code, Code::NotEnforceable);
    assert!(refused.fix.contains("sandbar stop a"), "{}", refused.fix);
    kernel.mend("freeze");
    kernel.fail("snapshot", broken);
    assert_eq!(code(take(&bed, "a", "s").await), Some(Code::Internal));
    assert!(!kernel.is_still(&sandbox.id));
    bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?;
    kernel.mend("snapshot");
    assert!(bed.engine.snapshots().await?.is_empty());

    // What cannot be made to go on is called what it is, and its snapshot is not kept.
    kernel.fail("thaw", broken);
    assert_eq!(code(take(&bed, "a", "s").await), Some(Code::Internal));
    assert!(kernel.snapshots().is_empty());
    let stuck = bed.engine.get("a").await?;
    assert_eq!(stuck.state, SandboxState::Paused);
    assert_eq!(stuck.reason.map(|reason| reason.code).as_deref(), Some("thaw_failed"));
    kernel.mend("thaw");
    assert_eq!(bed.engine.resume("a").await?.state, SandboxState::Ready);
    bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?;
    take(&bed, "a", "s").await?;
    kernel.done();
    let taken = take(&bed, "a", "s").await.err().ok_or("it was taken twice")?;
    assert_eq!((taken.code, taken.detail.contains("snapshot")), (Code::NameTaken, true));
    assert!(kernel.done().is_empty(), "nothing stood still for it");
    for name in ["snp-a", "A", ""] {
        assert_eq!(code(take(&bed, "a", name).await), Some(Code::BadName), "{name}");
    }
    let workspace = WorkspaceSource::Bind { path: "/srv".into() };
    let request = CreateSandbox { name: Some("bound".into()), workspace, ..CreateSandbox::default() };
    bed.engine.create(&owner(), request, None).await?;
    assert_eq!(code(take(&bed, "bound", "t").await), Some(Code::WorkspaceBound));
    Ok(())
}

#[tokio::test]
async fn after_a_crash_store_and_provider_agree() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let (kept, lost) = (take(&bed, "a", "kept").await?, take(&bed, "a", "lost").await?);
    bed.engine.shutdown().await;
    let (begun, foreign) = (SnapshotId::from_parts(1, [1; 10]), SnapshotId::from_parts(1, [2; 10]));
    bed.provider.kernel.keep(&begun, &sandbox.id);
    bed.provider.kernel.keep(&foreign, &sandbox.id);
    bed.provider.mark(Made::Snapshot(&begun), &Mark::Begun(bed.engine.inner.origin())).await?;
    bed.provider.kernel.lose(&lost.id);
    bed.restart().await?;
    assert_eq!(bed.engine.snapshots().await?, std::slice::from_ref(&kept));
    let mut there = bed.provider.kernel.snapshots();
    there.sort_unstable();
    assert_eq!(there, [foreign.clone(), kept.id], "what was being taken is gone, what is nobody's stays");
    assert!(bed.provider.mark_of(foreign.as_str()).is_some_and(|mark| mark.is_quarantined()));
    let events = bed.engine.events(0, 100, None).await?;
    let told = events.iter().find(|event| event.kind == "snapshot.deleted").ok_or("it was not told")?;
    assert_eq!((&told.data["snapshot"], &told.data["reason"]["code"]), (&lost.id.as_str().into(), &"lost".into()));
    take(&bed, "a", "lost").await?;
    Ok(())
}

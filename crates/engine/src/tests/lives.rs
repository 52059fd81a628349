//! Random lives of sandboxes against a model of what must be so: after every step, and after whatever a server that
//! ends leaves. A failure names its seed, and the same seed runs it again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use sandbar_api::{Code, CreateSandbox, CreateSnapshot, Fork, Problem, SandboxState, SnapshotId};
use sandbar_provider::{Made, Mark, Provider as _};

use super::{Bed, Tested, code, exec, owner};
use crate::{ListQuery, store::suite::Dice};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SNAPSHOTS: [&str; 3] = ["s", "t", "u"];

#[derive(Debug, Default)]
struct Model {
    sandboxes: BTreeMap<String, SandboxState>,
    snapshots: BTreeSet<String>,
}

fn pick<'n>(dice: &mut Dice, names: &[&'n str]) -> &'n str {
    names[dice.roll(names.len() as u64) as usize]
}

fn echo() -> sandbar_api::ExecRequest {
    exec(&["echo", "x"], None, 10)
}

fn snapshot(name: &str) -> CreateSnapshot {
    CreateSnapshot { name: Some(name.into()) }
}

fn create(name: &str, from: Option<&str>) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), from: from.map(str::to_owned), ..CreateSandbox::default() }
}

/// What the model says of a verb that leads from some states to another.
fn lead(model: &mut Model, name: &str, from: &[SandboxState], to: SandboxState, unknown: Option<Code>) -> Option<Code> {
    match model.sandboxes.get_mut(name) {
        None => unknown,
        Some(state) if from.contains(state) => {
            *state = to;
            None
        }
        Some(_) => Some(Code::WrongState),
    }
}

/// One step of both; the engine has to answer what the model says.
async fn step(bed: &Bed, model: &mut Model, dice: &mut Dice) -> Result<String, Box<dyn std::error::Error>> {
    use SandboxState::{Failed, Paused, Ready, Stopped};
    let (name, kept) = (pick(dice, &NAMES), pick(dice, &SNAPSHOTS));
    let verb = dice.roll(11);
    let (did, got) = match verb {
        0 | 1 => ("create", code(bed.engine.create(&owner(), create(name, None), None).await)),
        2 => ("create from", code(bed.engine.create(&owner(), create(name, Some(kept)), None).await)),
        3 => ("exec", code(bed.engine.exec(name, echo()).await)),
        4 => ("pause", code(bed.engine.pause(name).await)),
        5 => ("resume", code(bed.engine.resume(name).await)),
        6 => ("stop", code(bed.engine.stop(name).await)),
        7 => ("start", code(bed.engine.start(name).await)),
        8 => ("snapshot", code(bed.engine.snapshot(&owner(), name, snapshot(kept)).await)),
        9 => ("delete snapshot", code(bed.engine.delete_snapshot(kept).await)),
        _ => ("delete", code(bed.engine.delete(name).await)),
    };
    // Of names that nothing has now: deleted once, or never given.
    let unknown = got.filter(|code| [Code::SandboxGone, Code::UnknownSandbox].contains(code)).or(Some(Code::Unknown));
    let want = match verb {
        2 if !model.snapshots.contains(kept) => Some(Code::UnknownSnapshot),
        0..=2 => match model.sandboxes.contains_key(name) {
            true => Some(Code::NameTaken),
            false => {
                model.sandboxes.insert(name.into(), Ready);
                None
            }
        },
        3 => lead(model, name, &[Ready], Ready, unknown),
        4 => lead(model, name, &[Ready, Paused], Paused, unknown),
        5 => lead(model, name, &[Ready, Paused], Ready, unknown),
        6 => lead(model, name, &[Ready, Paused, Stopped], Stopped, unknown),
        7 => lead(model, name, &[Ready, Stopped, Failed], Ready, unknown),
        8 => match model.sandboxes.get(name) {
            None => unknown,
            Some(Ready | Paused | Stopped) if model.snapshots.insert(kept.into()) => None,
            Some(Ready | Paused | Stopped) => Some(Code::NameTaken),
            Some(_) => Some(Code::WrongState),
        },
        // Deleting again is no error; what never was is unknown.
        9 if model.snapshots.remove(kept) => None,
        9 => got.filter(|code| *code == Code::UnknownSnapshot),
        _ if model.sandboxes.remove(name).is_some() => None,
        _ => got.filter(|code| *code == Code::UnknownSandbox),
    };
    let did = format!("{did} {name} {kept}");
    if got != want {
        return Err(format!("{did}: {got:?} instead of {want:?}").into());
    }
    Ok(did)
}

/// What only a server that ended halfway leaves behind; nothing of it is in the model.
async fn crash(bed: &mut Bed, dice: &mut Dice) -> Tested {
    bed.engine.shutdown().await;
    for (id, running) in bed.provider.all() {
        if running && dice.roll(2) == 0 {
            bed.provider.kernel.set_still(&id, dice.roll(2) == 0);
        }
    }
    let untold = SnapshotId::from_parts(dice.roll(1 << 40), [7; 10]);
    bed.provider.kernel.keep(&untold, &sandbar_api::SandboxId::from_parts(1, [1; 10]));
    bed.provider.mark(Made::Snapshot(&untold), &Mark::Begun(bed.engine.inner.origin())).await?;
    bed.restart().await
}

/// Store, provider and kernel say the same, and nothing is left of what is gone.
async fn agree(bed: &Bed) -> Result<Model, Box<dyn std::error::Error>> {
    let page = bed.engine.list(ListQuery { limit: Some(1000), ..ListQuery::default() }).await?;
    let mut found: BTreeMap<_, _> = bed.provider.all().into_iter().collect();
    let mut model = Model::default();
    for sandbox in page.sandboxes {
        let running = found.remove(&sandbox.id).ok_or_else(|| format!("{} is lost", sandbox.name))?;
        let alive = matches!(sandbox.state, SandboxState::Ready | SandboxState::Paused);
        assert_eq!(running, alive, "{} is {:?}", sandbox.name, sandbox.state);
        let still = bed.provider.kernel.is_still(&sandbox.id);
        assert!(!alive || still == (sandbox.state == SandboxState::Paused), "{} stands still: {still}", sandbox.name);
        assert_eq!(bed.engine.get(&sandbox.name).await?.state, sandbox.state);
        model.sandboxes.insert(sandbox.name, sandbox.state);
    }
    assert!(found.is_empty(), "nobody knows of {found:?}");
    let snapshots = bed.engine.snapshots().await?;
    let (kept, mine): (BTreeSet<_>, BTreeSet<_>) =
        (bed.provider.kernel.snapshots().into_iter().collect(), snapshots.iter().map(|one| one.id.clone()).collect());
    assert_eq!(kept, mine);
    model.snapshots = snapshots.into_iter().map(|one| one.name).collect();
    Ok(model)
}

#[tokio::test]
async fn random_lives_go_as_the_model_says() -> Tested {
    for seed in 0..8 {
        let mut bed = Bed::new().await?;
        bed.provider.pace.store(0, Ordering::Relaxed);
        let (mut model, mut dice, mut story) = (Model::default(), Dice(seed), vec![]);
        for round in 0..60 {
            let told =
                |error: &dyn std::fmt::Display, story: &[String]| format!("seed {seed}: {error} after {story:?}");
            if round % 20 == 19 {
                crash(&mut bed, &mut dice).await?;
                story.push("restart".into());
            } else {
                story.push(step(&bed, &mut model, &mut dice).await.map_err(|error| told(&error, &story))?);
            }
            let seen = agree(&bed).await.map_err(|error| told(&error, &story))?;
            assert_eq!(seen.sandboxes, model.sandboxes, "seed {seed}: {story:?}");
            assert_eq!(seen.snapshots, model.snapshots, "seed {seed}: {story:?}");
        }
    }
    Ok(())
}

/// What any of them may be told when all act at once.
fn is_expected(problem: &Problem) -> bool {
    let codes = [
        Code::WrongState,
        Code::NameTaken,
        Code::SandboxGone,
        Code::UnknownSandbox,
        Code::UnknownSnapshot,
        Code::GuestUnreachable,
        // A snapshot that somebody deleted while a sandbox was being made from it.
        Code::BadPath,
    ];
    codes.contains(&problem.code)
}

async fn act(bed: &Bed, dice: &mut Dice) -> Result<(), Problem> {
    let (name, kept) = (pick(dice, &NAMES), pick(dice, &SNAPSHOTS));
    let engine = &bed.engine;
    match dice.roll(11) {
        0 | 1 => engine.create(&owner(), create(name, None), None).await.map(drop),
        2 => engine.create(&owner(), create(name, Some(kept)), None).await.map(drop),
        3 => engine.exec(name, echo()).await.map(drop),
        4 => engine.pause(name).await.map(drop),
        5 => engine.resume(name).await.map(drop),
        6 => engine.stop(name).await.map(drop),
        7 => engine.start(name).await.map(drop),
        8 => engine.snapshot(&owner(), name, snapshot(kept)).await.map(drop),
        9 => engine.fork(&owner(), name, Fork { count: 2, ..Fork::default() }).await.map(drop),
        _ => match dice.roll(2) {
            0 => engine.delete(name).await,
            _ => engine.delete_snapshot(kept).await,
        },
    }
}

#[tokio::test]
async fn whatever_many_do_at_once_nothing_leaks() -> Tested {
    for seed in 0..4 {
        let mut bed = Bed::new().await?;
        bed.provider.pace.store(1, Ordering::Relaxed);
        let actors = (0..6).map(|actor| {
            let (bed, mut dice) = (&bed, Dice(seed * 100 + actor));
            async move {
                for _ in 0..25 {
                    match act(bed, &mut dice).await {
                        Err(problem) if !is_expected(&problem) => return Err(problem),
                        _ => {}
                    }
                }
                Ok(())
            }
        });
        for done in futures_util::future::join_all(actors).await {
            done.map_err(|problem| format!("seed {seed}: {:?} {problem}", problem.code))?;
        }
        let before = agree(&bed).await.map_err(|error| format!("seed {seed}: {error}"))?;
        crash(&mut bed, &mut Dice(seed)).await?;
        let after = agree(&bed).await.map_err(|error| format!("seed {seed}, after a restart: {error}"))?;
        assert_eq!((before.sandboxes, before.snapshots), (after.sandboxes, after.snapshots), "seed {seed}");
    }
    Ok(())
}

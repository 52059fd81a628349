//! Snapshots, sandboxes made from them, and what is bound late to one that was warm.

use sandbar_api::{HumanSize, Limits, SnapshotId, User, WorkspaceSource};
use sandbar_provider::{
    Error, Provider, Spec, cases,
    suite::{Case, Outcome, Subject, run, same},
};

use crate::{Home, is_root, made, needs_root, said, spec};

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = cases![
        a_snapshot_outlives_its_origin,
        an_operators_umask_is_not_felt_by_copies,
        layers_stack_and_go_in_any_order,
        a_running_sandbox_is_not_copied_unless_it_stands_still,
        a_warm_sandbox_takes_a_name_and_a_workspace,
    ];
    let root = cases![
        a_sandbox_with_a_disk_limit_is_copied_too,
        what_a_layer_carries_is_nobody_elses,
        a_trap_in_the_place_of_an_identity_is_stepped_over,
    ];
    cases.extend(root.into_iter().map(|case| Case { not_here: needs_root, ..case }));
    cases
}

fn snapshot(number: u8) -> SnapshotId {
    SnapshotId::from_parts(3, [number; 10])
}

/// Runs a script in a sandbox that exists, running or not.
async fn script(provider: &dyn Provider, spec: &Spec, script: &str) -> Result<String, String> {
    provider.start(spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    Ok(run(&guest, script).await?.output)
}

async fn ids(provider: &dyn Provider) -> Result<Vec<SnapshotId>, String> {
    Ok(provider.snapshots().await.map_err(said)?.into_iter().map(|found| found.id).collect())
}

async fn keep(provider: &dyn Provider, spec: &Spec, id: &SnapshotId) -> Outcome {
    provider.stop(&spec.id).await.map_err(said)?;
    provider.snapshot(&spec.id, id).await.map(drop).map_err(said)
}

const WRITE: &str = "cd /workspace; echo one > kept; mkdir -p d/e; echo two > d/e/f; ln -s kept link; chmod 0 d/e/f; \
                     echo rc > ~/rc; echo x > gone; echo ok";
const READ: &str = "cd /workspace; cat kept link ~/rc; stat -c '%a %u' d/e/f; ls -d gone 2>/dev/null";

async fn an_operators_umask_is_not_felt_by_copies(home: &Home) -> Outcome {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    a_snapshot_outlives_its_origin(home).await
}

async fn a_snapshot_outlives_its_origin(home: &Home) -> Outcome {
    let (provider, origin) = (home.open().await?, spec("origin"));
    provider.create(&origin).await.map_err(said)?;
    same("written", &script(&*provider, &origin, WRITE).await?.as_str(), &"ok\n")?;
    keep(&*provider, &origin, &snapshot(1)).await?;
    // What happens later is not in it.
    script(&*provider, &origin, "cd /workspace; rm gone; echo later > kept").await?;
    provider.destroy(&origin.id).await.map_err(said)?;
    let provider = home.open().await?;
    same("kept", &ids(&*provider).await?, &vec![snapshot(1)])?;
    let copies = [1, 2].map(|number| Spec { from: Some(snapshot(1)), ..spec(&format!("copy-{number}")) });
    for copy in &copies {
        provider.create(copy).await.map_err(said)?;
        same("a copy", &script(&*provider, copy, READ).await?.as_str(), &"one\none\nrc\n0 1000\ngone\n")?;
        script(&*provider, copy, "cd /workspace; rm -r d; echo mine > kept; echo mine > gone").await?;
    }
    let seen = script(&*provider, &copies[0], "cd /workspace; cat kept gone; ls").await?;
    same("a copy that was changed", &seen.as_str(), &"mine\nmine\ngone\nkept\nlink\n")?;
    // Given up while sandboxes stand on it: they go on, also after a start; nobody new stands on it.
    provider.discard(&snapshot(1)).await.map_err(said)?;
    same("given up", &provider.snapshots().await.map_err(said)?.len(), &0)?;
    provider.stop(&copies[0].id).await.map_err(said)?;
    same("standing on it", &script(&*provider, &copies[0], "cat /workspace/link").await?.as_str(), &"mine\n")?;
    match provider.create(&Spec { from: Some(snapshot(1)), ..spec("late") }).await {
        Err(Error::BadSpec { .. }) => {}
        other => return Err(format!("{other:?}")),
    }
    for copy in &copies {
        provider.destroy(&copy.id).await.map_err(said)?;
    }
    no_layers(home)
}

fn no_layers(home: &Home) -> Outcome {
    let layers = std::fs::read_dir(home.0.join("home/local/layers")).map_err(|error| error.to_string())?;
    same("layers left", &layers.count(), &0)
}

async fn layers_stack_and_go_in_any_order(home: &Home) -> Outcome {
    let provider = home.open().await?;
    let mut specs = vec![spec("layer-0")];
    for number in 1..=4_u8 {
        let below = &specs[usize::from(number) - 1];
        provider.create(below).await.map_err(said)?;
        let write = format!(
            "cd /workspace; echo {number} > f{number}; rm -f f{}; mkdir -p d; echo {number} >> d/all",
            number - 1
        );
        script(&*provider, below, &write).await?;
        keep(&*provider, below, &snapshot(number)).await?;
        specs.push(Spec { from: Some(snapshot(number)), ..spec(&format!("layer-{number}")) });
    }
    let top = &specs[4];
    provider.create(top).await.map_err(said)?;
    let seen = script(&*provider, top, "cd /workspace; ls; cat d/all; rm -r d; mkdir d; ls -A d").await?;
    same("at the top", &seen.as_str(), &"d\nf4\n1\n2\n3\n4\n")?;
    for number in [2, 4, 1, 3] {
        provider.discard(&snapshot(number)).await.map_err(said)?;
    }
    for number in [1, 0, 3, 2] {
        provider.destroy(&specs[number].id).await.map_err(said)?;
    }
    same("still standing", &script(&*provider, top, "ls /workspace").await?.as_str(), &"d\nf4\n")?;
    provider.destroy(&top.id).await.map_err(said)?;
    no_layers(home)
}

async fn a_running_sandbox_is_not_copied_unless_it_stands_still(home: &Home) -> Outcome {
    let (provider, origin) = (home.open().await?, spec("running"));
    provider.create(&origin).await.map_err(said)?;
    if provider.snapshot(&origin.id, &snapshot(9)).await.is_ok() {
        return Err("it was copied while it ran".into());
    }
    same("left behind", &provider.snapshots().await.map_err(said)?.len(), &0)?;
    match provider.freeze(&origin.id).await {
        Ok(()) => {
            provider.snapshot(&origin.id, &snapshot(9)).await.map_err(said)?;
            provider.thaw(&origin.id).await.map_err(said)?;
            same("alive", &script(&*provider, &origin, "echo yes").await?.as_str(), &"yes\n")?;
            provider.discard(&snapshot(9)).await.map_err(said)?;
        }
        Err(Error::NotEnforceable { .. }) if !is_root() => {}
        Err(error) => return Err(said(error)),
    }
    provider.destroy(&origin.id).await.map_err(said)?;
    no_layers(home)
}

async fn a_warm_sandbox_takes_a_name_and_a_workspace(home: &Home) -> Outcome {
    let (provider, warm) = (home.open().await?, spec("warm"));
    provider.create(&warm).await.map_err(said)?;
    let named = Spec { hostname: "claimed".into(), ..warm.clone() };
    provider.bind(&named).await.map_err(said)?;
    same("named", &script(&*provider, &named, "hostname; pwd").await?.as_str(), &"claimed\n/\n")?;
    provider.destroy(&warm.id).await.map_err(said)?;

    provider.create(&warm).await.map_err(said)?;
    let shared = home.0.join("late");
    std::fs::write(made(&shared)?.join("in"), "here\n").map_err(|error| error.to_string())?;
    let bind = WorkspaceSource::Bind { path: shared.to_string_lossy().into_owned() };
    let bound = Spec { workspace: bind, ..named };
    match provider.bind(&bound).await {
        Ok(()) => {
            let seen =
                script(&*provider, &bound, "cd /workspace; cat in; stat -c %u in; echo out > out; cat out").await?;
            same("bound", &seen.as_str(), &"here\n1000\nout\n")?;
            same("on the host", &shared.join("out").exists(), &true)?;
            provider.stop(&bound.id).await.map_err(said)?;
            same("after a start", &script(&*provider, &bound, "cat /workspace/out").await?.as_str(), &"out\n")?;
        }
        Err(Error::Declined { .. }) if !is_root() => {}
        Err(error) => return Err(said(error)),
    }
    provider.destroy(&warm.id).await.map_err(said)
}

/// Which directories have a range of uids below this home.
fn holders(home: &Home) -> Result<Vec<std::path::PathBuf>, String> {
    let place = home.0.canonicalize().map_err(|error| error.to_string())?;
    let slots = std::fs::read_dir("/run/sandbar/uids").map_err(|error| error.to_string())?.flatten();
    Ok(slots.filter_map(|slot| std::fs::read_link(slot.path()).ok()).filter(|to| to.starts_with(&place)).collect())
}

async fn what_a_layer_carries_is_nobody_elses(home: &Home) -> Outcome {
    let (provider, origin) = (home.open().await?, spec("carried"));
    provider.create(&origin).await.map_err(said)?;
    for number in [6, 7] {
        keep(&*provider, &origin, &snapshot(number)).await?;
    }
    provider.destroy(&origin.id).await.map_err(said)?;
    let by_layer = |number| move |path: &std::path::PathBuf| path.ends_with(snapshot(number).as_str());
    same("held by a layer", &holders(home)?.iter().filter(|path| by_layer(6)(path)).count(), &1)?;
    provider.discard(&snapshot(6)).await.map_err(said)?;
    same("by the next one", &holders(home)?.iter().filter(|path| by_layer(7)(path)).count(), &1)?;
    // A server that is started again finds it so.
    let provider = home.open().await?;
    same("after a restart", &holders(home)?.len(), &1)?;
    provider.discard(&snapshot(7)).await.map_err(said)?;
    same("by nobody", &holders(home)?.len(), &0)?;
    no_layers(home)
}

async fn a_trap_in_the_place_of_an_identity_is_stepped_over(home: &Home) -> Outcome {
    let provider = home.open().await?;
    let traps = [
        "mkfifo /etc/machine-id",
        "mkdir /etc/machine-id",
        "ln -s /workspace/x /etc/machine-id",
        "echo one > /etc/machine-id",
    ];
    for (number, trap) in traps.into_iter().enumerate() {
        let origin = Spec { user: User::Root, ..spec(&format!("trap-{number}")) };
        provider.create(&origin).await.map_err(said)?;
        script(&*provider, &origin, trap).await?;
        keep(&*provider, &origin, &snapshot(8)).await?;
        let copy = Spec { from: Some(snapshot(8)), user: User::Root, ..spec("trapped") };
        provider.create(&copy).await.map_err(said)?;
        let seen =
            script(&*provider, &copy, "test -f /etc/machine-id && wc -c < /etc/machine-id; ls /workspace").await?;
        same(trap, &seen.as_str(), &if number == 3 { "33\n" } else { "" })?;
        provider.destroy(&copy.id).await.map_err(said)?;
        provider.destroy(&origin.id).await.map_err(said)?;
        provider.discard(&snapshot(8)).await.map_err(said)?;
    }
    no_layers(home)
}

async fn a_sandbox_with_a_disk_limit_is_copied_too(home: &Home) -> Outcome {
    let limits = Limits { disk: Some(HumanSize(32 << 20)), ..Limits::default() };
    let (provider, origin) = (home.open().await?, Spec { limits: limits.clone(), ..spec("disk-origin") });
    provider.create(&origin).await.map_err(said)?;
    same("written", &script(&*provider, &origin, WRITE).await?.as_str(), &"ok\n")?;
    // While it runs, with what is only in memory so far.
    provider.freeze(&origin.id).await.map_err(said)?;
    provider.snapshot(&origin.id, &snapshot(5)).await.map_err(said)?;
    provider.thaw(&origin.id).await.map_err(said)?;
    provider.destroy(&origin.id).await.map_err(said)?;
    let copy = Spec { limits, from: Some(snapshot(5)), ..spec("disk-copy") };
    provider.create(&copy).await.map_err(said)?;
    same("a copy", &script(&*provider, &copy, READ).await?.as_str(), &"one\none\nrc\n0 1000\ngone\n")?;
    provider.destroy(&copy.id).await.map_err(said)?;
    provider.discard(&snapshot(5)).await.map_err(said)?;
    no_layers(home)
}

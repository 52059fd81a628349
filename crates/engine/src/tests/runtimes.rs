//! Runtimes of agent-sandbox: asked for whenever a sandbox is opened, with what its processes are to be told.

use std::{collections::BTreeMap, time::Duration};

use sandbar_api::{Code, CreateSandbox, CreateSnapshot, Problem, SandboxState};
use sandbar_guest::protocol::{Legacy, Sandboxd, ServeRequest};

use super::{
    Bed, Tested, code, exec, owner,
    script::dial::{OLD, TAKEN},
    soon,
};

const TEMPLATE: &str = "limits.wall_time = \"1m\"\nlimits.output = \"1MiB\"\n[env]\nA = \"template\"\nB = \"template\"\n\
    [runtimes.sandboxd]\ntoken = \"0123456789abcdef\"\n[runtimes.legacy]\nport = 8000\nroot = \"/app\"\ntimeout = \"5s\"\n";

async fn create(bed: &Bed, template: &str) -> Result<sandbar_api::Sandbox, Problem> {
    let written = std::fs::write(bed.home.join("templates/tested.toml"), template);
    written.map_err(|error| Problem::new(Code::Internal, error.to_string(), ""))?;
    let env = BTreeMap::from([("B".into(), "sandbox".into())]);
    let (name, template) = (Some("a".to_owned()), Some("tested".to_owned()));
    let request = CreateSandbox { name, template, env, ..CreateSandbox::default() };
    Ok(bed.engine.create(&owner(), request, None).await?.sandbox)
}

fn served(bed: &Bed, sandbox: &sandbar_api::Sandbox) -> Vec<ServeRequest> {
    bed.provider.get(&sandbox.id).map(|sandbox| sandbox.guest.served()).unwrap_or_default()
}

#[tokio::test]
async fn are_asked_for_with_what_every_process_is_told() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = create(&bed, TEMPLATE).await?;
    let wanted = ServeRequest {
        sandboxd: Some(Sandboxd {
            grpc_port: 9090,
            rest_port: 8080,
            root: "/workspace".into(),
            token: "0123456789abcdef".into(),
        }),
        legacy: Some(Legacy { port: 8000, root: "/app".into(), timeout_ms: 5000 }),
        env: [("A", "template"), ("B", "sandbox")].map(|(name, value)| (name.into(), value.into())).into(),
        timeout_ms: 60_000,
        max_output: 1 << 20,
    };
    let mut first = served(&bed, &sandbox);
    assert_eq!(first.len(), 1);
    // What the gate tells is below what the template and the sandbox say.
    if let Some(first) = first.first_mut() {
        first.env.retain(|name, _| ["A", "B"].contains(&name.as_str()));
    }
    assert_eq!(first, [wanted]);

    // A server that finds it again asks again.
    bed.restart().await?;
    soon(|| async { (served(&bed, &sandbox).len() == 2).then_some(()) }).await?;
    // Stopped, what they run is asked to end; started, it is served anew.
    let guest = bed.provider.get(&sandbox.id).ok_or("no guest")?.guest.clone();
    bed.engine.stop("a").await?;
    assert_eq!(guest.drained(), 1);
    bed.engine.start("a").await?;
    assert!(!served(&bed, &sandbox).is_empty());
    Ok(())
}

#[tokio::test]
async fn are_asked_of_warm_sandboxes_when_they_are_claimed() -> Tested {
    let bed = Bed::new().await?;
    std::fs::write(bed.home.join("templates/tested.toml"), TEMPLATE)?;
    bed.engine.set_pool("tested", 1).await?;
    let warm = || async { bed.engine.pools().await.ok()?.into_iter().find(|pool| pool.warm == 1).map(drop) };
    soon(warm).await?;
    let sandbox = create(&bed, TEMPLATE).await?;
    let asked = served(&bed, &sandbox);
    assert_eq!(asked.len(), 1, "not before somebody has it");
    assert_eq!(asked.first().and_then(|asked| asked.env.get("B")).map(String::as_str), Some("sandbox"));
    Ok(())
}

#[tokio::test]
async fn no_sandbox_is_ready_without_them() -> Tested {
    for (port, code, word) in [(TAKEN, Code::WrongState, "ports"), (OLD, Code::Internal, "Stop and start")] {
        let bed = Bed::new().await?;
        let template = format!("[runtimes.legacy]\nport = {port}\n");
        let refused = create(&bed, &template).await.err().ok_or("it is ready")?;
        assert_eq!(refused.code, code, "{refused}");
        assert!(refused.fix.contains(word), "{refused}");
        assert_ne!(bed.state("a").await, Some(SandboxState::Ready));
    }
    Ok(())
}

#[tokio::test]
async fn a_snapshot_waits_for_what_they_change_and_lets_them_change_nothing() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = create(&bed, TEMPLATE).await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no guest")?.guest.clone();
    let take = |name: &str| {
        let (engine, name) = (bed.engine.clone(), Some(name.to_owned()));
        tokio::spawn(async move { engine.snapshot(&owner(), "a", CreateSnapshot { name }).await.map(drop) })
    };
    let handle = bed.engine.inner.handle("a").await?;
    // What does not end refuses it, and everything goes on.
    let patience = &bed.engine.inner.patience;
    patience.wait_for_transfers(2);
    let change = guest.change_through_runtimes().ok_or("it is held")?;
    let refused = take("s").await?.err().ok_or("it was taken")?;
    assert!(refused.code == Code::WrongState && refused.detail.contains("transferred"), "{refused}");
    assert!(!handle.is_held());
    // What ends is waited for, and what is on its way to it gets in.
    patience.wait_for_transfers(60);
    let mut snapshot = take("s");
    let taken = tokio::time::timeout(Duration::from_millis(200), &mut snapshot).await;
    assert!(taken.is_err() && !handle.is_held() && bed.provider.kernel.done().is_empty());
    drop(change);
    snapshot.await??;
    soon(|| async { guest.change_through_runtimes().map(drop) }).await?;
    // Also of one that is paused.
    bed.engine.pause("a").await?;
    let change = guest.change_through_runtimes().ok_or("it is held")?;
    patience.wait_for_transfers(2);
    assert_eq!(code(take("paused").await?), Some(Code::WrongState));
    patience.wait_for_transfers(60);
    drop(change);
    take("paused").await??;
    // Who holds them lets go when the guest hears that the call is over.
    soon(|| async { guest.change_through_runtimes().map(drop) }).await?;
    Ok(())
}

#[tokio::test]
async fn whoever_waits_for_a_silent_command_keeps_idleness_away() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = create(&bed, &format!("[idle]\npause_after = \"300ms\"\n{}", "[runtimes.legacy]\n")).await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no guest")?.guest.clone();
    bed.provider.kernel.count(&sandbox.id, |counters| counters.cpu = Some(Duration::ZERO));
    guest.await_runtimes(1);
    // Wakes it, if a slow host let it be put away before somebody waited.
    bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert_eq!(bed.state("a").await, Some(SandboxState::Ready));
    guest.await_runtimes(0);
    bed.until("a", SandboxState::Paused).await?;
    Ok(())
}

#[tokio::test]
async fn are_not_asked_for_where_nobody_wants_them() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no guest")?.guest.clone();
    bed.engine.stop("a").await?;
    assert_eq!((guest.served().len(), guest.drained()), (0, 0));
    Ok(())
}

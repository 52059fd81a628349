//! A full disk: what writes fails and says so, what was there stays, and with room everything goes on.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use sandbar_api::{Code, CreateSandbox, ExecRequest, SandboxState, StartProcess};
use sandbar_client::Client;

use crate::support::{Outcome, Server, expect_clean};

/// A home on a small filesystem of its own.
struct Small {
    place: tempfile::TempDir,
}

impl Small {
    fn mount() -> Outcome<Option<Self>> {
        let place = tempfile::tempdir()?;
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m,mode=700", "none"])
            .arg(place.path())
            .output()?;
        if !mount.status.success() {
            // Not by the macro, whose words a test runner keeps to itself.
            sandbar_test_harness::not_run("a_full_disk_is_said_and_survived", "mounting a tmpfs needs root here");
            return Ok(None);
        }
        Ok(Some(Self { place }))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(self.place.path()).status();
    }
}

fn exec(script: &str) -> Outcome<ExecRequest> {
    Ok(serde_json::from_value(serde_json::json!({"argv": ["sh", "-c", script]}))?)
}

async fn refused<T: std::fmt::Debug>(what: &str, result: sandbar_client::Result<T>) -> Outcome {
    match result {
        Err(error) if error.code() == Some(Code::DiskFull) => Ok(()),
        other => Err(format!("{what} on a full disk: {other:?}").into()),
    }
}

#[tokio::test]
async fn a_full_disk_is_said_and_survived() -> Outcome {
    let Some(small) = Small::mount()? else { return Ok(()) };
    let home = small.place.path().join("home-on-a-small-disk");
    let mut server = Server::start_in(home.clone())?;
    let client: Client = server.client()?;
    let named = |name: &str| CreateSandbox { name: Some(name.into()), ..Default::default() };
    client.create(&named("first"), None).await?;
    assert_eq!(
        client.exec("first", &exec("touch kept-no-longer; echo kept > kept; cat kept")?).await?.stdout,
        "kept\n"
    );

    // Zeros would become a hole, which takes no room.
    let bytes = tokio::io::AsyncReadExt::take(tokio::io::repeat(b'x'), 64 << 20);
    refused("an upload", client.upload("first", "/workspace/big", None, bytes).await).await?;
    let listed = client.list_directory("first", "/workspace").await?;
    assert_eq!(
        listed.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(),
        ["kept", "kept-no-longer"],
        "half a file stayed"
    );

    // The workload fills what is left; the server cannot write either, and says so.
    let filled = client.exec("first", &exec("cat /dev/zero > filler; echo filled")?).await;
    if let Ok(filled) = &filled {
        assert!(filled.stdout.contains("filled"), "{filled:?}");
    }
    let mut refusals = 0;
    for number in 0..50 {
        match client.create(&named(&format!("more-{number}")), None).await {
            Err(error) => {
                assert_eq!(error.code(), Some(Code::DiskFull), "{error}");
                refusals += 1;
            }
            Ok(_) => client.delete(&format!("more-{number}")).await?,
        }
    }
    assert!(refusals > 0, "the disk was never full");

    // A server that is killed now starts again without any room, and what makes room works.
    server.kill()?;
    server.restart()?;
    let client: Client = server.client()?;
    assert_eq!(client.sandbox("first").await?.state, SandboxState::Ready);
    refused("a creation", client.create(&named("more"), None).await).await?;
    // What it ran for a moment is not said to have changed nothing.
    match client.exec("first", &exec("rm kept-no-longer")?).await {
        Err(error) if error.code() == Some(Code::DiskFull) => {
            assert!(!error.to_string().contains("nothing was changed"), "{error}");
        }
        other => return Err(format!("a command on a full disk: {other:?}").into()),
    }
    client.remove("first", "/workspace/filler", false).await?;
    client.create(&named("second"), None).await?;
    assert_eq!(client.exec("first", &exec("cat kept")?).await?.stdout, "kept\n");

    // One that takes every byte as soon as it is free is deleted all the same.
    let greedy = exec("while :; do cat /dev/zero >> filler; echo more; done 2>/dev/null")?;
    let greedy = StartProcess { argv: greedy.argv, ..StartProcess::default() };
    client.start_process("second", &greedy).await?;
    let started = Instant::now();
    while client.create(&named("third"), None).await.is_ok() {
        client.delete("third").await?;
        assert!(started.elapsed() < Duration::from_secs(20), "the disk was never full");
    }
    client.delete("second").await?;
    client.create(&named("second"), None).await?;
    // The log has no gap, and a restarted server agrees.
    server.kill()?;
    server.restart()?;
    let client: Client = server.client()?;
    let events = client.event_page(1, Some(1000), None).await?;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event.seq, number as u64 + 1, "a gap in the event log");
    }
    for name in ["first", "second"] {
        assert_eq!(client.exec(name, &exec("echo alive")?).await?.stdout, "alive\n");
        client.delete(name).await?;
    }
    server.kill()?;
    // By the home's name, because its mount is in every process's view.
    expect_clean(&home)
}

//! A sandbox on a cluster from its creation to its end, and what it declines to be.

use std::time::Duration;

use sandbar_api::{StartProcess, TerminalSize, attach::Control};
use sandbar_client::{AttachEvent, AttachOptions};
use tokio::time::timeout;

use crate::{
    kubernetes::place::{Place, Turn},
    support::{Outcome, text},
};

/// Terminal, files and processes, the same however the guest is reached.
fn live(place: &Place) -> Outcome {
    place.sandbar(&["create", "--name", "a", "-e", "WORD=sea"])?;
    assert_eq!(place.inside("a", "echo $WORD; id -u; pwd")?, "sea\n1000\n/workspace\n");
    let failed = place.tried(&["exec", "a", "--", "sh", "-c", "echo out; echo err >&2; exit 42"])?;
    assert_eq!((failed.code, failed.out.as_str(), failed.err.as_str()), (Some(42), "out\n", "err\n"));

    let files = tempfile::tempdir()?;
    let blob: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(files.path().join("blob"), &blob)?;
    let path = |name: &str| files.path().join(name).display().to_string();
    place.sandbar(&["cp", &path("blob"), "a:/workspace/deep/blob"])?;
    assert_eq!(place.inside("a", "wc -c < deep/blob; cp deep/blob ~/copy")?, "1200000\n");
    place.sandbar(&["cp", "a:/home/agent/copy", &path("back")])?;
    assert_eq!(std::fs::read(files.path().join("back"))?, blob);

    tokio::runtime::Runtime::new()?.block_on(typed(place))
}

/// Into a terminal, by somebody who watches it.
async fn typed(place: &Place) -> Outcome {
    let client = place.server.client()?;
    let size = TerminalSize { cols: 91, rows: 17 };
    let argv = ["sh", "-c", "stty size; read line; echo got $line; sleep 1000"].map(String::from).into();
    let shell = StartProcess { argv, terminal: Some(size), ..StartProcess::default() };
    let shell = client.start_process("a", &shell).await?.id.to_string();
    let watched = AttachOptions { from: Some(0), control: Control::Take, ..AttachOptions::default() };
    let mut attachment = client.attach("a", &shell, watched).await?;
    let typist = attachment.typist();
    typist.send("words\n").await?;
    let mut seen = String::new();
    while !(seen.contains("17 91") && seen.contains("got words")) {
        let event = timeout(Duration::from_secs(300), attachment.next()).await.map_err(|_| format!("only {seen:?}"))?;
        if let AttachEvent::Output { data, .. } = event.ok_or("it is over")?? {
            seen += &text(&data);
        }
    }
    Ok(())
}

#[test]
fn a_sandbox_lives_and_leaves_nothing() -> Outcome {
    let ephemeral = ("ephemeral", "[kubernetes]\nstorage = \"ephemeral\"\n");
    let Some(place) = Place::open("a_sandbox_lives_and_leaves_nothing", &[ephemeral])? else { return Ok(()) };
    live(&place)?;
    // What it held in its pod goes with it, what it kept stays.
    place.inside("a", "echo gone > /tmp/f; echo kept > /workspace/f; echo home > ~/f")?;
    place.sandbar(&["stop", "a"])?;
    assert_eq!(place.namespace()?.names("pods")?, [""; 0]);
    place.refused(&["exec", "a", "--", "true"], 125, "wrong_state", &["stopped", "sandbar start a"])?;
    place.sandbar(&["start", "a"])?;
    assert_eq!(
        place.inside("a", "cat /workspace/f ~/f; cat /tmp/f 2> /dev/null || wc -c < deep/blob")?,
        "kept\nhome\n1200000\n"
    );

    place.refused(&["pause", "a"], 1, "declined", &["kubernetes", "pause"])?;
    place.refused(&["snapshot", "a"], 1, "declined", &["kubernetes", "snapshot"])?;
    place.refused(&["fork", "a"], 1, "declined", &["kubernetes", "snapshot"])?;
    assert_eq!(place.inside("a", "echo alive")?, "alive\n");

    place.sandbar(&["create", "--name", "e", "--template", "ephemeral"])?;
    place.refused(&["stop", "e"], 1, "declined", &["would be lost", "persistent"])?;
    assert_eq!(place.inside("e", "echo alive > f; cat f")?, "alive\n");
    place.sandbar(&["rm", "a", "e"])?;
    place.expect_nothing_left()
}

#[test]
fn a_guest_is_reached_through_the_api_server() -> Outcome {
    let name = "a_guest_is_reached_through_the_api_server";
    let Some(mut place) = Place::with(name, Turn::shared, "reach = \"port_forward\"", |_| Ok(()))? else {
        return Ok(());
    };
    live(&place)?;
    place.server.kill()?;
    place.server.restart()?;
    assert_eq!(place.inside("a", "wc -c < deep/blob")?, "1200000\n");
    place.sandbar(&["stop", "a"])?;
    place.sandbar(&["start", "a"])?;
    assert_eq!(place.inside("a", "wc -c < deep/blob")?, "1200000\n");
    place.sandbar(&["rm", "a"])?;
    place.expect_nothing_left()
}

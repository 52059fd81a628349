//! Processes with a terminal.

use std::time::Duration;

use bytes::Bytes;
use sandbar_guest::protocol::{ResizeRequest, StartRequest, TerminalSize, WriteInputRequest};

use crate::support::{Guest, Outcome, code_of, until};

fn request(guest: &Guest, script: &str) -> StartRequest {
    guest.terminal("p", script)
}

async fn keys(guest: &Guest, keys: &'static [u8], eof: bool) -> Outcome {
    let data = Bytes::from_static(keys);
    let request = WriteInputRequest { process_id: "p".into(), offset: None, data, eof, ..WriteInputRequest::default() };
    guest.client.clone().write_input(request).await?;
    Ok(())
}

async fn resize(guest: &Guest, cols: u32, rows: u32) -> Result<Option<u64>, tonic::Status> {
    let request = ResizeRequest { process_id: "p".into(), size: Some(TerminalSize { cols, rows }) };
    guest.client.clone().resize(request).await.map(|reply| reply.into_inner().offset)
}

pub(crate) async fn is_a_terminal_of_its_size(guest: Guest) -> Outcome {
    let script = "stty size; echo TERM $TERM; test -t 0 && test -t 1 && test -t 2 && echo all; \
                  ps -o tty= -o stat= $$; echo err >&2; ls -ln $(tty)";
    let ended = guest.run(request(&guest, script)).await?;
    let text = ended.text();
    for part in ["33 91\r\n", "TERM xterm-256color\r\n", "all\r\n", "pts/", "s+", "err\r\n", "crw--w----"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert!(ended.stderr.is_empty());
    Ok(())
}

pub(crate) async fn resizes(guest: Guest) -> Outcome {
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done";
    guest.client.clone().start(request(&guest, script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("ready").await?;
    assert_eq!(code_of(resize(&guest, 0, 5).await), "bad_request");
    resize(&guest, 120, 40).await?;
    assert_eq!(follower.until_end().await?.text(), "ready\r\n40 120\r\n");
    assert_eq!(code_of(resize(&guest, 120, 40).await), "process_over");

    let guest = Guest::start().await?;
    guest.client.clone().start(guest.script("p", "exec sleep 1000")).await?;
    assert_eq!(code_of(resize(&guest, 120, 40).await), "no_terminal");
    Ok(())
}

pub(crate) async fn tells_from_where_its_size_holds(guest: Guest) -> Outcome {
    let script = "trap 'printf after; exit' WINCH; : > ready; while [ ! -e go ]; do sleep 0.01; done; printf before; \
                  : > printed; while :; do sleep 0.01; done";
    guest.client.clone().start(request(&guest, script)).await?;
    until("the trap", || guest.path("ready").exists()).await?;
    // The guest has not read what is printed when it is asked for the size.
    guest.freeze(true)?;
    std::fs::write(guest.path("go"), "")?;
    until("the output", || guest.path("printed").exists()).await?;
    let call = resize(&guest, 120, 40);
    tokio::pin!(call);
    let early = tokio::time::timeout(Duration::from_millis(20), &mut call).await;
    assert!(early.is_err(), "a frozen guest answered: {early:?}");
    guest.freeze(false)?;
    assert_eq!(call.await?, Some(6));
    assert_eq!(guest.follow("p", 0).await?.until_end().await?.text(), "beforeafter");
    Ok(())
}

pub(crate) async fn interrupts_and_ends_by_keys(guest: Guest) -> Outcome {
    guest.client.clone().start(request(&guest, "echo ready; exec sleep 1000")).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("ready").await?;
    keys(&guest, b"\x03", false).await?;
    let exit = follower.until_exit().await?;
    assert_eq!((exit.code, exit.signal), (130, 2));

    let guest = Guest::start().await?;
    guest.client.clone().start(request(&guest, "cat; echo over")).await?;
    keys(&guest, b"typed\n", true).await?;
    let ended = guest.follow("p", 0).await?.until_end().await?;
    assert_eq!((ended.text().as_str(), ended.code()), ("typed\r\ntyped\r\nover\r\n", Some(0)));
    Ok(())
}

pub(crate) async fn loses_no_output(guest: Guest) -> Outcome {
    // The shell becomes the writer, so the session ends with the last byte.
    let ended = guest.run(request(&guest, "exec seq 1 60000")).await?;
    let wanted: String = (1..=60_000).map(|line| format!("{line}\r\n")).collect();
    assert_eq!(ended.code(), Some(0));
    assert!(ended.text() == wanted, "{} bytes instead of {}", ended.stdout.len(), wanted.len());
    Ok(())
}

pub(crate) async fn may_be_left_and_opened_again(guest: Guest) -> Outcome {
    // Long enough apart for the guest to see a terminal that nobody has open.
    let script = "exec < /dev/null > /dev/null 2>&1; sleep 0.3; echo back > /dev/tty; sleep 0.3; echo again > /dev/tty";
    let ended = guest.run(request(&guest, script)).await?;
    assert_eq!((ended.text().as_str(), ended.code()), ("back\r\nagain\r\n", Some(0)));
    Ok(())
}

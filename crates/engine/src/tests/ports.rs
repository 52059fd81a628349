//! Connections to ports of scripted guests: whom they wake, what ends them, how many there are.

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use sandbar_api::{Code, SandboxState};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{
    Bed, Tested, code, exec,
    script::dial::{BREAKS, ECHO, OLD},
    soon,
};
use crate::{Dialled, ports::MOST};

async fn heard(dialled: &mut Dialled, wanted: &str) -> Tested {
    let mut buffer = vec![0; wanted.len()];
    timeout(Duration::from_secs(300), dialled.read_exact(&mut buffer)).await??;
    assert_eq!(String::from_utf8(buffer)?, wanted);
    Ok(())
}

/// How reading ends.
async fn ended(dialled: &mut Dialled) -> Result<Result<usize, ErrorKind>, Box<dyn std::error::Error>> {
    let mut rest = vec![];
    let read = timeout(Duration::from_secs(300), dialled.read_to_end(&mut rest)).await?;
    Ok(read.map_err(|error| error.kind()))
}

#[tokio::test]
async fn bytes_and_ends_pass_both_ways() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let mut dialled = bed.engine.dial("a", ECHO).await?;
    dialled.write_all(b"hello").await?;
    heard(&mut dialled, "hello").await?;
    dialled.write_all(b" again").await?;
    dialled.shutdown().await?;
    heard(&mut dialled, " again").await?;
    assert_eq!(ended(&mut dialled).await?, Ok(0));
    // And what broke inside does not look like an end.
    let mut broken = bed.engine.dial("a", BREAKS).await?;
    heard(&mut broken, "last words").await?;
    assert_eq!(ended(&mut broken).await?, Err(ErrorKind::ConnectionReset));
    Ok(())
}

#[tokio::test]
async fn refusals_say_why() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let refused = bed.engine.dial("a", 80).await.err().ok_or("it was open")?;
    assert_eq!(refused.code, Code::PortClosed);
    assert!(refused.fix.contains("127.0.0.1"), "{refused}");
    assert_eq!(code(bed.engine.dial("a", 0).await), Some(Code::BadRequest));
    let old = bed.engine.dial("a", OLD).await.err().ok_or("it was open")?;
    assert!(old.detail.contains("older version") && old.fix.contains("Stop and start"), "{old}");
    assert_eq!(code(bed.engine.dial("b", ECHO).await), Some(Code::UnknownSandbox));
    bed.engine.pause("a").await?;
    assert_eq!(code(bed.engine.dial("a", ECHO).await), Some(Code::WrongState));
    bed.engine.resume("a").await?;
    bed.engine.stop("a").await?;
    assert_eq!(code(bed.engine.dial("a", ECHO).await), Some(Code::WrongState));
    bed.engine.delete("a").await?;
    assert_eq!(code(bed.engine.dial("a", ECHO).await), Some(Code::SandboxGone));
    Ok(())
}

#[tokio::test]
async fn what_idleness_paused_is_woken_by_a_connection_and_by_its_bytes() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", "[idle]\npause_after = \"1500ms\"").await?;
    let done = |what: &str| bed.provider.kernel.done().iter().any(|verb| verb == what);
    bed.until("a", SandboxState::Paused).await?;
    done("");
    let mut dialled = bed.engine.dial("a", ECHO).await?;
    assert!(done("thaw"), "it was woken");
    // A connection on which nothing is said keeps nobody awake.
    bed.until("a", SandboxState::Paused).await?;
    done("");
    let (mut before, mut last) = (Instant::now(), Instant::now());
    dialled.write_all(b"x").await?;
    heard(&mut dialled, "x").await?;
    assert!(done("thaw"), "it was woken");
    // While bytes flow it is not idle, unless the host lets none flow.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        dialled.write_all(b"y").await?;
        heard(&mut dialled, "y").await?;
        assert!(!done("freeze") || before.elapsed() >= Duration::from_secs(1), "it is in use");
        (before, last) = (last, Instant::now());
    }
    Ok(())
}

#[tokio::test]
async fn with_what_a_person_paused_bytes_wait() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let mut dialled = bed.engine.dial("a", ECHO).await?;
    bed.engine.pause("a").await?;
    dialled.write_all(b"x").await?;
    // What serves the port here does not stand still, as a guest does not.
    assert!(timeout(Duration::from_millis(300), heard(&mut dialled, "x")).await.is_err(), "it was told");
    bed.engine.resume("a").await?;
    heard(&mut dialled, "x").await?;
    Ok(())
}

#[tokio::test]
async fn connections_end_with_the_sandbox_and_with_the_server() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let mut dialled = bed.engine.dial("a", ECHO).await?;
    bed.engine.stop("a").await?;
    assert_eq!(ended(&mut dialled).await?, Err(ErrorKind::ConnectionReset));
    bed.create("b").await?;
    let mut dialled = bed.engine.dial("b", ECHO).await?;
    timeout(Duration::from_secs(300), bed.engine.shutdown()).await?;
    assert_eq!(ended(&mut dialled).await?, Err(ErrorKind::ConnectionReset));
    Ok(())
}

#[tokio::test]
async fn there_are_so_many_and_no_more() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    bed.create("b").await?;
    let mut held = vec![];
    for _ in 0..MOST {
        held.push(bed.engine.dial("a", ECHO).await?);
    }
    assert_eq!(code(bed.engine.dial("a", ECHO).await), Some(Code::TooMany));
    bed.engine.dial("b", ECHO).await?;
    // Whoever leaves makes room, also without a word.
    held.pop();
    soon(|| async { bed.engine.dial("a", ECHO).await.ok() }).await?;
    Ok(())
}

#[tokio::test]
async fn bytes_that_nobody_reads_hold_up_nothing_else() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let mut stalled = vec![];
    for _ in 0..20 {
        let mut dialled = bed.engine.dial("a", ECHO).await?;
        let (block, mut taken) = (vec![7; 1 << 16], 0);
        while let Ok(written) = timeout(Duration::from_millis(100), dialled.write(&block)).await {
            taken += written?;
            assert!(taken < 8 << 20, "it is kept somewhere");
        }
        stalled.push(dialled);
    }
    let mut dialled = bed.engine.dial("a", ECHO).await?;
    dialled.write_all(b"hello").await?;
    heard(&mut dialled, "hello").await?;
    let ran = bed.engine.exec("a", exec(&["echo", "x"], None, 100));
    assert_eq!(timeout(Duration::from_secs(300), ran).await??.stdout, "x");
    Ok(())
}

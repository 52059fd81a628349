//! What the kernel tells of a terminal.

use std::time::{Duration, Instant};

use sandbar_guest::protocol::{LookReply, StartRequest};

use crate::support::{Guest, Outcome, code_of, not_run, pid_in, stat, until};

/// Looks until what it sees is as wanted.
async fn until_seen(guest: &Guest, what: &str, wanted: impl Fn(&LookReply) -> bool) -> Outcome<LookReply> {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let seen = guest.look().await?;
        if wanted(&seen) {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            return Err(format!("{what} was never seen, but {seen:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn sees_what_is_hidden(guest: Guest) -> Outcome {
    let script = "printf name:; read -r x; stty -echo; printf secret:; read -r y; stty raw; printf any; exec cat";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("name:").await?;
    let seen = guest.look().await?;
    assert!(seen.echo && seen.canonical && !seen.output_waits, "{seen:?}");
    assert_eq!((seen.output_end, seen.input_offset), (5, 0));
    assert_eq!(guest.keys(b"me\n").await?, 3);
    follower.until_text("secret:").await?;
    let seen = guest.look().await?;
    assert!(!seen.echo && seen.canonical, "{seen:?}");
    assert_eq!((seen.output_end, seen.input_offset), (5 + 4 + 7, 3));
    assert_eq!(guest.keys(b"hush\n").await?, 8);
    follower.until_text("any").await?;
    let seen = guest.look().await?;
    assert!(!seen.echo && !seen.canonical, "{seen:?}");
    Ok(())
}

pub(crate) async fn sees_who_works(guest: Guest) -> Outcome {
    let script = "echo $$ > pid; printf asks; read -r x; printf works; while [ ! -e go ]; do :; done";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("asks").await?;
    let reading = if guest.look().await?.reading.is_some() {
        until_seen(&guest, "the read", |seen| seen.reading == Some(true)).await?
    } else {
        not_run("look::sees_who_works: the read", "the kernel does not tell who reads")?;
        // It waits for nothing else.
        let pid = pid_in(&guest.path("pid")).await?;
        until("the read", || stat(pid).is_some_and(|(state, _)| state == 'S')).await?;
        guest.look().await?
    };
    let still = until_seen(&guest, "rest", |_| true).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let later = guest.look().await?;
    assert_eq!((still.cpu_us, later.cpu_us), (reading.cpu_us, reading.cpu_us), "it worked while it waited");
    guest.keys(b"\n").await?;
    follower.until_text("works").await?;
    let seen = until_seen(&guest, "work", |seen| seen.cpu_us >= reading.cpu_us + 50_000).await?;
    assert_ne!(seen.reading, Some(true));
    Ok(())
}

pub(crate) async fn sees_output_that_waits(guest: Guest) -> Outcome {
    let script = "seq 1 1000000; exec cat";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    // Nobody acknowledges, so the guest stops reading.
    let seen = until_seen(&guest, "output that waits", |seen| seen.output_waits && seen.output_end > 1_000_000).await?;
    assert!(seen.output_end < 1024 * 1024, "{seen:?}");
    Ok(())
}

pub(crate) async fn is_for_running_terminals(guest: Guest) -> Outcome {
    assert_eq!(code_of(guest.look().await), "unknown_process");
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", "exec cat") }).await?;
    assert_eq!(code_of(guest.look().await), "no_terminal");
    let guest = Guest::start().await?;
    guest.run(guest.terminal("p", "echo over")).await?;
    assert_eq!(code_of(guest.look().await), "process_over");
    Ok(())
}

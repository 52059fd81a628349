//! Numbered output: exact, bounded, resumable.

use std::fs;

use sandbar_guest::protocol::State;

use crate::support::{Follower, Guest, Outcome, code, is_alive, pid_in, until};

pub(crate) async fn is_exact(guest: Guest) -> Outcome {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do printf out$i; printf err$i >&2; done; printf '\\000\\377\\n'";
    let ended = guest.run(guest.script("p", script)).await?;
    assert_eq!(ended.stdout, b"out1out2out3out4out5out6out7out8out9\x00\xff\n");
    assert_eq!(ended.stderr, b"err1err2err3err4err5err6err7err8err9");
    let status = guest.status("p").await?.ok_or("no record")?;
    assert_eq!((status.output_end, status.state()), (75, State::Exited));
    Ok(())
}

const LINE: &[u8] = b"0123456789abcdef\n";

pub(crate) async fn waits_for_a_stalled_follower(guest: Guest) -> Outcome {
    let total = 100_000_000;
    let script = format!("yes 0123456789abcdef | head -c {total}; echo done > written");
    guest.client.clone().start(guest.script("chatty", &script)).await?;
    let mut follower = guest.follow("chatty", 0).await?;
    // Nothing is acknowledged until the guest has stopped reading.
    let mut end = 0;
    loop {
        let status = guest.status("chatty").await?.ok_or("no record")?;
        if status.output_end == end && end > 900_000 {
            break;
        }
        end = status.output_end;
        tokio::task::yield_now().await;
    }
    assert!(end <= 1024 * 1024 && !guest.path("written").exists());
    let mut seen = 0;
    loop {
        follower.ended.stdout.clear();
        if !follower.step().await? {
            break;
        }
        for byte in &follower.ended.stdout {
            assert_eq!(*byte, LINE[seen % LINE.len()]);
            seen += 1;
        }
        if let Err(error) = follower.confirm(follower.ended.offset).await {
            assert_eq!(seen, total, "{error}");
        }
    }
    assert_eq!((seen, follower.ended.exit.map(|exit| exit.code)), (total, Some(0)));
    let peak = guest.memory("VmHWM:")?;
    assert!(peak < 32 * 1024, "the guest used {peak} KiB");
    Ok(())
}

pub(crate) async fn holds_back_an_exit_whose_last_words_have_no_room(guest: Guest) -> Outcome {
    let script = "echo $$ > leader; exec head -c 1080000 /dev/zero";
    guest.client.clone().start(guest.script("p", script)).await?;
    let leader = pid_in(&guest.path("leader")).await?;
    until("the leader to end", || !is_alive(leader)).await?;
    assert_eq!(guest.status("p").await?.map(|status| status.state()), Some(State::Running));
    let ended = guest.follow("p", 0).await?.until_end().await?;
    assert_eq!((ended.stdout.len(), ended.code()), (1_080_000, Some(0)));
    Ok(())
}

pub(crate) async fn resumes_without_loss_or_repeat(guest: Guest) -> Outcome {
    let script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done";
    guest.client.clone().start(guest.script("p", script)).await?;
    let wanted: String = (0..3000).map(|line| format!("line {line}\n")).collect();
    let mut seen = Vec::new();
    let mut kept = 0;
    // Each connection is cut after one event; only half of what came is acknowledged, and the next one starts there.
    loop {
        let mut follower = Follower::open(guest.connect().await?, "p", kept).await?;
        if !follower.step().await? {
            break;
        }
        let came = follower.ended.stdout.len();
        let half = came.div_ceil(2);
        seen.extend_from_slice(&follower.ended.stdout[..half]);
        kept += half as u64;
        if follower.ended.exit.is_some() && came == 0 {
            break;
        }
        follower.confirm(kept).await?;
        until_start(&guest, kept).await?;
    }
    assert_eq!(String::from_utf8(seen)?, wanted);
    Ok(())
}

async fn until_start(guest: &Guest, offset: u64) -> Outcome {
    while guest.status("p").await?.is_some_and(|status| status.output_start < offset) {
        tokio::task::yield_now().await;
    }
    Ok(())
}

pub(crate) async fn refuses_offsets_it_does_not_have(guest: Guest) -> Outcome {
    guest.run(guest.script("p", "printf 0123456789")).await?;
    for (offset, wanted) in [(11, "offset_beyond"), (3, "output_dropped")] {
        let mut follower = guest.follow("p", offset).await?;
        let error = follower.events.message().await.err().ok_or("it was accepted")?;
        assert_eq!(code(&error), wanted);
    }
    let mut follower = guest.follow("p", 10).await?;
    assert_eq!(follower.until_exit().await?.code, 0);
    let mut follower = guest.follow("nobody", 0).await?;
    let error = follower.events.message().await.err().ok_or("it was accepted")?;
    assert_eq!(code(&error), "unknown_process");
    Ok(())
}

pub(crate) async fn serves_several_followers(guest: Guest) -> Outcome {
    let script = "while [ ! -e go ]; do sleep 0.01; done; seq 1 5000";
    guest.client.clone().start(guest.script("p", script)).await?;
    let mut stale = guest.follow("p", 0).await?;
    let mut fresh = guest.follow("p", 0).await?;
    fs::write(guest.path("go"), "")?;
    let wanted: String = (1..=5000).map(|line| format!("{line}\n")).collect();
    while stale.step().await? {}
    assert_eq!(stale.ended.text(), wanted);
    let ended = fresh.until_end().await?;
    assert_eq!((ended.text(), ended.code()), (wanted, Some(0)));
    Ok(())
}

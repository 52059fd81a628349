//! The life of a process: its output, its input, its end, and callers that give up on it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use sandbar_api::{Code, ExitReason, Process, StartProcess};

use super::{
    Bed, Tested, command, exec,
    script::{self, Script},
    soon,
};
use crate::{OutputItem, OutputReader};

fn guest(bed: &Bed, process: &Process) -> Result<Script, &'static str> {
    Ok(bed.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone())
}

async fn all(reader: &mut OutputReader, follow: bool) -> Result<(Vec<u8>, usize), sandbar_api::Problem> {
    let (mut bytes, mut exits) = (vec![], 0);
    while let Some(item) = reader.next(follow).await? {
        match item {
            OutputItem::Chunk(chunk) => bytes.extend(chunk.data),
            OutputItem::Exit(_) => exits += 1,
        }
    }
    Ok((bytes, exits))
}

#[tokio::test]
async fn times_are_kept_as_they_were_told() -> Tested {
    let bed = Bed::new().await?;
    let made = bed.create("a").await?;
    for time in [made.created_at, made.changed_at] {
        assert_eq!(time.timestamp_subsec_nanos() % 1000, 0, "{time}");
    }
    let started = bed.engine.start_process("a", command(&["echo", "x"])).await?;
    let kept = bed.engine.process("a", started.id.as_str()).await?;
    assert_eq!(kept.started_at, started.started_at);
    assert_eq!(started.started_at.timestamp_subsec_nanos() % 1000, 0);
    Ok(())
}

#[tokio::test]
async fn exec_returns_what_was_written_and_how_it_ended() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let result = bed.engine.exec("a", exec(&["echo", "hello"], None, 100)).await?;
    assert_eq!((result.stdout.as_str(), result.exit.code, result.truncated), ("hello", 0, false));
    let result = bed.engine.exec("a", exec(&["echo", "hello"], None, 4)).await?;
    assert_eq!((result.stdout.as_str(), result.truncated), ("hell", true));
    let input = "x".repeat(200_000);
    let result = bed.engine.exec("a", exec(&["cat"], Some(&input), 1 << 20)).await?;
    assert_eq!(result.stdout, input);
    let refused = bed.engine.exec("a", exec(&["nonsense"], None, 100)).await.map_err(|problem| problem.code);
    assert_eq!(refused.err(), Some(Code::CommandNotFound));
    let refused = bed.engine.exec("a", exec(&["echo", "x"], None, u64::MAX)).await.map_err(|problem| problem.code);
    assert_eq!(refused.err(), Some(Code::BadRequest));
    Ok(())
}

#[tokio::test]
async fn an_exec_that_is_dropped_kills_its_process() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let call = bed.engine.exec("a", exec(&["sleep"], None, 100));
    assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
    let ended = || async { bed.engine.processes("a").await.ok()?.into_iter().find_map(|process| process.exit) };
    assert_eq!(soon(ended).await?.reason, ExitReason::Killed);
    Ok(())
}

#[tokio::test]
async fn readers_get_every_byte_once_and_the_exit_once() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let process = bed.engine.start_process("a", command(&["sleep"])).await?;
    let (id, guest) = (process.id.as_str(), guest(&bed, &process)?);
    let mut follower = bed.engine.output("a", id, None).await?;
    let writer = async {
        for round in 0..20u8 {
            guest.write(id, &vec![round; 10_000]);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        guest.change(id, |play| play.exit = script::exit(3, 0, sandbar_guest::protocol::ExitReason::ByItself));
    };
    let (read, ()) = tokio::join!(all(&mut follower, true), writer);
    let want: Vec<u8> = (0..20u8).flat_map(|round| vec![round; 10_000]).collect();
    assert_eq!(read?, (want.clone(), 1));
    // The guest is told to forget only after everything is safe.
    let forgotten = || async { guest.play(id).is_none().then_some(()) };
    soon(forgotten).await?;
    let mut late = bed.engine.output("a", id, Some(199_999)).await?;
    assert_eq!(all(&mut late, true).await?, (vec![19], 1));
    let mut glance = bed.engine.output("a", id, Some(0)).await?;
    assert_eq!(all(&mut glance, false).await?, (want, 1));
    let beyond = bed.engine.output("a", id, Some(200_001)).await.map_err(|problem| problem.code);
    assert_eq!(beyond.err(), Some(Code::OffsetBeyond));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_done_to_a_process_says_why() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let code = |problem: sandbar_api::Problem| problem.code;
    let process = bed.engine.start_process("a", command(&["echo", "x"])).await?;
    let id = process.id.as_str();
    let over = || async { bed.engine.process("a", id).await.ok()?.exit };
    soon(over).await?;
    let over =
        || async { (bed.engine.signal("a", id, "TERM").await.map_err(code) == Err(Code::ProcessOver)).then_some(()) };
    soon(over).await?;
    assert_eq!(bed.engine.signal("a", id, "NOPE").await.map_err(code), Err(Code::BadRequest));
    let unknown = bed.engine.signal("a", "prc-00000000000000000000000000", "TERM").await;
    assert_eq!(unknown.map_err(code), Err(Code::UnknownProcess));
    let endless = StartProcess { timeout: Some("0s".parse()?), ..command(&["sleep"]) };
    assert_eq!(bed.engine.start_process("a", endless).await.map_err(code).err(), Some(Code::BadDuration));
    let outside = StartProcess { cwd: Some("/..".into()), ..command(&["sleep"]) };
    assert_eq!(bed.engine.start_process("a", outside).await.map_err(code).err(), Some(Code::PathOutside));
    Ok(())
}

#[tokio::test]
async fn what_a_process_left_behind_can_be_killed() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let process = bed.engine.start_process("a", command(&["echo", "x"])).await?;
    let (id, guest) = (process.id.as_str(), guest(&bed, &process)?);
    let forgotten = || async { guest.play(id).is_none().then_some(()) };
    soon(forgotten).await?;
    guest.leave_behind(id);
    let code = |problem: sandbar_api::Problem| problem.code;
    let gone =
        || async { (bed.engine.signal("a", id, "TERM").await.map_err(code) == Err(Code::ProcessOver)).then_some(()) };
    soon(gone).await?;
    bed.engine.signal("a", id, "KILL").await?;
    assert_eq!(bed.engine.signal("a", id, "KILL").await.map_err(code), Err(Code::ProcessOver));
    guest.leave_behind(id);
    bed.engine.stop("a").await?;
    assert_eq!(bed.engine.signal("a", id, "KILL").await.map_err(code), Err(Code::ProcessOver));
    Ok(())
}

#[tokio::test]
async fn a_guest_that_refuses_an_upload_does_not_wait_for_its_end() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let endless = Box::pin(stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Some((Ok(Bytes::from_static(&[0; 1024])), ()))
    }));
    let refused = bed.engine.write_file("a", "big", None, endless).await.map_err(|problem| problem.code);
    assert_eq!(refused, Err(Code::DiskFull));
    Ok(())
}

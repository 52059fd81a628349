//! Answers to what a terminal shows: typed once, or not at all when it shows something else.

use std::{
    fs,
    time::{Duration, Instant},
};

use bytes::Bytes;
use sandbar_guest::protocol::{
    AnswerOutcome, LookReply, ReleaseAnswerRequest, StageAnswerRequest, StartRequest, WriteInputRequest,
};
use tonic::Status;

use crate::support::{Guest, Outcome, code_of, until};

async fn stage(guest: &Guest, id: &str, seen: &LookReply, keys: &[u8]) -> Result<AnswerOutcome, Status> {
    let request = StageAnswerRequest {
        process_id: "p".into(),
        answer_id: id.into(),
        output_offset: seen.output_end,
        input_offset: seen.input_offset,
        keys: Bytes::copy_from_slice(keys),
        unseen: id.starts_with("unseen"),
    };
    guest.client.clone().stage_answer(request).await.map(|reply| reply.into_inner().outcome())
}

async fn release(guest: &Guest, id: &str) -> Result<AnswerOutcome, Status> {
    let request = ReleaseAnswerRequest { process_id: "p".into(), answer_id: id.into() };
    guest.client.clone().release_answer(request).await.map(|reply| reply.into_inner().outcome())
}

/// Asks, and reads nothing until told to.
const DEAF: &str = "stty raw -echo; printf Sure?; while [ ! -e go ]; do sleep 0.01; done; exec cat > taken";

pub(crate) async fn are_typed_once(guest: Guest) -> Outcome {
    let script = "printf 'Sure? '; read -r x; echo got $x; read -r y; echo then $y";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Sure? ").await?;
    let seen = guest.look().await?;
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::UnknownAnswer);
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::Staged);
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::Staged);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::Typed);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::Typed);
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::Typed);
    follower.until_text("got y").await?;
    assert_eq!(guest.look().await?.input_offset, 2);
    assert_eq!(guest.keys(b"z\n").await?, 4);
    follower.until_exit().await?;
    // A server that died before it was told asks again, however long after.
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::Typed);
    assert_eq!(code_of(release(&guest, "b").await), "process_over");
    assert_eq!(code_of(stage(&guest, "b", &seen, b"y\n").await), "process_over");
    let ended = follower.until_end().await?;
    assert_eq!(ended.text(), "Sure? y\r\ngot y\r\nz\r\nthen z\r\n");
    Ok(())
}

pub(crate) async fn are_not_typed_after_output(guest: Guest) -> Outcome {
    let script =
        "printf 'Sure? '; while [ ! -e go ]; do sleep 0.01; done; printf 'Delete all? '; read -r x; echo got $x";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Sure? ").await?;
    let seen = guest.look().await?;
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::Staged);
    fs::write(guest.path("go"), "")?;
    follower.until_text("Delete all? ").await?;
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::MovedOn);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::MovedOn);
    assert_eq!(stage(&guest, "b", &seen, b"y\n").await?, AnswerOutcome::MovedOn);
    assert_eq!(release(&guest, "b").await?, AnswerOutcome::UnknownAnswer);
    // The same answer for what is shown now.
    let seen = guest.look().await?;
    assert_eq!((seen.input_offset, stage(&guest, "b", &seen, b"n\n").await?), (0, AnswerOutcome::Staged));
    assert_eq!(release(&guest, "b").await?, AnswerOutcome::Typed);
    let ended = follower.until_end().await?;
    assert_eq!(ended.text(), "Sure? Delete all? n\r\ngot n\r\n");
    Ok(())
}

pub(crate) async fn are_not_typed_after_output_that_nobody_has_read(guest: Guest) -> Outcome {
    let script = "printf 'Sure? '; while [ ! -e go ]; do sleep 0.01; done; printf 'Delete all? '; : > printed; \
                  read -r x; echo got $x";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Sure? ").await?;
    let seen = guest.look().await?;
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::Staged);
    // When the guest comes to itself, both the output and the call are there.
    guest.freeze(true)?;
    fs::write(guest.path("go"), "")?;
    until("the output", || guest.path("printed").exists()).await?;
    let call = release(&guest, "a");
    tokio::pin!(call);
    let early = tokio::time::timeout(Duration::from_millis(20), &mut call).await;
    assert!(early.is_err(), "a frozen guest answered: {early:?}");
    guest.freeze(false)?;
    assert_eq!(call.await?, AnswerOutcome::MovedOn);
    guest.keys(b"n\n").await?;
    assert_eq!(follower.until_end().await?.text(), "Sure? Delete all? n\r\ngot n\r\n");
    Ok(())
}

pub(crate) async fn are_not_typed_while_output_waits(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", "seq 1 1000000; read -r x; echo got $x")).await?;
    // Nobody acknowledges, so the guest stops reading, and the offset tells nothing of what follows it.
    let (mut seen, mut before) = (guest.look().await?, 0);
    while !seen.output_waits || seen.output_end < 1_000_000 || seen.output_end != before {
        before = seen.output_end;
        seen = guest.look().await?;
    }
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::MovedOn);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::UnknownAnswer);
    Ok(())
}

pub(crate) async fn are_not_typed_where_nothing_is_taken(guest: Guest) -> Outcome {
    let script = "stty raw -echo; printf %1000s Sure?; while [ ! -e go ]; do sleep 0.01; done; exec cat > taken";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    guest.follow("p", 0).await?.until_text("Sure?").await?;
    // Fills the terminal without a trace in the offsets.
    for question in 1..=500 {
        let (answers_output, data) = (Some(question), Bytes::from_static(&[b'r'; 97]));
        guest.write(WriteInputRequest { answers_output, data, ..WriteInputRequest::default() }).await?;
    }
    assert_eq!(stage(&guest, "a", &guest.look().await?, b"y").await?, AnswerOutcome::Staged);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::MovedOn);
    fs::write(guest.path("go"), "")?;
    assert_eq!(guest.keys(b".").await?, 1);
    let taken = || fs::read(guest.path("taken")).unwrap_or_default();
    until("what was typed", || taken().ends_with(b".")).await?;
    assert!(!taken().contains(&b'y'), "it was typed later");
    Ok(())
}

pub(crate) async fn are_not_typed_after_input(guest: Guest) -> Outcome {
    // Nothing of what is typed shows.
    let script =
        "stty -echo; printf 'Sure? '; read -r x; while [ ! -e go ]; do sleep 0.01; done; read -r y; echo got $x $y";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Sure? ").await?;
    let before = guest.look().await?;
    assert_eq!(stage(&guest, "a", &before, b"y\n").await?, AnswerOutcome::Staged);
    guest.write(WriteInputRequest { eof: true, ..WriteInputRequest::default() }).await?;
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::MovedOn);
    let after = guest.look().await?;
    assert_eq!((after.output_end, after.input_offset), (before.output_end, before.input_offset));
    assert_eq!(stage(&guest, "b", &after, b"y\n").await?, AnswerOutcome::Staged);
    let typed =
        WriteInputRequest { writer: "w".into(), data: Bytes::from_static(b"n"), ..WriteInputRequest::default() };
    assert_eq!(guest.write(typed).await?, 1);
    assert_eq!(release(&guest, "b").await?, AnswerOutcome::MovedOn);
    assert_eq!(stage(&guest, "c", &after, b"y\n").await?, AnswerOutcome::MovedOn);
    fs::write(guest.path("go"), "")?;
    guest.keys(b"o\n").await?;
    assert_eq!(follower.until_end().await?.text(), "Sure? got no\r\n");
    Ok(())
}

pub(crate) async fn do_not_wait_behind_what_nobody_reads(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", DEAF)).await?;
    guest.follow("p", 0).await?.until_text("Sure?").await?;
    assert_eq!(stage(&guest, "a", &guest.look().await?, b"y").await?, AnswerOutcome::Staged);
    let typed = vec![b'x'; 100_000];
    let call = guest.keys(&typed);
    let meanwhile = async {
        while guest.look().await?.input_offset == 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        assert_eq!(release(&guest, "a").await?, AnswerOutcome::MovedOn);
        // Also one that was given for exactly this state: what is being typed comes first.
        let (mut seen, mut before) = (guest.look().await?, 0);
        while seen.input_offset != before {
            before = seen.input_offset;
            seen = guest.look().await?;
        }
        assert_eq!(stage(&guest, "b", &seen, b"y").await?, AnswerOutcome::Staged);
        assert_eq!(release(&guest, "b").await?, AnswerOutcome::MovedOn);
        assert!(start.elapsed().as_secs() < 20, "it waited behind what nobody reads");
        Outcome::Ok(fs::write(guest.path("go"), "")?)
    };
    let (offset, meanwhile) = tokio::join!(call, meanwhile);
    meanwhile?;
    assert_eq!(offset?, 100_000);
    assert_eq!(release(&guest, "b").await?, AnswerOutcome::MovedOn);
    guest.keys(b".").await?;
    let wanted = [typed.as_slice(), b"."].concat();
    until("what was typed", || fs::read(guest.path("taken")).is_ok_and(|taken| taken == wanted)).await
}

pub(crate) async fn are_typed_whole(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", DEAF)).await?;
    guest.follow("p", 0).await?.until_text("Sure?").await?;
    let keys: Vec<u8> = (0..64 * 1024_u32).map(|place| b'a' + u8::try_from(place % 23).unwrap_or(0)).collect();
    assert_eq!(stage(&guest, "a", &guest.look().await?, &keys).await?, AnswerOutcome::Staged);
    // More than a terminal takes at once.
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::Typed);
    let taken = guest.look().await?.input_offset;
    assert!(taken > 0 && taken < keys.len() as u64, "{taken}");
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::Typed);
    fs::write(guest.path("go"), "")?;
    // By itself, and before what is typed later.
    until("the rest", || fs::read(guest.path("taken")).is_ok_and(|taken| taken == keys)).await?;
    assert_eq!(guest.keys(b".").await?, keys.len() as u64 + 1);
    let wanted = [keys.as_slice(), b"."].concat();
    until("what was typed", || fs::read(guest.path("taken")).is_ok_and(|taken| taken == wanted)).await
}

pub(crate) async fn replace_each_other(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", "printf 'Sure? '; read -r x; echo got $x")).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Sure? ").await?;
    let seen = guest.look().await?;
    assert_eq!(stage(&guest, "a", &seen, b"y\n").await?, AnswerOutcome::Staged);
    assert_eq!(code_of(stage(&guest, "a", &seen, b"n\n").await), "wrong_state");
    assert_eq!(stage(&guest, "b", &seen, b"b\n").await?, AnswerOutcome::Staged);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::UnknownAnswer);
    assert_eq!(release(&guest, "b").await?, AnswerOutcome::Typed);
    assert_eq!(follower.until_end().await?.text(), "Sure? b\r\ngot b\r\n");
    Ok(())
}

pub(crate) async fn have_bounds(guest: Guest) -> Outcome {
    let script = "stty -echo; printf 'Sure? '; read -r x; echo ${#x}";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Sure? ").await?;
    let seen = guest.look().await?;
    assert_eq!(code_of(stage(&guest, "a", &seen, &vec![b'x'; 1024 * 1024]).await), "too_large");
    // The kernel would drop the end of a longer line.
    let line = |letters| [vec![b'x'; letters], b"\r".to_vec()].concat();
    assert_eq!(code_of(stage(&guest, "a", &seen, &line(4096)).await), "too_large");
    assert_eq!(code_of(stage(&guest, "a", &seen, b"").await), "bad_request");
    assert_eq!(code_of(stage(&guest, "", &seen, b"y").await), "bad_request");
    assert_eq!(stage(&guest, "a", &seen, &line(4095)).await?, AnswerOutcome::Staged);
    assert_eq!(release(&guest, "a").await?, AnswerOutcome::Typed);
    follower.until_text("4095").await?;
    let guest = Guest::start().await?;
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", "exec cat") }).await?;
    assert_eq!(code_of(stage(&guest, "a", &seen, b"y").await), "no_terminal");
    assert_eq!(code_of(release(&guest, "a").await), "no_terminal");
    Ok(())
}

/// Reads pieces as they come and says where each ends, up to Enter.
const PIECES: &str = "stty raw -echo; printf 'Pick\\r\\n'; while :; do \
                      piece=$(dd bs=64 count=1 2>/dev/null | od -An -c | tr -d ' \\n'); printf '<%s>' \"$piece\"; \
                      case $piece in *r) exit;; esac; done";

/// A program that shows what is typed after all gets no password.
pub(crate) async fn unseen_ones_are_not_typed_where_they_would_be_shown(guest: Guest) -> Outcome {
    let script = "stty -echo; printf 'Password: '; while [ ! -e go ]; do sleep 0.01; done; stty echo; touch shown; \
                  while [ ! -e end ]; do sleep 0.01; done";
    guest.client.clone().start(guest.terminal("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Password: ").await?;
    let seen = guest.look().await?;
    assert_eq!(stage(&guest, "unseen", &seen, b"hunter2\r").await?, AnswerOutcome::Staged);
    fs::write(guest.path("go"), "")?;
    until("the terminal echoes", || guest.path("shown").exists()).await?;
    assert_eq!(release(&guest, "unseen").await?, AnswerOutcome::MovedOn);
    fs::write(guest.path("end"), "")?;
    assert_eq!(follower.until_end().await?.text(), "Password: ");
    Ok(())
}

pub(crate) async fn are_typed_key_by_key_to_whom_reads_keys(_: Guest) -> Outcome {
    // On a busy machine it may show nothing of a key in the moment that is waited for it, but not each time.
    let mut shown = String::new();
    for _ in 0..5 {
        shown = pieces_of(&Guest::start().await?).await?;
        if shown.ends_with("<033[B><033[B><\\r>") {
            return Ok(());
        }
    }
    Err(shown.into())
}

/// What a program that reads keys shows of an answer with three of them.
async fn pieces_of(guest: &Guest) -> Outcome<String> {
    guest.client.clone().start(guest.terminal("p", PIECES)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Pick").await?;
    // `stty` came before what is shown.
    let seen = guest.look().await?;
    assert!(!seen.canonical && !seen.output_waits);
    assert_eq!(stage(guest, "a", &seen, b"\x1b[B\x1b[B\r").await?, AnswerOutcome::Staged);
    assert_eq!(release(guest, "a").await?, AnswerOutcome::Typed);
    Ok(follower.until_end().await?.text())
}

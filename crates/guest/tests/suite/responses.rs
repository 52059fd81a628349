//! What the terminal itself says when programs ask it something.

use std::{fs, time::Instant};

use bytes::Bytes;
use sandbar_guest::protocol::{StartRequest, WriteInputRequest};
use tonic::Status;

use crate::support::{Guest, Outcome, code_of, until};

async fn respond(guest: &Guest, question: u64, data: &[u8]) -> Result<u64, Status> {
    let data = Bytes::copy_from_slice(data);
    guest.write(WriteInputRequest { answers_output: Some(question), data, ..WriteInputRequest::default() }).await
}

/// Asks, and reads nothing until told to.
const DEAF: &str = "stty raw -echo; printf %1000s ready; while [ ! -e go ]; do sleep 0.01; done; exec cat > taken";

pub(crate) async fn are_typed_once_and_count_nowhere(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", "stty raw -echo; printf Q; exec cat")).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("Q").await?;
    assert_eq!(code_of(respond(&guest, 2, b"?").await), "offset_beyond");
    assert_eq!(respond(&guest, 1, b"R").await?, 0);
    assert_eq!(respond(&guest, 1, b"R").await?, 0);
    follower.until_text("QR").await?;
    assert_eq!(guest.keys(b"x").await?, 1);
    follower.until_text("QRx").await?;
    assert_eq!(respond(&guest, 3, b"S").await?, 1);
    assert_eq!(respond(&guest, 2, b"late").await?, 1);
    assert_eq!(respond(&guest, 3, b"again").await?, 1);
    assert_eq!(guest.keys(b".").await?, 2);
    follower.until_text(".").await?;
    assert_eq!(follower.ended.text(), "QRxS.");
    let both = WriteInputRequest { answers_output: Some(4), eof: true, ..WriteInputRequest::default() };
    assert_eq!(code_of(guest.write(both).await), "bad_request");
    Ok(())
}

pub(crate) async fn are_dropped_when_nobody_reads(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", DEAF)).await?;
    guest.follow("p", 0).await?.until_text("ready").await?;
    let typed = vec![b'x'; 100_000];
    let call = guest.keys(&typed);
    let meanwhile = async {
        while guest.look().await?.input_offset == 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        respond(&guest, 1, b"R").await?;
        assert!(start.elapsed().as_secs() < 60, "a response nobody reads was waited for");
        Outcome::Ok(fs::write(guest.path("go"), "")?)
    };
    let (typed_offset, meanwhile) = tokio::join!(call, meanwhile);
    meanwhile?;
    assert_eq!(typed_offset?, 100_000);
    until("what was typed", || fs::read(guest.path("taken")).is_ok_and(|taken| taken == typed)).await
}

pub(crate) async fn are_never_typed_by_halves(guest: Guest) -> Outcome {
    const LENGTH: usize = 97;
    guest.client.clone().start(guest.terminal("p", DEAF)).await?;
    guest.follow("p", 0).await?.until_text("ready").await?;
    for question in 1..=1000 {
        assert_eq!(respond(&guest, question, &[b'r'; LENGTH]).await?, 0);
    }
    fs::write(guest.path("go"), "")?;
    assert_eq!(guest.keys(b"END").await?, 3);
    let taken = || fs::read(guest.path("taken")).unwrap_or_default();
    until("what was typed", || taken().ends_with(b"END")).await?;
    let taken = taken().len() - 3;
    assert!(taken > 0 && taken < 1000 * LENGTH && taken.is_multiple_of(LENGTH), "{taken} bytes");
    Ok(())
}

pub(crate) async fn are_for_terminals(guest: Guest) -> Outcome {
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", "printf Q; exec cat") }).await?;
    assert_eq!(code_of(respond(&guest, 0, b"R").await), "no_terminal");
    Ok(())
}

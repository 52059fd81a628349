//! Several who type into one process: each has offsets of its own, and a repeat types nothing twice.

use std::fs;

use bytes::Bytes;
use sandbar_guest::protocol::{StartRequest, WriteInputRequest};
use tonic::Status;

use crate::support::{Guest, Outcome, code_of, until};

async fn write(guest: &Guest, writer: &str, offset: Option<u64>, data: &[u8], eof: bool) -> Result<u64, Status> {
    let data = Bytes::copy_from_slice(data);
    guest.write(WriteInputRequest { writer: writer.into(), offset, data, eof, ..WriteInputRequest::default() }).await
}

async fn total(guest: &Guest) -> Outcome<u64> {
    Ok(guest.status("p").await?.ok_or("no record")?.input_offset)
}

pub(crate) async fn count_alone(guest: Guest) -> Outcome {
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", "cat") }).await?;
    assert_eq!(write(&guest, "a", Some(0), b"aa", false).await?, 2);
    assert_eq!(write(&guest, "b", Some(0), b"b", false).await?, 1);
    assert_eq!(write(&guest, "a", Some(0), b"aa", false).await?, 2);
    assert_eq!(write(&guest, "", Some(3), b"x", false).await?, 4);
    assert_eq!(write(&guest, "a", Some(1), b"aA", false).await?, 3);
    assert_eq!(write(&guest, "b", None, b"B", false).await?, 2);
    assert_eq!(code_of(write(&guest, "b", Some(3), b"?", false).await), "offset_beyond");
    assert_eq!(write(&guest, "", Some(3), b"x", false).await?, 6);
    assert_eq!(total(&guest).await?, 6);
    assert_eq!(write(&guest, "a", Some(3), b"", true).await?, 3);
    let ended = guest.follow("p", 0).await?.until_end().await?;
    assert_eq!((ended.text().as_str(), ended.code()), ("aabxAB", Some(0)));
    Ok(())
}

pub(crate) async fn resume_where_they_were_cut_off(guest: Guest) -> Outcome {
    let script = "while [ ! -e go ]; do sleep 0.01; done; cat > taken";
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", script) }).await?;
    assert_eq!(guest.keys(b"before ").await?, 7);
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    {
        let call = write(&guest, "a", Some(0), &data, false);
        tokio::pin!(call);
        loop {
            let taken = tokio::select! {
                answer = &mut call => return Err(format!("it did not wait: {answer:?}").into()),
                taken = total(&guest) => taken?,
            };
            if taken > 7 {
                break;
            }
        }
    }
    fs::write(guest.path("go"), "")?;
    assert_eq!(write(&guest, "b", Some(0), b" between ", false).await?, 9);
    assert_eq!(write(&guest, "a", Some(0), &data, false).await?, data.len() as u64);
    write(&guest, "a", None, b" after", true).await?;
    guest.follow("p", 0).await?.until_exit().await?;
    let wanted = [b"before ", data.as_slice(), b" between ", b" after"].concat();
    assert!(fs::read(guest.path("taken"))? == wanted, "bytes were lost or repeated");
    Ok(())
}

pub(crate) async fn end_once(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.terminal("p", "stty -echo; cat; echo one; cat; echo two")).await?;
    let mut follower = guest.follow("p", 0).await?;
    until_quiet(&guest).await?;
    assert_eq!(write(&guest, "a", Some(0), b"x\n", true).await?, 2);
    follower.until_text("one").await?;
    assert_eq!(write(&guest, "b", Some(0), b"y\n", false).await?, 2);
    // Would end the second reader, which then would not see what b types.
    assert_eq!(write(&guest, "a", Some(0), b"x\n", true).await?, 2);
    assert_eq!(write(&guest, "b", Some(2), b"z\n", true).await?, 4);
    let ended = follower.until_end().await?;
    assert_eq!(ended.text(), "x\r\none\r\ny\r\nz\r\ntwo\r\n");
    Ok(())
}

async fn until_quiet(guest: &Guest) -> Outcome {
    while guest.look().await?.echo {
        tokio::task::yield_now().await;
    }
    Ok(())
}

pub(crate) async fn are_forgotten(guest: Guest) -> Outcome {
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", "cat > taken") }).await?;
    for writer in 0..33 {
        assert_eq!(write(&guest, &format!("w{writer}"), Some(0), b"x", false).await?, 1);
    }
    assert_eq!(code_of(write(&guest, "w0", Some(1), b"y", false).await), "offset_beyond");
    assert_eq!(write(&guest, "w1", Some(0), b"x", false).await?, 1);
    assert_eq!(write(&guest, "w0", Some(0), b"y", false).await?, 1);
    assert_eq!(code_of(write(&guest, &"w".repeat(65), None, b"y", false).await), "bad_request");
    assert_eq!(total(&guest).await?, 34);
    until("the bytes", || {
        fs::read(guest.path("taken")).is_ok_and(|taken| taken == [[b'x'; 33].as_slice(), b"y"].concat())
    })
    .await
}

//! Standard input: in order, each byte once, never more than the process takes.

use std::fs;

use bytes::Bytes;
use sandbar_guest::protocol::{StartRequest, WriteInputRequest};
use tonic::Status;

use crate::support::{Guest, Outcome, code_of};

async fn write(guest: &Guest, offset: Option<u64>, data: &[u8], eof: bool) -> Result<u64, Status> {
    let data = Bytes::copy_from_slice(data);
    let request = WriteInputRequest { process_id: "p".into(), offset, data, eof, ..WriteInputRequest::default() };
    guest.client.clone().write_input(request).await.map(|reply| reply.into_inner().offset)
}

pub(crate) async fn types_each_byte_once(guest: Guest) -> Outcome {
    let request = StartRequest { stdin: true, ..guest.script("p", "cat") };
    guest.client.clone().start(request).await?;
    assert_eq!(write(&guest, Some(0), b"hello ", false).await?, 6);
    assert_eq!(write(&guest, Some(0), b"hello ", false).await?, 6);
    assert_eq!(write(&guest, Some(3), b"lo world", false).await?, 11);
    assert_eq!(code_of(write(&guest, Some(12), b"x", false).await), "offset_beyond");
    assert_eq!(write(&guest, None, b"!", true).await?, 12);
    // The last call again, as after a lost answer.
    let repeat = write(&guest, Some(11), b"!", true).await;
    assert!(matches!(code_of(repeat).as_str(), "ok" | "process_over"));
    let ended = guest.follow("p", 0).await?.until_end().await?;
    assert_eq!((ended.text().as_str(), ended.code()), ("hello world!", Some(0)));
    assert_eq!(guest.status("p").await?.map(|status| status.input_offset), Some(12));
    Ok(())
}

pub(crate) async fn counts_what_was_taken_when_the_caller_leaves(guest: Guest) -> Outcome {
    let script = "while [ ! -e go ]; do sleep 0.01; done; cat > taken";
    let request = StartRequest { stdin: true, ..guest.script("p", script) };
    guest.client.clone().start(request).await?;
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    // Nobody reads, so the pipe's capacity is taken and the call waits until its caller gives up.
    let taken = {
        let call = write(&guest, Some(0), &data, true);
        tokio::pin!(call);
        loop {
            let status = tokio::select! {
                answer = &mut call => return Err(format!("it did not wait: {answer:?}").into()),
                status = guest.status("p") => status?.ok_or("no record")?,
            };
            if status.input_offset > 0 {
                break status.input_offset;
            }
        }
    };
    assert!(taken < data.len() as u64, "{taken}");
    fs::write(guest.path("go"), "")?;
    let repeat = write(&guest, Some(0), &data, true).await;
    assert!(matches!(code_of(repeat).as_str(), "ok" | "process_over"));
    guest.follow("p", 0).await?.until_exit().await?;
    assert!(fs::read(guest.path("taken"))? == data, "bytes were lost or repeated");
    Ok(())
}

pub(crate) async fn is_refused_when_nobody_reads_it(guest: Guest) -> Outcome {
    guest.client.clone().start(guest.script("p", "cat; while [ ! -e go ]; do sleep 0.01; done")).await?;
    assert_eq!(code_of(write(&guest, None, b"x", false).await), "no_stdin");
    fs::write(guest.path("go"), "")?;
    guest.follow("p", 0).await?.until_exit().await?;

    let guest = Guest::start().await?;
    let script = "cat > /dev/null; while [ ! -e go ]; do sleep 0.01; done";
    guest.client.clone().start(StartRequest { stdin: true, ..guest.script("p", script) }).await?;
    write(&guest, None, b"x", true).await?;
    assert_eq!(code_of(write(&guest, None, b"y", false).await), "no_stdin");
    assert_eq!(code_of(write(&guest, Some(0), b"x", true).await), "ok");
    fs::write(guest.path("go"), "")?;
    guest.follow("p", 0).await?.until_exit().await?;
    assert_eq!(code_of(write(&guest, None, b"y", false).await), "process_over");
    Ok(())
}

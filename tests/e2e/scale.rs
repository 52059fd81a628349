//! Many sandboxes, large files, chatty commands: success, exactness and flat memory.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _};
use sandbar_api::{CreateSandbox, ExecRequest, StartProcess};
use sandbar_client::{Client, OutputItem, SandboxQuery};
use sandbar_test_harness::endurance;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::support::{Outcome, Server, expect_clean};

const AT_ONCE: usize = 20;
const MEBIBYTE: u64 = 1 << 20;
/// What transfers may add to the server's resident memory, whatever their size.
const FLAT_KIB: u64 = 48 * 1024;

async fn echo(client: &Client, sandbox: &str, word: &str) -> Outcome<String> {
    let request: ExecRequest = serde_json::from_value(serde_json::json!({"argv": ["echo", word]}))?;
    Ok(client.exec(sandbox, &request).await?.stdout)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_alive_at_once() -> Outcome {
    let sandboxes = endurance(60, 200);
    let mut server = Server::start()?;
    let client = server.client()?;
    let limit = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut creating = tokio::task::JoinSet::new();
    for number in 0..sandboxes {
        let (client, limit) = (client.clone(), limit.clone());
        creating.spawn(async move {
            let _permit = limit.acquire().await?;
            let request = CreateSandbox { name: Some(format!("many-{number}")), ..Default::default() };
            client.create(&request, None).await?;
            Outcome::Ok(())
        });
    }
    while let Some(created) = creating.join_next().await {
        created??;
    }
    let names: Vec<_> = client.sandboxes(SandboxQuery::default()).map_ok(|sandbox| sandbox.name).try_collect().await?;
    assert_eq!(names.len(), sandboxes);
    let mut working = tokio::task::JoinSet::new();
    for name in names {
        let (client, limit) = (client.clone(), limit.clone());
        working.spawn(async move {
            let _permit = limit.acquire().await?;
            assert_eq!(echo(&client, &name, &name).await?, format!("{name}\n"));
            client.delete(&name).await?;
            Outcome::Ok(())
        });
    }
    while let Some(worked) = working.join_next().await {
        worked??;
    }
    server.kill()?;
    expect_clean(server.home.path())
}

/// A reader of bytes that are cheap to make and never repeat within reach.
fn noise(length: u64) -> impl AsyncRead + Unpin + Send + 'static {
    let mut block = vec![0u8; 1 << 20];
    let mut state = 0x1234_5678_9abc_def1u64;
    for byte in &mut block {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    let stream = futures_util::stream::iter((0..length >> 20).map(move |number| {
        block[..8].copy_from_slice(&number.to_le_bytes());
        std::io::Result::Ok(bytes::Bytes::copy_from_slice(&block))
    }));
    tokio_util::io::StreamReader::new(stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_goes_up_and_down_in_flat_memory() -> Outcome {
    let size = endurance(256, 1024) * MEBIBYTE;
    let server = Server::start()?;
    let client = server.client()?;
    client.create(&CreateSandbox { name: Some("big".into()), ..Default::default() }, None).await?;
    assert_eq!(echo(&client, "big", "warm").await?, "warm\n");
    let idle = server.resident()?;

    client.upload("big", "/workspace/big", None, noise(size)).await?;
    let after_upload = server.resident()?;
    let download = client.download("big", "/workspace/big", 0).await?;
    assert_eq!(download.size, size);
    let mut theirs = Sha256::new();
    let mut bytes = std::pin::pin!(download.bytes);
    while let Some(piece) = bytes.try_next().await? {
        theirs.update(&piece);
    }
    let after_download = server.resident()?;

    let mut ours = Sha256::new();
    let mut source = noise(size);
    let mut piece = vec![0; 1 << 16];
    loop {
        match source.read(&mut piece).await? {
            0 => break,
            length => ours.update(&piece[..length]),
        }
    }
    assert_eq!(theirs.finalize(), ours.finalize());
    eprintln!("server resident: {idle} KiB idle, {after_upload} after upload, {after_download} after download");
    assert!(
        after_upload.max(after_download) < idle + FLAT_KIB,
        "memory follows the file: {idle} → {after_download} KiB"
    );
    client.delete("big").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_every_byte_of_a_chatty_command() -> Outcome {
    const BYTES: u64 = 100_000_000;
    let server = Server::start()?;
    let client = server.client()?;
    client.create(&CreateSandbox { name: Some("chatty".into()), ..Default::default() }, None).await?;
    let idle = server.resident()?;
    let script = format!("seq 1 100000000 | head -c {BYTES}");
    let request = StartProcess { argv: ["sh", "-c", &script].map(String::from).into(), ..Default::default() };
    let process = client.start_process("chatty", &request).await?;
    let mut output = std::pin::pin!(client.output("chatty", process.id.as_str(), Some(0), true));
    let (mut seen, mut digest, mut largest) = (0u64, Sha256::new(), 0);
    let mut pauses = 0;
    while let Some(item) = output.next().await {
        let OutputItem::Chunk(chunk) = item? else { break };
        assert_eq!(chunk.offset, seen, "a byte is missing or came twice");
        seen += chunk.data.len() as u64;
        digest.update(&chunk.data);
        // Slow for the first megabytes, so that the command is far ahead; then as fast as it goes.
        if pauses < 40 {
            pauses += 1;
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        if seen % (8 << 20) < chunk.data.len() as u64 {
            largest = largest.max(server.resident()?);
        }
    }
    assert_eq!(seen, BYTES);
    let want = std::process::Command::new("sh").args(["-c", &format!("{script} | sha256sum")]).output()?;
    let got: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(String::from_utf8_lossy(&want.stdout).split_whitespace().next(), Some(got.as_str()));
    eprintln!("server resident: {idle} KiB idle, at most {largest} while streaming");
    assert!(largest < idle + FLAT_KIB, "memory follows the output: {idle} → {largest} KiB");
    client.delete("chatty").await?;
    Ok(())
}

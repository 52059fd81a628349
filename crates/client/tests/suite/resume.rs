//! Streams against a server that breaks every connection somewhere: nothing may be missing, nothing may come twice.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt as _;
use sandbar_api::{Code, OutputChunk, Stream};
use sandbar_client::{Client, Error, OutputItem, Patience};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const QUICK: Patience =
    Patience { first: Duration::from_millis(1), longest: Duration::from_millis(4), total: Duration::from_secs(300) };

/// xorshift: reproducible, and no dependency for a test.
struct Random(u64);
impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

struct Request {
    target: String,
    body: Vec<u8>,
}

impl Request {
    fn number(&self, name: &str) -> Option<u64> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    }
}

async fn read_request(stream: &mut BufReader<UnixStream>) -> io::Result<Option<Request>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { target: first.split(' ').nth(1).unwrap_or_default().to_owned(), body }))
}

/// Answers each request with the bytes the script returns, then breaks the connection.
fn serve(
    socket: &Path,
    mut script: impl FnMut(Request) -> Vec<u8> + Send + 'static,
) -> io::Result<tokio::task::JoinHandle<io::Result<()>>> {
    let listener = UnixListener::bind(socket)?;
    Ok(tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await?;
            let mut stream = BufReader::new(stream);
            if let Some(request) = read_request(&mut stream).await? {
                let answer = script(request);
                // The client may have gone already; that is its right.
                let _ = stream.get_mut().write_all(&answer).await;
            }
        }
    }))
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn piece(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn process(end: usize) -> serde_json::Value {
    serde_json::json!({
        "id": "prc-00000000000000000000000000", "sandbox": "sbx-00000000000000000000000000", "argv": ["x"],
        "cwd": "/", "terminal": false, "state": "exited", "exit": {"code": 7, "reason": "exited"},
        "started_at": "2026-01-01T00:00:00Z", "output": {"start": 0, "end": end}
    })
}

fn output_answer(data: &[u8], from: usize, size: usize) -> String {
    let mut answer = HEAD.to_owned() + &piece(": hello\n\n");
    for (at, part) in data[from..].chunks(size).enumerate() {
        let chunk = OutputChunk { offset: (from + at * size) as u64, stream: Stream::Stdout, data: part.to_vec() };
        let json = serde_json::to_string(&chunk).unwrap_or_default();
        answer += &piece(&format!("event: output\nid: {}\ndata: {json}\n\n", chunk.offset as usize + part.len()));
    }
    answer += &piece(&format!("event: exit\ndata: {}\n\n", process(data.len())));
    answer + "0\r\n\r\n"
}

#[tokio::test]
async fn output_of_a_server_that_breaks_anywhere_is_exact() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let data: Arc<Vec<u8>> = Arc::new((0..20_000u32).flat_map(u32::to_le_bytes).collect());
    let mut random = Random(42);
    let mut connections = 0;
    let served = data.clone();
    let server = serve(&socket, move |request| {
        connections += 1;
        let from = request.number("from").unwrap_or(0) as usize;
        let mut answer = output_answer(&served, from, 1 + random.below(700)).into_bytes();
        // Now and then it ends early but properly, as a server that is shut down with care does.
        if connections % 7 == 0 {
            let text = String::from_utf8_lossy(&answer).into_owned();
            let events: Vec<&str> = text.split_inclusive("\n\n\r\n").collect();
            let early = events[..events.len().min(3)].concat();
            return if early.contains("event: exit") { answer } else { (early + "0\r\n\r\n").into_bytes() };
        }
        answer.truncate(HEAD.len() + random.below(answer.len().min(9000)));
        answer
    })?;
    let client = Client::unix(&socket)?.with_patience(QUICK);
    // The first connection of a client that was never answered must succeed, so let it be answered once.
    let _ = client.health().await;

    let mut got = Vec::new();
    let mut exits = 0;
    let mut items = std::pin::pin!(client.output("box", "prc", None, true));
    while let Some(item) = items.next().await {
        match item? {
            OutputItem::Chunk(chunk) => {
                assert_eq!(chunk.offset, got.len() as u64);
                got.extend_from_slice(&chunk.data);
            }
            OutputItem::Exit(process) => {
                exits += 1;
                assert_eq!(process.exit.map(|exit| exit.code), Some(7));
            }
        }
    }
    assert!(got == *data, "{} bytes of {}", got.len(), data.len());
    assert_eq!(exits, 1);
    server.abort();
    Ok(())
}

#[tokio::test]
async fn events_of_a_server_that_breaks_anywhere_are_exact() -> Outcome {
    const LAST: u64 = 500;
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let mut random = Random(7);
    let server = serve(&socket, move |request| {
        let from = request.number("from").unwrap_or(1);
        let mut answer = HEAD.to_owned();
        for seq in from..=LAST {
            let event =
                serde_json::json!({"seq": seq, "at": "2026-01-01T00:00:00Z", "type": "sandbox.ready", "data": {}});
            answer += &piece(&format!("id: {seq}\nevent: sandbox.ready\ndata: {event}\n\n"));
        }
        let mut answer = answer.into_bytes();
        answer.truncate(HEAD.len() + random.below(3000));
        answer
    })?;
    let client = Client::unix(&socket)?.with_patience(QUICK);
    let _ = client.health().await;
    let events: Vec<_> = client.events(Some(1), None).take(LAST as usize).collect().await;
    for (at, event) in events.into_iter().enumerate() {
        assert_eq!(event?.seq, at as u64 + 1);
    }
    server.abort();
    Ok(())
}

#[tokio::test]
async fn input_is_typed_once_though_answers_are_lost() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let typed = Arc::new(Mutex::new((Vec::new(), false)));
    let mut random = Random(3);
    let state = typed.clone();
    let server = serve(&socket, move |request| {
        let mut state = state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let offset = request.number("offset").unwrap_or(0) as usize;
        // As the guest does: what was taken before is skipped.
        let seen = state.0.len() - offset;
        if seen < request.body.len() {
            state.0.extend_from_slice(&request.body[seen..]);
        }
        state.1 |= request.target.contains("eof=true");
        if random.below(3) > 0 {
            return Vec::new();
        }
        let body = format!("{{\"offset\":{}}}", state.0.len());
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })?;
    let client = Client::unix(&socket)?.with_patience(QUICK);
    let _ = client.health().await;
    let data: Vec<u8> = (0..1_500_000u32).map(|n| (n % 251) as u8).collect();
    let sent = client.forward_stdin("box", "prc", &data[..]).await?;
    assert_eq!(sent, data.len() as u64);
    let typed = typed.lock().map_err(|_| "poisoned")?;
    assert!(typed.0 == data && typed.1);
    server.abort();
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once() -> Outcome {
    let directory = tempfile::tempdir()?;
    let client = Client::unix(directory.path().join("nobody"))?;
    let error = client.sandbox("box").await.err().ok_or("answered")?;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.fix().is_some_and(|fix| fix.contains("sandbar up")));
    let first = std::pin::pin!(client.output("box", "prc", None, true)).next().await;
    assert!(matches!(first, Some(Err(Error::Unreachable { .. }))));
    Ok(())
}

#[tokio::test]
async fn problems_foreign_answers_and_local_failures_are_told_apart() -> Outcome {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let server = serve(&socket, |request| {
        let body = if request.target.ends_with("/known") {
            let problem = sandbar_api::Problem::new(Code::UnknownSandbox, "There is no `known`.", "Look at the list.");
            serde_json::to_string(&problem).unwrap_or_default()
        } else {
            "<html>".to_owned()
        };
        format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })?;
    let client = Client::unix(&socket)?.with_patience(Patience::NONE);
    let error = client.sandbox("known").await.err().ok_or("answered")?;
    assert_eq!((error.code(), error.to_string()), (Some(Code::UnknownSandbox), "There is no `known`.".to_owned()));
    let error = client.sandbox("other").await.err().ok_or("answered")?;
    assert!(matches!(error, Error::Foreign { status: 404, .. }), "{error:?}");
    let broken = futures_util::stream::iter([Err(io::Error::other("unreadable file"))]);
    let error = client.unpack("box", "/workspace", broken).await.err().ok_or("answered")?;
    assert!(matches!(error, Error::Read(_)), "{error:?}");
    server.abort();
    Ok(())
}

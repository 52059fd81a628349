//! A guest that serves, and the least of an HTTP client: what goes over the wire is what the test wrote.

use std::{collections::HashMap, fs, net::TcpListener, path::PathBuf};

use sandbar_guest::protocol::{
    Legacy, Sandboxd, ServeRequest,
    process::{ExecuteRequest, ExecuteResponse, ProcessConfig, process_service_client::ProcessServiceClient},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{Status, transport::Channel};

use crate::support::{Guest, Outcome};

pub(super) struct Served {
    pub(super) guest: Guest,
    pub(super) root: PathBuf,
    pub(super) request: ServeRequest,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HashMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// Ports that nobody has now, each another one. They are below those that the kernel gives to whoever connects, and no other
/// test begins to look at the same, so that nobody takes them before the guest does.
fn free_ports() -> Outcome<[u32; 3]> {
    const FIRST: u32 = 10_000;
    const SHARES: u32 = 2_000;
    const SHARE: u32 = 10;
    let mine = FIRST + std::process::id() % SHARES * SHARE;
    let free = |port: &u32| u16::try_from(*port).is_ok_and(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    let ports: Vec<_> = (mine..mine + SHARE).filter(free).take(3).collect();
    Ok(ports.try_into().map_err(|ports| format!("of {SHARE} ports from {mine} only {ports:?} are free"))?)
}

/// What asks for everything, on ports of its own, below a directory of the guest's.
pub(super) fn request(guest: &Guest, token: &str) -> Outcome<ServeRequest> {
    let root = guest.text_path("root");
    fs::create_dir_all(&root)?;
    let [grpc_port, rest_port, port] = free_ports()?;
    Ok(ServeRequest {
        sandboxd: Some(Sandboxd { grpc_port, rest_port, root: root.clone(), token: token.into() }),
        legacy: Some(Legacy { port, root, timeout_ms: 60_000 }),
        env: HashMap::from([("SANDBOX_NAME".into(), "box".into()), ("SANDBOX_TOKEN".into(), "t".into())]),
        ..ServeRequest::default()
    })
}

pub(super) async fn serve(guest: Guest, token: &str) -> Outcome<Served> {
    let request = request(&guest, token)?;
    guest.client.clone().serve(request.clone()).await?;
    let root = guest.path("root");
    Ok(Served { guest, root, request })
}

impl Served {
    pub(super) fn grpc_port(&self) -> u32 {
        self.request.sandboxd.as_ref().map_or(0, |asked| asked.grpc_port)
    }

    pub(super) fn rest_port(&self) -> u32 {
        self.request.sandboxd.as_ref().map_or(0, |asked| asked.rest_port)
    }

    pub(super) fn legacy_port(&self) -> u32 {
        self.request.legacy.as_ref().map_or(0, |asked| asked.port)
    }

    pub(super) async fn channel(&self) -> Outcome<Channel> {
        let address = format!("http://127.0.0.1:{}", self.grpc_port());
        // Small, so that what a client does not read soon stays where it is.
        let endpoint = tonic::transport::Endpoint::from_shared(address)?.initial_stream_window_size(64 * 1024);
        Ok(endpoint.connect().await?)
    }

    pub(super) async fn processes(&self) -> Outcome<ProcessServiceClient<Channel>> {
        Ok(ProcessServiceClient::new(self.channel().await?).max_decoding_message_size(64 << 20))
    }

    pub(super) async fn execute(&self, config: ProcessConfig) -> Outcome<Result<ExecuteResponse, Status>> {
        let request = ExecuteRequest { config: Some(config) };
        Ok(self.processes().await?.execute(request).await.map(tonic::Response::into_inner))
    }

    pub(super) async fn rest(&self, line: &str, head: &[&str], body: &[u8]) -> Outcome<Answer> {
        http(self.rest_port(), line, head, body).await
    }

    pub(super) async fn legacy(&self, line: &str, head: &[&str], body: &[u8]) -> Outcome<Answer> {
        http(self.legacy_port(), line, head, body).await
    }
}

pub(super) fn shell(script: &str) -> ProcessConfig {
    config(&["/bin/sh", "-c", script])
}

pub(super) fn config(command: &[&str]) -> ProcessConfig {
    ProcessConfig { command: command.iter().map(|&word| word.into()).collect(), ..ProcessConfig::default() }
}

/// `line` is method and target. A length is added unless the head says how the body comes.
pub(super) async fn http(port: u32, line: &str, head: &[&str], body: &[u8]) -> Outcome<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", u16::try_from(port)?)).await?;
    let mut request = format!("{line} HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n");
    let own = ["content-length", "transfer-encoding"];
    if !head.iter().any(|line| own.iter().any(|name| line.to_ascii_lowercase().starts_with(name))) {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    for line in head {
        request += &format!("{line}\r\n");
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await?;
    // A server may refuse before it has read all.
    let _all = stream.write_all(body).await;
    let mut reply = Vec::new();
    let read = stream.read_to_end(&mut reply).await;
    answer(&reply).ok_or_else(|| format!("no answer to {line}: {read:?}: {:?}", String::from_utf8_lossy(&reply)).into())
}

fn answer(reply: &[u8]) -> Option<Answer> {
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&reply[..end]).ok()?, &reply[end + 4..]);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let body = if chunked { unchunk(body)? } else { body.to_vec() };
    Some(Answer { status, headers, body })
}

/// None where it broke off.
fn unchunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?, 16).ok()?;
        body = &body[end + 2..];
        if size == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(body.get(..size)?);
        body = body.get(size + 2..)?;
    }
}

/// A body of one part.
pub(super) fn multipart(name: &str, file: Option<&str>, data: &[u8]) -> (String, Vec<u8>) {
    let file = file.map(|file| format!("; filename=\"{file}\"")).unwrap_or_default();
    let head = format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
    let body = [head.as_bytes(), data, b"\r\n--B--\r\n"].concat();
    ("Content-Type: multipart/form-data; boundary=B".into(), body)
}

//! Servers that run inside, reached from outside with programs people use; and nothing that gets out by it.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::support::{Outcome, Server, done, text};

/// Listens as the first argument says and does with each connection as the second says.
const INSIDE: &str = r#"
import base64, hashlib, socket, sys, threading
port, kind = int(sys.argv[1]), sys.argv[2]
def exact(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more: raise EOFError
        data += more
    return data
def echo(s):
    while data := s.recv(65536): s.sendall(data)
def digest(s):
    "All that comes until its end, then what it was."
    seen = hashlib.sha256()
    while data := s.recv(65536): seen.update(data)
    s.sendall(seen.hexdigest().encode())
def ask(s):
    "What would make a proxy of whoever reads it."
    s.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\nGET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % (int(sys.argv[3]), int(sys.argv[3])))
def websocket(s):
    head = b""
    while b"\r\n\r\n" not in head: head += s.recv(1)
    key = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    s.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    while True:
        first, length = exact(s, 2)
        mask, length = exact(s, 4), length & 127
        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(exact(s, length)))
        s.sendall(bytes([first, length]) + data)
def serve(s):
    try: {"echo": echo, "digest": digest, "websocket": websocket, "ask": ask}[kind](s)
    except (EOFError, OSError): pass
    s.close()
l = socket.create_server(("127.0.0.1", port), backlog=64)
print("listening", flush=True)
while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
"#;

/// Starts it in the sandbox `a`, and returns when it runs.
async fn inside(server: &Server, argv: &[&str]) -> Outcome<String> {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let request = sandbar_api::StartProcess { argv, ..sandbar_api::StartProcess::default() };
    Ok(server.client()?.start_process("a", &request).await?.id.to_string())
}

async fn listening(server: &Server, port: &str, kind: &str) -> Outcome {
    let process = inside(server, &["python3", "-c", INSIDE, port, kind]).await?;
    crate::support::until("it listens", async || {
        Ok(done(&mut server.command(&["logs", "a", &process]))?.contains("listening"))
    })
    .await
}

/// `sandbar forward`, ended when dropped.
pub(crate) struct Forward {
    process: Child,
    lines: Vec<String>,
    log: std::path::PathBuf,
}

impl Forward {
    pub(crate) fn start(server: &Server, arguments: &[&str]) -> Outcome<Self> {
        let log = server.home.path().join(format!("forward-{}", arguments.join("-").replace(':', "-")));
        let mut command = server.command(&[&["forward"], arguments].concat());
        let mut process = command.stdout(Stdio::piped()).stderr(std::fs::File::create(&log)?).spawn()?;
        let stdout = BufReader::new(process.stdout.take().ok_or("no stdout")?);
        let lines = stdout.lines().take(arguments.len() - 1).collect::<Result<_, _>>()?;
        Ok(Self { process, lines, log })
    }

    fn told(&self) -> Outcome<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    pub(crate) fn port(&self, line: usize) -> Outcome<u16> {
        let address = self.lines.get(line).and_then(|line| line.split_whitespace().nth(1));
        Ok(address
            .ok_or_else(|| format!("no address in {:?}: {:?}", self.lines, self.told()))?
            .parse::<std::net::SocketAddr>()?
            .port())
    }

    fn connect(&self) -> Outcome<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port(0)?))?;
        stream.set_read_timeout(Some(Duration::from_secs(300)))?;
        Ok(stream)
    }

    fn interrupted(mut self) -> Outcome<Option<i32>> {
        done(Command::new("kill").args(["-INT", &self.process.id().to_string()]))?;
        Ok(self.process.wait()?.code())
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _killed = self.process.kill();
        let _dead = self.process.wait();
    }
}

fn curl(url: &str) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "--max-time", "20", url]);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_inside_is_seen_outside_also_after_the_server_died() -> Outcome {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        sandbar_test_harness::missing("a_web_server_inside_is_seen_outside_also_after_the_server_died", "curl");
        return Ok(());
    }
    let mut server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    let forward = Forward::start(&server, &["a", "8080:0"])?;
    let url = format!("http://127.0.0.1:{}/page", forward.port(0)?);
    assert_eq!(forward.lines[0], format!("forwarding 127.0.0.1:{} to port 8080 of a", forward.port(0)?));
    // Before anything listens, the connection fails, and it is said why.
    let early = curl(&url).output()?;
    assert!(!early.status.success());
    crate::support::until("a line about it", async || Ok(forward.told()?.ends_with('\n'))).await?;
    let told = forward.told()?;
    assert!(
        told.starts_with("a connection to port 8080 failed: Nothing listens on port 8080 in the sandbox."),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");

    done(&mut server.command(&["exec", "a", "sh", "-c", "echo 'a page' > page"]))?;
    inside(&server, &["python3", "-m", "http.server", "8080", "--bind", "127.0.0.1"]).await?;
    crate::support::until("it answers", async || Ok(curl(&url).output()?.status.success())).await?;
    assert_eq!(done(&mut curl(&url))?, "a page\n");
    let many: Vec<_> = (0..20).map(|_| curl(&url).stdout(Stdio::piped()).spawn()).collect::<Result<_, _>>()?;
    for one in many {
        assert_eq!(text(&one.wait_with_output()?.stdout), "a page\n");
    }

    server.kill()?;
    assert!(TcpStream::connect(("127.0.0.1", forward.port(0)?)).is_ok(), "it listens on");
    server.restart()?;
    assert_eq!(done(&mut curl(&url))?, "a page\n");
    assert_eq!(forward.interrupted()?, Some(0));
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_and_half_closed_connections_pass() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    listening(&server, "8001", "websocket").await?;
    listening(&server, "8002", "digest").await?;
    let forward = Forward::start(&server, &["a", "8001:0"])?;
    let mut socket = forward.connect()?;
    socket.write_all(
        b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )?;
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = text(&head);
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    for word in ["one", "two"] {
        let masked: Vec<u8> = word.bytes().map(|byte| byte ^ 0x55).collect();
        socket.write_all(&[&[0x81, 0x83, 0x55, 0x55, 0x55, 0x55], masked.as_slice()].concat())?;
        let mut frame = [0; 5];
        socket.read_exact(&mut frame)?;
        assert_eq!((&frame[..2], &frame[2..]), (&[0x81, 3][..], word.as_bytes()));
    }

    // The answer comes after the end of the question.
    let forward = Forward::start(&server, &["a", "8002:0"])?;
    let mut stream = forward.connect()?;
    let data: Vec<u8> =
        (0..2_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    stream.write_all(&data)?;
    stream.shutdown(Shutdown::Write)?;
    let mut digest = String::new();
    stream.read_to_string(&mut digest)?;
    let wanted: String =
        <sha2::Sha256 as sha2::Digest>::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, wanted);
    // Deleted, the sandbox takes its connections along, and the next one ends the verb.
    listening(&server, "8000", "echo").await?;
    let mut forward = Forward::start(&server, &["a", "8000:0"])?;
    let mut last = forward.connect()?;
    last.write_all(b"x")?;
    let mut byte = [0];
    last.read_exact(&mut byte)?;
    done(&mut server.command(&["rm", "-f", "a"]))?;
    let mut rest = vec![];
    let _reset = last.read_to_end(&mut rest);
    assert_eq!(text(&rest), "", "it would look like an answer");
    drop(forward.connect()?);
    assert_eq!(forward.process.wait()?.code(), Some(4), "{}", forward.told()?);
    Ok(())
}

/// The status and code of a raw request for a port.
fn raw(server: &Server, path: &str, token: &str, upgrade: bool) -> Outcome<(u16, String)> {
    let base = server.base()?;
    let host = base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(300)))?;
    let asked = if upgrade { "Connection: Upgrade\r\nUpgrade: tcp\r\n" } else { "Connection: close\r\n" };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{asked}\r\n")?;
    let mut answer = vec![];
    let mut piece = [0; 4096];
    // A head, and with a refusal a body that a closing brace ends.
    loop {
        let is_head = answer.starts_with(b"HTTP/1.1 101") && answer.ends_with(b"\r\n\r\n");
        if is_head || answer.ends_with(b"}") {
            break;
        }
        match stream.read(&mut piece)? {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    let answer = text(&answer);
    let status = answer.split(' ').nth(1).ok_or("no status")?.parse()?;
    let body: serde_json::Value =
        answer.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default();
    Ok((status, body["code"].as_str().unwrap_or_default().to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_connect_and_what_is_no_port_is_refused() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    listening(&server, "8000", "echo").await?;
    let token = |role: &str| -> Outcome<String> {
        let mut create = vec!["--json", "token", "create", "--name", role, "--role", role];
        if role == "agent" {
            create.extend(["--session", "a"]);
        }
        let made: serde_json::Value = serde_json::from_str(&done(&mut server.command(&create))?)?;
        Ok(made["secret"].as_str().ok_or("no secret")?.to_owned())
    };
    let (viewer, agent, operator) = (token("viewer")?, token("agent")?, token("operator")?);
    let port = "/v1/sandboxes/a/ports/8000";
    let said = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(raw(&server, port, &viewer, true)?, said(403, "forbidden"));
    assert_eq!(raw(&server, port, &agent, true)?, said(403, "forbidden"));
    assert_eq!(raw(&server, port, "sbt_wrong", true)?, said(401, "unauthenticated"));
    assert_eq!(raw(&server, port, &operator, true)?, said(101, ""));
    assert_eq!(raw(&server, port, &operator, false)?, said(400, "bad_request"));
    for (port, status, code) in [
        ("0", 400, "bad_request"),
        ("65536", 400, "bad_request"),
        ("x", 400, "bad_request"),
        // The sandbox's way out acts for the sandbox, and for nobody else.
        ("7228", 400, "bad_request"),
        ("8009", 502, "port_closed"),
    ] {
        let answer = raw(&server, &format!("/v1/sandboxes/a/ports/{port}"), &operator, true)?;
        assert_eq!(answer, said(status, code), "{port}");
    }
    assert_eq!(raw(&server, "/v1/sandboxes/b/ports/8000", &operator, true)?, said(404, "unknown_sandbox"));
    done(&mut server.command(&["pause", "a"]))?;
    assert_eq!(raw(&server, port, &operator, true)?, said(409, "wrong_state"));
    done(&mut server.command(&["resume", "a"]))?;

    // With the command line, a viewer is told at the first connection.
    let mut command = server.command(&["forward", "a", "8000:0"]);
    command.env("SANDBAR_SERVER", server.base()?).env("SANDBAR_TOKEN", &viewer).stdout(Stdio::piped());
    let mut process = command.stderr(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    TcpStream::connect(line.split(' ').nth(1).ok_or("no address")?)?;
    let ended = process.wait_with_output()?;
    assert_eq!(ended.status.code(), Some(6), "{}", text(&ended.stderr));
    let unknown = server.command(&["forward", "nobody", "80"]).output()?;
    assert_eq!(unknown.status.code(), Some(4));
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_and_a_server_that_ends_close_connections() -> Outcome {
    let mut server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    listening(&server, "8000", "echo").await?;
    let made = done(&mut server.command(&["--json", "token", "create", "--name", "o", "--role", "operator"]))?;
    let made: serde_json::Value = serde_json::from_str(&made)?;
    let token = made["secret"].as_str().ok_or("no secret")?;
    let client = sandbar_client::Client::tcp(&server.base()?, Some(token))?;
    let mut dialled = client.dial("a", 8000).await?;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    dialled.write_all(b"hello").await?;
    let mut heard = [0; 5];
    dialled.read_exact(&mut heard).await?;
    assert_eq!(&heard, b"hello");
    done(&mut server.command(&["token", "revoke", made["id"].as_str().ok_or("no id")?]))?;
    let ended = tokio::time::timeout(Duration::from_secs(300), dialled.read(&mut heard)).await?;
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");

    let mut dialled = server.client()?.dial("a", 8000).await?;
    dialled.write_all(b"again").await?;
    dialled.read_exact(&mut heard).await?;
    let pid = server.pid();
    done(Command::new("kill").args(["-TERM", &pid.to_string()]))?;
    let ended = tokio::time::timeout(Duration::from_secs(300), dialled.read(&mut heard)).await?;
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    // Nobody has waited for it yet: a zombie.
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    crate::support::until("it ends", async || Ok(stat()?.contains(") Z "))).await?;
    server.kill()?;
    let log = server.log_text();
    assert!(!log.contains("requests were still under way"), "it waited for its grace to pass: {log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_inside_gets_out_by_it() -> Outcome {
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "a"]))?;
    // What only programs of the host may reach.
    let host = TcpListener::bind("127.0.0.1:0")?;
    host.set_nonblocking(true)?;
    let target = host.local_addr()?.port().to_string();
    let process = inside(&server, &["python3", "-c", INSIDE, "8003", "ask", &target]).await?;
    crate::support::until("it listens", async || {
        Ok(done(&mut server.command(&["logs", "a", &process]))?.contains("listening"))
    })
    .await?;
    // Taken here, if not by somebody else, so that the port here is another one than inside.
    let _taken = match TcpListener::bind("127.0.0.1:8003") {
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        bound => Some(bound?),
    };
    let forward = Forward::start(&server, &["a", "8003"])?;
    let local = forward.port(0)?.to_string();
    assert_ne!(local, "8003");

    // The control: from outside both are reached.
    let mut heard = String::new();
    forward.connect()?.read_to_string(&mut heard)?;
    assert!(heard.starts_with("CONNECT 127.0.0.1:"), "what inside says is only ever read: {heard}");
    TcpStream::connect(("127.0.0.1", target.parse()?))?;
    crate::support::until("the control", async || Ok(host.accept().is_ok())).await?;

    // The attack: to the host's listener, to the forwarding one, past the gate, and to the server's and guest's sockets.
    let attack = r#"
import glob, os, socket, sys
for port in sys.argv[1:]:
    for address in ("127.0.0.1", "::1"):
        try: socket.create_connection((address, int(port)), 3); print("reached", address, port)
        except OSError: pass
    gate = socket.create_connection(("127.0.0.1", 7228), 3)
    gate.settimeout(60)
    gate.sendall(b"CONNECT 127.0.0.1:%s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\n\r\n" % (port.encode(), port.encode()))
    if b" 200 " in gate.recv(64): print("the gate opened for", port)
for line in open("/proc/net/unix"):
    name = line.split()[-1]
    if "sandbar" in name or "guest" in name: print("socket", name)
print("tried")
"#;
    let tried = done(&mut server.command(&["exec", "a", "python3", "-c", attack, &target, &local, "8003"]))?;
    // The control: its own server it does reach.
    assert_eq!(tried, "reached 127.0.0.1 8003\ntried\n");
    assert!(host.accept().is_err(), "somebody came");
    done(&mut server.command(&["rm", "-f", "a"]))?;
    Ok(())
}

//! Attached terminals over a real server, real WebSockets and a real guest without isolation: the guest is this file started
//! again.

use std::{fs, time::Duration};

use axum::http::{HeaderValue, StatusCode};
use futures_util::{SinkExt as _, StreamExt as _};
use sandbar_api::{CreateToken, Process, Role, TerminalFrame};
use sandbar_server::{Options, Server};
use sandbar_test_harness::Test;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest as _,
        protocol::frame::{
            Frame,
            coding::{Data, OpCode},
        },
    },
};

use crate::support::{Bench, on, test};

const SOON: Duration = Duration::from_secs(300);

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = on! { Bench, "attach";
        a_terminal_is_used_and_come_back_to => used,
        who_controls_is_told_and_has_its_size => controlled,
        queries_are_answered_once => queries,
        what_cannot_be_attached_to_is_a_problem => refused,
        malformed_frames_are_told_and_end_the_connection => malformed,
        foreign_pages_open_no_socket => foreign,
        a_stalled_viewer_disturbs_nobody => stalled,
    };
    tests.push(test("attach::the_end_of_the_server_is_told", async { ended(Bench::new().await).await }));
    tests
}

struct Client<S> {
    socket: WebSocketStream<S>,
    output: Vec<u8>,
    end: u64,
    typed: u64,
}

type Local = Client<UnixStream>;

/// What came last.
enum Came {
    Output,
    Frame(TerminalFrame),
    Closed(u16),
}

async fn open<S>(stream: S, path: &str, headers: &[(&'static str, String)]) -> Result<Client<S>, (u16, String)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = format!("ws://localhost{path}").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    match timeout(SOON, client_async(request, stream)).await.unwrap() {
        Ok((socket, _)) => Ok(Client { socket, output: vec![], end: 0, typed: 0 }),
        Err(Error::Http(response)) => {
            let body: Value =
                serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap_or_default();
            Err((response.status().as_u16(), body["code"].as_str().unwrap_or_default().to_owned()))
        }
        Err(error) => panic!("{error}"),
    }
}

async fn attach(bench: &Bench, process: &Process, query: &str) -> Local {
    tried(bench, process.id.as_str(), query).await.unwrap_or_else(|refused| panic!("{refused:?}"))
}

async fn tried(bench: &Bench, process: &str, query: &str) -> Result<Local, (u16, String)> {
    let stream = UnixStream::connect(&bench.socket).await.unwrap();
    open(stream, &format!("/v1/sandboxes/box/processes/{process}/attach?{query}"), &[]).await
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn next(&mut self) -> Came {
        loop {
            match timeout(SOON, self.socket.next()).await.expect("something comes").expect("it goes on").unwrap() {
                Message::Binary(data) => {
                    let (offset, output) = data.split_at(8);
                    let end = u64::from_be_bytes(offset.try_into().unwrap());
                    assert!(output.len() <= 64 << 10 && end >= self.end);
                    self.output.extend_from_slice(output);
                    self.end = end;
                    return Came::Output;
                }
                Message::Text(text) => return Came::Frame(serde_json::from_str(&text).unwrap()),
                Message::Close(frame) => return Came::Closed(frame.expect("a code").code.into()),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    async fn frame(&mut self) -> TerminalFrame {
        loop {
            match self.next().await {
                Came::Output => {}
                Came::Frame(frame) => return frame,
                Came::Closed(code) => panic!("closed with {code}"),
            }
        }
    }

    async fn until(&mut self, mut found: impl FnMut(&TerminalFrame) -> bool) -> TerminalFrame {
        loop {
            let frame = self.frame().await;
            if found(&frame) {
                return frame;
            }
        }
    }

    /// Reads until the output has it.
    async fn shows(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.output).contains(text) {
            assert!(!matches!(self.next().await, Came::Closed(_)), "{}", String::from_utf8_lossy(&self.output));
        }
    }

    async fn refusal(&mut self) -> String {
        match self.until(|frame| matches!(frame, TerminalFrame::Error { .. })).await {
            TerminalFrame::Error { problem } => problem.code.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    async fn closed(&mut self) -> u16 {
        loop {
            if let Came::Closed(code) = self.next().await {
                return code;
            }
        }
    }

    async fn keys(&mut self, keys: &[u8]) {
        let frame = [&self.typed.to_be_bytes(), keys].concat();
        self.typed += keys.len() as u64;
        self.socket.send(Message::Binary(frame.into())).await.unwrap();
    }

    async fn say(&mut self, frame: Value) {
        self.socket.send(Message::Text(frame.to_string().into())).await.unwrap();
    }
}

async fn shell(bench: &Bench, script: &str) -> Process {
    bench.start(json!({"argv": ["sh", "-c", script], "cwd": "/", "terminal": {"cols": 80, "rows": 24}})).await
}

async fn used(bench: &Bench) {
    let process = shell(bench, "stty -echo; echo ready; while read -r line; do echo \"got <$line>\"; done").await;
    let mut first = attach(bench, &process, "raw=true&control=free&writer=laptop").await;
    let TerminalFrame::Attached { control, controller, input, .. } = first.frame().await else { panic!() };
    assert_eq!((control, controller.as_deref(), input), (true, Some("socket"), 0));
    let TerminalFrame::Screen { data, .. } = first.frame().await else { panic!() };
    first.output.extend_from_slice(data.as_bytes());
    first.shows("ready").await;
    first.keys(b"one\n").await;
    first.until(|frame| *frame == TerminalFrame::Taken { input: 4 }).await;
    first.shows("got <one>").await;
    // The connection breaks without a word in the middle of a line.
    first.keys(b"tw").await;
    first.until(|frame| *frame == TerminalFrame::Taken { input: 6 }).await;
    let (end, typed) = (first.end, first.typed);
    drop(first);
    let query = format!("raw=true&control=take&writer=laptop&from={end}");
    let mut again = attach(bench, &process, &query).await;
    let TerminalFrame::Attached { offset, input, .. } = again.frame().await else { panic!() };
    assert_eq!((offset, input), (end, 6));
    // It does not know what arrived, repeats two letters, and goes on.
    again.typed = typed - 2;
    again.keys(b"two \xe2\x9c\x93\n").await;
    again.shows("got <two \u{2713}>").await;
    assert_eq!(String::from_utf8_lossy(&again.output), "got <two \u{2713}>\r\n");
    again.keys(b"\x04").await;
    let TerminalFrame::Exit { process } = again.until(|frame| matches!(frame, TerminalFrame::Exit { .. })).await else {
        panic!()
    };
    assert_eq!(process.exit.as_ref().map(|exit| exit.code), Some(0));
    assert_eq!(again.closed().await, 1000);
    // What has ended still shows its last screen.
    let mut late = attach(bench, &process, "").await;
    assert!(matches!(late.frame().await, TerminalFrame::Attached { control: false, .. }));
    let TerminalFrame::Screen { data, .. } = late.frame().await else { panic!() };
    assert!(data.contains("got <one>") && data.contains("got <two \u{2713}>"), "{data:?}");
    assert!(matches!(late.frame().await, TerminalFrame::Exit { .. }));
    assert_eq!(late.closed().await, 1000);
}

async fn controlled(bench: &Bench) {
    let process = shell(bench, "stty -echo; while read -r line; do stty size; done").await;
    let mut first = attach(bench, &process, "control=take&cols=91&rows=31&writer=a").await;
    let TerminalFrame::Attached { size, control: true, .. } = first.frame().await else { panic!() };
    assert_eq!((size.cols, size.rows), (91, 31));
    let mut second = attach(bench, &process, "control=free&cols=70&rows=20&writer=b").await;
    assert!(matches!(second.frame().await, TerminalFrame::Attached { control: false, controller: Some(_), .. }));
    second.keys(b"x\n").await;
    assert_eq!(second.refusal().await, "not_controller");
    for (cols, rows) in [(0, 20), (20, 0), (10_000, 20)] {
        first.say(json!({"type": "resize", "cols": cols, "rows": rows})).await;
        assert_eq!(first.refusal().await, "bad_request");
    }
    first.keys(b"\n").await;
    first.shows("31 91").await;
    first.say(json!({"type": "resize", "cols": 92, "rows": 32})).await;
    let resized = first.until(|frame| matches!(frame, TerminalFrame::Resized { .. })).await;
    assert!(matches!(resized, TerminalFrame::Resized { size, .. } if (size.cols, size.rows) == (92, 32)));
    first.keys(b"\n").await;
    first.shows("32 92").await;
    second.say(json!({"type": "take"})).await;
    assert!(matches!(
        first.until(|frame| matches!(frame, TerminalFrame::Control { .. })).await,
        TerminalFrame::Control { held: false, controller: Some(_) }
    ));
    first.keys(b"\n").await;
    assert_eq!(first.refusal().await, "not_controller");
    second.until(|frame| matches!(frame, TerminalFrame::Taken { input: 0 })).await;
    second.typed = 0;
    second.keys(b"\n").await;
    second.shows("20 70").await;
    second.socket.close(None).await.unwrap();
    let freed = TerminalFrame::Control { held: false, controller: None };
    first.until(|frame| *frame == freed).await;
    first.say(json!({"type": "take"})).await;
    first.until(|frame| matches!(frame, TerminalFrame::Control { held: true, .. })).await;
    first.say(json!({"type": "release"})).await;
    first.until(|frame| *frame == freed).await;
}

async fn queries(bench: &Bench) {
    // Waits for viewers, asks, and repeats all that is typed until a second after it is told that there were answers.
    let (gate, answered) = (bench.directory.path().join("asks"), bench.directory.path().join("answered"));
    let script = format!(
        "stty -echo -icanon min 0 time 10; while [ ! -e {} ]; do sleep 0.02; done; printf 'ab\\033[6n\\033]11;?\\007'; while [ ! -e {} ]; do cat -v; done; cat -v; echo; echo done",
        gate.display(),
        answered.display()
    );
    let process = shell(bench, &script).await;
    let mut viewers = vec![];
    for _ in 0..3 {
        let mut viewer = attach(bench, &process, "").await;
        viewer.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
        viewers.push(viewer);
    }
    fs::write(&gate, "").unwrap();
    viewers[0].shows("^[[1;3R").await;
    viewers[0].shows("^[]11;rgb:").await;
    fs::write(&answered, "").unwrap();
    for viewer in &mut viewers {
        viewer.shows("done").await;
        let text = String::from_utf8_lossy(&viewer.output).into_owned();
        assert_eq!(text.matches("^[[1;3R").count(), 1, "{text:?}");
        assert_eq!(text.matches("^[]11;rgb:").count(), 1, "{text:?}");
        assert!(!text.contains('\x07') && !text.contains("\x1b[6n"), "{text:?}");
    }
}

async fn refused(bench: &Bench) {
    let process = shell(bench, "sleep 60").await;
    let plain = bench.start(json!({"argv": ["sleep", "60"], "cwd": "/"})).await;
    let (id, plain) = (process.id.as_str(), plain.id.as_str());
    for (process, query, status, code) in [
        ("prc-00000000000000000000000000", "", 404, "unknown_process"),
        (plain, "", 409, "no_terminal"),
        (id, "from=99999", 416, "offset_beyond"),
        (id, "cols=0&rows=10", 400, "bad_request"),
        (id, "cols=10000&rows=10", 400, "bad_request"),
        (id, "cols=70000&rows=10", 400, "bad_request"),
        (id, "cols=80", 400, "bad_request"),
        (id, "control=mine", 400, "bad_request"),
        (id, "writer=a%20b", 400, "bad_request"),
        (id, "colour=red", 400, "bad_request"),
    ] {
        let refusal = tried(bench, process, query).await.err();
        assert_eq!(refusal, Some((status, code.to_owned())), "{process} {query}");
    }
    let path = format!("/v1/sandboxes/box/processes/{id}/attach");
    let plainly = bench.get(&path).await;
    assert_eq!((plainly.status, plainly.code().as_str()), (StatusCode::BAD_REQUEST, "bad_request"));
}

async fn malformed(bench: &Bench) {
    let process = shell(bench, "stty -echo; cat").await;
    let text = |text: &str| Message::Text(text.into());
    let bad_utf8 = Frame::message(vec![b'{', 0xff], OpCode::Data(Data::Text), true);
    for (message, error, code) in [
        (text("hello"), "bad_request", 1007),
        (text("{\"type\":\"dance\"}"), "bad_request", 1007),
        (text("{\"type\":\"resize\",\"cols\":5,\"rows\":5,\"more\":1}"), "bad_request", 1007),
        (text("{\"type\":\"resize\",\"cols\":-1,\"rows\":5}"), "bad_request", 1007),
        (text("{\"type\":\"take\",\"more\":1}"), "bad_request", 1007),
        (text("{\"type\":\"release\",\"cols\":5}"), "bad_request", 1007),
        (Message::Frame(Frame::message(vec![0; 9], OpCode::Data(Data::Continue), true)), "bad_request", 1002),
        (Message::Frame(bad_utf8), "bad_request", 1007),
        (Message::Binary(vec![1; 7].into()), "bad_request", 1002),
        (Message::Binary(vec![].into()), "bad_request", 1002),
        (Message::Binary(vec![0; 8 + (64 << 10) + 1].into()), "too_large", 1009),
        (Message::Binary(vec![0; 300 << 10].into()), "too_large", 1009),
        (text(&" ".repeat((64 << 10) + 1)), "too_large", 1009),
    ] {
        let mut client = attach(bench, &process, "control=take").await;
        client.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
        // The other side may have stopped reading.
        drop(client.socket.send(message).await);
        assert_eq!((client.refusal().await.as_str(), client.closed().await), (error, code));
    }
    let mut client = attach(bench, &process, "control=take").await;
    client.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
    // What a client writes is masked, or it is none.
    client.socket.get_mut().write_all(&[&[0x82, 9], &[0; 8][..], b"x"].concat()).await.unwrap();
    assert_eq!((client.refusal().await.as_str(), client.closed().await), ("bad_request", 1002));
    // A frame may come in parts.
    let mut client = attach(bench, &process, "control=take").await;
    client.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
    let part = |data: &[u8], of, last| Message::Frame(Frame::message(data.to_vec(), OpCode::Data(of), last));
    client.socket.send(part(b"{\"type\":\"re", Data::Text, false)).await.unwrap();
    client.socket.send(part(b"lease\"}", Data::Continue, true)).await.unwrap();
    client.until(|frame| matches!(frame, TerminalFrame::Control { held: false, .. })).await;
    // Binary input of the largest size, whatever is in it, is none of these.
    let mut client = attach(bench, &process, "control=take").await;
    client.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
    client.keys(&b"\xff\x00\x80\n".repeat(64)).await;
    client.until(|frame| *frame == TerminalFrame::Taken { input: 256 }).await;
}

async fn foreign(bench: &Bench) {
    let socket = bench.directory.path().join("home/second.sock");
    let options = Options {
        tcp: Some("127.0.0.1:0".parse().unwrap()),
        tls: None,
        socket,
        version: "test",
        preview_domain: None,
        shared: false,
    };
    let server = Server::bind(bench.engine.clone(), options).await.unwrap();
    let address = server.tcp_address().unwrap();
    let closing = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn(server.serve(closing.clone()));
    let made = async |role, ttl| {
        let request = CreateToken { name: "test".to_owned(), role, session: None, ttl };
        bench.engine.create_token(request).await.unwrap()
    };
    let (token, viewer) = (made(Role::Operator, None).await, made(Role::Viewer, None).await.secret);
    let operator = token.secret;
    let process = shell(bench, "sleep 60").await;
    let connect = async |query: &str, headers: &[(&'static str, String)]| {
        let stream = TcpStream::connect(address).await.unwrap();
        let host = ("host", address.to_string());
        let headers: Vec<_> = [host].into_iter().chain(headers.iter().cloned()).collect();
        let path = format!("/v1/sandboxes/box/processes/{}/attach?{query}", process.id);
        open(stream, &path, &headers).await
    };
    let here = format!("sandbar.localhost:{}", address.port());
    let browser = bench.engine.sign_browser_in(&format!("http://{here}"), Duration::from_secs(3600)).await.unwrap();
    let cookie = ("cookie", format!("sandbar={}", browser.secret));
    let bearer = |secret: &str| ("authorization", format!("Bearer {secret}"));
    let (own, evil) = (("origin", format!("http://{here}")), ("origin", "http://evil.example".to_owned()));
    let (here, there) = (("host", here), ("origin", format!("http://{address}")));
    let refusals = [
        (vec![], 401, "unauthenticated"),
        (vec![here.clone(), cookie.clone()], 403, "foreign_origin"),
        (vec![here.clone(), cookie.clone(), evil.clone()], 403, "foreign_origin"),
        (vec![bearer(&operator), evil], 403, "foreign_origin"),
        (vec![cookie.clone(), own.clone(), ("host", "evil.example".to_owned())], 403, "foreign_host"),
        (vec![cookie.clone(), there], 401, "unauthenticated"),
    ];
    for (headers, status, code) in refusals {
        assert_eq!(connect("", &headers).await.err(), Some((status, code.to_owned())), "{headers:?}");
    }
    assert_eq!(connect("control=free", &[bearer(&viewer)]).await.err(), Some((403, "forbidden".to_owned())));
    for headers in [vec![here, cookie, own], vec![bearer(&operator)], vec![bearer(&viewer)]] {
        let mut client = connect("", &headers).await.unwrap_or_else(|refused| panic!("{refused:?}"));
        assert!(matches!(client.frame().await, TerminalFrame::Attached { .. }));
    }
    for revoked in [Some(token.token.id), None] {
        let mut other = connect("", &[bearer(&viewer)]).await.unwrap_or_else(|refused| panic!("{refused:?}"));
        let mut connected = Err((0, String::new()));
        // What expires may do so before it is used, on a busy machine.
        for ttl in ["2s", "10s"] {
            let short = made(Role::Operator, Some(ttl.parse().unwrap())).await.secret;
            let secret = if revoked.is_some() { &operator } else { &short };
            connected = connect("control=take", &[bearer(secret)]).await;
            if connected.is_ok() {
                break;
            }
        }
        let mut client = connected.unwrap_or_else(|refused| panic!("{refused:?}"));
        if let Some(id) = revoked {
            client.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
            bench.engine.revoke_token(id.as_str()).await.unwrap();
        }
        assert_eq!((client.refusal().await.as_str(), client.closed().await), ("unauthenticated", 1008));
        // Nobody is in control then.
        other.until(|frame| matches!(frame, TerminalFrame::Control { controller: None, .. })).await;
    }
    closing.cancel();
    timeout(SOON, serving).await.unwrap().unwrap().unwrap();
}

/// What this program, which is server and clients, has in memory.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

async fn stalled(bench: &Bench) {
    const SIZE: u64 = 32 << 20;
    let gate = bench.directory.path().join("prints");
    let script = format!(
        "stty raw -echo; while [ ! -e {} ]; do sleep 0.02; done; head -c {SIZE} /dev/zero | tr '\\0' x; sleep 60",
        gate.display()
    );
    let process = shell(bench, &script).await;
    let mut still = attach(bench, &process, "raw=true&from=0").await;
    assert!(matches!(still.frame().await, TerminalFrame::Attached { .. }));
    let mut viewers = vec![];
    for _ in 0..8 {
        viewers.push(attach(bench, &process, "raw=true&from=0").await);
    }
    let before = resident();
    fs::write(&gate, "").unwrap();
    let reading: Vec<_> = viewers
        .into_iter()
        .map(|mut viewer| {
            tokio::spawn(async move {
                let mut total = 0;
                while total < SIZE {
                    viewer.next().await;
                    assert!(viewer.output.iter().all(|byte| *byte == b'x'));
                    total += viewer.output.len() as u64;
                    assert_eq!(viewer.end, total);
                    viewer.output.clear();
                }
            })
        })
        .collect();
    for viewer in reading {
        timeout(Duration::from_secs(300), viewer).await.unwrap().unwrap();
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < SIZE / 2, "{grown} bytes more in memory");
    // It has missed nothing.
    while still.end < SIZE {
        assert!(matches!(still.next().await, Came::Output));
    }
    assert_eq!(still.output.len() as u64, SIZE);
}

async fn ended(bench: Bench) {
    let process = shell(&bench, "stty raw -echo; yes").await;
    let quiet = shell(&bench, "sleep 60").await;
    let mut reads = attach(&bench, &quiet, "control=take").await;
    reads.until(|frame| matches!(frame, TerminalFrame::Screen { .. })).await;
    // One that reads nothing more while output comes without end.
    let stalls = attach(&bench, &process, "raw=true").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    bench.closing.cancel();
    assert_eq!(reads.refusal().await, "shutting_down");
    assert_eq!(reads.closed().await, 1001);
    let served = timeout(Duration::from_secs(300), bench.serving).await;
    served.expect("it ends").unwrap().unwrap();
    assert!(!crate::support::broke_off(), "the server waited for who does not read");
    drop(stalls);
    bench.engine.shutdown().await;
}

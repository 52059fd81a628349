//! `process.v1.ProcessService`: every row of its table of codes, and what becomes of processes.

use std::{collections::HashMap, fs, time::Duration};

use bytes::Bytes;
use sandbar_guest::protocol::process::{
    ProcessConfig, Pty, ResizeTtyRequest, SendSignalRequest, Signal, StartRequest, StartResponse, WriteStdinRequest,
    process_service_client::ProcessServiceClient, start_response::Event, write_stdin_request::Payload,
};
use tonic::{Code, Request, Status, Streaming, transport::Channel};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::client::{Served, config, serve, shell};
use crate::support::{Guest, Outcome, is_alive, pid_in, told_pid, until};

const TOKEN: &str = "a-token-of-24-characters";

struct Started {
    client: ProcessServiceClient<Channel>,
    events: Streaming<StartResponse>,
    id: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Started {
    async fn new(served: &Served, config: ProcessConfig, pty: Option<Pty>) -> Outcome<Self> {
        Self::with(served, Request::new(StartRequest { config: Some(config), pty })).await
    }

    async fn with(served: &Served, request: Request<StartRequest>) -> Outcome<Self> {
        let mut client = served.processes().await?;
        let mut events = client.start(request).await?.into_inner();
        let Some(Event::Init(init)) = events.message().await?.and_then(|event| event.event) else {
            return Err("init does not come first".into());
        };
        Ok(Self { client, events, id: init.process_id, stdout: vec![], stderr: vec![] })
    }

    /// The exit, which must be the last event.
    async fn end(&mut self) -> Outcome<Result<i32, Status>> {
        let mut exit = None;
        loop {
            let event = match self.events.message().await {
                Ok(Some(event)) => event.event.ok_or("an empty event")?,
                Ok(None) => return Ok(Ok(exit.ok_or("no exit")?)),
                Err(status) => return Ok(Err(status)),
            };
            assert!(exit.is_none(), "something comes after the exit");
            match event {
                Event::Init(_) => return Err("a second init".into()),
                Event::Stdout(data) => self.stdout.extend_from_slice(&data),
                Event::Stderr(data) => self.stderr.extend_from_slice(&data),
                Event::Exit(end) => exit = Some(end.exit_code),
            }
        }
    }

    async fn until_text(&mut self, wanted: &str) -> Outcome {
        while !String::from_utf8_lossy(&self.stdout).contains(wanted) {
            match self.events.message().await?.and_then(|event| event.event) {
                Some(Event::Stdout(data)) => self.stdout.extend_from_slice(&data),
                other => return Err(format!("{other:?} before {wanted:?}").into()),
            }
        }
        Ok(())
    }

    async fn type_in(&self, payload: Payload) -> Result<(), Status> {
        let request = WriteStdinRequest { process_id: self.id, payload: Some(payload) };
        self.client.clone().write_stdin(request).await.map(|_| ())
    }

    async fn signal(&self, signal: i32) -> Result<(), Status> {
        let request = SendSignalRequest { process_id: self.id, signal };
        self.client.clone().send_signal(request).await.map(|_| ())
    }

    async fn resize(&self, cols: u32, rows: u32) -> Result<(), Status> {
        let request = ResizeTtyRequest { process_id: self.id, cols, rows };
        self.client.clone().resize_tty(request).await.map(|_| ())
    }
}

fn code<T>(outcome: Result<T, Status>) -> Code {
    outcome.map_or_else(|status| status.code(), |_| Code::Ok)
}

pub(crate) async fn starts_in_order(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    for id in 1..=3 {
        let mut started = Started::new(&served, shell("echo out; echo err >&2; exit 3"), None).await?;
        assert_eq!(started.id, id, "ids are small and its own");
        assert_eq!(started.end().await??, 3);
        assert_eq!((started.stdout.as_slice(), started.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    }
    Ok(())
}

pub(crate) async fn executes(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    // Bytes that are no text come as they are, and there is no input.
    let told = served.execute(shell(r"printf '\377\000\201'; cat; printf '\376' >&2; exit 9")).await??;
    assert_eq!((told.exit_code, &told.stdout[..], &told.stderr[..]), (9, &b"\xff\0\x81"[..], &b"\xfe"[..]));
    let by_signal = [("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -INT $$", 130)];
    for (script, wanted) in by_signal {
        assert_eq!(served.execute(shell(script)).await??.exit_code, wanted, "{script}");
    }
    // What it left behind may still speak for a while. A busy machine may not let it, but not each time.
    let mut told = Bytes::new();
    for _ in 0..3 {
        told = served.execute(shell("(sleep 0.3; echo late) & echo early")).await??.stdout;
        if told != "early\n" {
            break;
        }
    }
    assert_eq!(told, "early\nlate\n");
    Ok(())
}

pub(crate) async fn refuses_by_the_table(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let refused = async |config: ProcessConfig| -> Outcome<(Code, String)> {
        let executed = served.execute(config.clone()).await?.err().ok_or("it ran")?;
        let mut client = served.processes().await?;
        let started = client.start(StartRequest { config: Some(config), pty: None }).await.err().ok_or("it started")?;
        assert_eq!(executed.code(), started.code(), "both say the same");
        Ok((executed.code(), executed.message().to_owned()))
    };
    let required = (Code::InvalidArgument, "command is required".to_owned());
    assert_eq!(refused(ProcessConfig::default()).await?, required);
    assert_eq!(refused(config(&[""])).await?, required);
    let none = served.processes().await?.start(StartRequest::default()).await.err().ok_or("it started")?;
    assert_eq!(none.code(), Code::InvalidArgument);
    assert_eq!(refused(config(&["no-such-program"])).await?.0, Code::NotFound);
    assert_eq!(refused(config(&["/no/such/program"])).await?.0, Code::NotFound);
    fs::write(served.root.join("plain"), "not to be run")?;
    assert_eq!(refused(config(&["./plain"])).await?.0, Code::PermissionDenied);
    let elsewhere = |cwd: &str| ProcessConfig { cwd: Some(cwd.into()), ..config(&["true"]) };
    std::os::unix::fs::symlink("/", served.root.join("out"))?;
    for (cwd, wanted) in [
        ("..", Code::PermissionDenied),
        ("a/../../b", Code::PermissionDenied),
        ("out", Code::PermissionDenied),
        ("out/etc", Code::PermissionDenied),
        ("missing", Code::NotFound),
        ("plain", Code::NotFound),
        ("a\0b", Code::InvalidArgument),
    ] {
        assert_eq!(refused(elsewhere(cwd)).await?.0, wanted, "{cwd}");
    }
    let bad_env = ProcessConfig { env_vars: HashMap::from([("A=B".into(), "c".into())]), ..config(&["true"]) };
    assert_eq!(refused(bad_env).await?.0, Code::InvalidArgument);

    let mut stranger = Started::new(&served, shell("read line; echo got $line"), None).await?;
    assert_eq!(code(stranger.signal(0).await), Code::InvalidArgument);
    assert_eq!(code(stranger.signal(7).await), Code::InvalidArgument);
    assert_eq!(code(stranger.resize(80, 24).await), Code::FailedPrecondition, "it has no terminal");
    stranger.type_in(Payload::Input(Bytes::from_static(b"it\n"))).await?;
    assert_eq!(stranger.end().await??, 0);
    assert_eq!(stranger.stdout, b"got it\n");
    stranger.id = 4711;
    let unknown = |outcome: Result<(), Status>| outcome.map_err(|status| (status.code(), status.message().to_owned()));
    let wanted = Err((Code::NotFound, "process 4711 not found".to_owned()));
    assert_eq!(unknown(stranger.signal(15).await), wanted);
    assert_eq!(unknown(stranger.resize(80, 24).await), wanted);
    assert_eq!(unknown(stranger.type_in(Payload::Eof(())).await), wanted);
    Ok(())
}

pub(crate) async fn runs_where_and_with_what_it_is_told(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    fs::create_dir_all(served.root.join("a/b"))?;
    std::os::unix::fs::symlink("a/b", served.root.join("link"))?;
    for (cwd, wanted) in [(None, ""), (Some("."), ""), (Some("a/b"), "a/b"), (Some("/a"), "a"), (Some("link"), "a/b")] {
        let config = ProcessConfig { cwd: cwd.map(Into::into), ..shell("pwd -P; echo $SANDBOX_NAME $A; echo $HOME") };
        let env_vars = HashMap::from([("A".into(), "1".into()), ("SANDBOX_NAME".into(), "mine".into())]);
        let told = served.execute(ProcessConfig { env_vars, ..config }).await??;
        let place = served.root.canonicalize()?.join(wanted);
        let place = place.display().to_string();
        let wanted = format!("{}\nmine 1\n/home/test\n", place.trim_end_matches('/'));
        assert_eq!(String::from_utf8_lossy(&told.stdout), wanted, "{cwd:?}");
    }
    Ok(())
}

pub(crate) async fn has_terminals(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let script = shell("stty size; echo err >&2; read line; stty size; echo got $line; read more; echo over");
    let mut started = Started::new(&served, script, Some(Pty { cols: 91, rows: 33 })).await?;
    started.until_text("err").await?;
    assert!(String::from_utf8_lossy(&started.stdout).contains("33 91"));
    started.resize(100, 40).await?;
    assert_eq!(code(started.resize(0, 40).await), Code::InvalidArgument);
    started.type_in(Payload::Input(Bytes::from_static(b"it\n"))).await?;
    started.until_text("got it").await?;
    started.type_in(Payload::Eof(())).await?;
    assert_eq!(started.end().await??, 0);
    let shown = String::from_utf8_lossy(&started.stdout).into_owned();
    assert!(shown.contains("40 100") && shown.contains("over"), "{shown}");
    assert!(started.stderr.is_empty(), "a terminal has one output");

    // A size that is not said is the usual one.
    let mut started = Started::new(&served, shell("stty size"), Some(Pty::default())).await?;
    assert_eq!(started.end().await??, 0);
    assert_eq!(started.stdout, b"24 80\r\n");

    // Exited, and known as long as nobody has heard all of it.
    let started = Started::new(&served, shell("head -c 600000 /dev/zero"), Some(Pty { cols: 80, rows: 24 })).await?;
    let mut last = Ok(());
    for _ in 0..3000 {
        last = started.resize(81, 24).await;
        if last.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(code(last), Code::FailedPrecondition);
    Ok(())
}

pub(crate) async fn takes_input(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let mut started = Started::new(&served, config(&["cat"]), None).await?;
    started.type_in(Payload::Input(Bytes::from_static(b"one\xff"))).await?;
    started.type_in(Payload::Input(Bytes::from_static(b"two"))).await?;
    let empty = WriteStdinRequest { process_id: started.id, payload: None };
    assert_eq!(code(started.client.write_stdin(empty).await), Code::InvalidArgument);
    started.type_in(Payload::Eof(())).await?;
    assert_eq!(started.end().await??, 0);
    assert_eq!(started.stdout, b"one\xfftwo");

    let mut started = Started::new(&served, shell("exec sleep 1000"), None).await?;
    started.type_in(Payload::Eof(())).await?;
    let late = started.type_in(Payload::Input(Bytes::from_static(b"x"))).await;
    assert_eq!(code(late), Code::FailedPrecondition, "its input is closed");
    started.signal(Signal::Sigkill.into()).await?;
    assert_eq!(started.end().await??, 137);
    Ok(())
}

pub(crate) async fn signals_reach_the_group(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let script =
        "trap 'echo int' INT; sh -c 'trap \"echo child; exit\" INT; echo ready; while :; do sleep 0.01; done'; exit 5";
    let mut started = Started::new(&served, shell(script), None).await?;
    started.until_text("ready").await?;
    started.signal(Signal::Sigint.into()).await?;
    assert_eq!(started.end().await??, 5);
    let said = String::from_utf8_lossy(&started.stdout).into_owned();
    assert!(said.contains("child") && said.contains("int"), "{said}");
    let mut started = Started::new(&served, shell("exec sleep 1000"), None).await?;
    started.signal(Signal::Sigterm.into()).await?;
    assert_eq!(started.end().await??, 143);
    Ok(())
}

const TREE: &str = "setsid sh -c 'echo $$ > pid; while :; do sleep 1; done' & wait";

pub(crate) async fn whoever_goes_away_ends_the_tree(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let started = Started::new(&served, shell(TREE), None).await?;
    let pid = pid_in(&served.root.join("pid")).await?;
    drop(started);
    until("the tree is dead", || !is_alive(pid)).await?;

    fs::remove_file(served.root.join("pid"))?;
    let mut client = served.processes().await?;
    let request = sandbar_guest::protocol::process::ExecuteRequest { config: Some(shell(TREE)) };
    let call = tokio::spawn(async move { client.execute(request).await.map(|_| ()) });
    let pid = pid_in(&served.root.join("pid")).await?;
    call.abort();
    until("the tree is dead", || !is_alive(pid)).await?;
    until("no child is left", || served.guest.children().is_empty()).await
}

pub(crate) async fn a_deadline_ends_the_tree(_: Guest) -> Outcome {
    // The second is for a busy machine, where too little was begun in the first.
    for seconds in [3, 20] {
        if is_ended_after(Duration::from_secs(seconds)).await? {
            return Ok(());
        }
    }
    Err("nothing begins before the deadline".into())
}

/// Whether there was something to be ended.
async fn is_ended_after(deadline: Duration) -> Outcome<bool> {
    let served = serve(Guest::start().await?, "").await?;
    for name in ["streamed", "executed"] {
        fs::create_dir(served.root.join(name))?;
    }
    let tree = |name: &str| Some(ProcessConfig { cwd: Some(name.into()), ..shell(TREE) });
    let executing = async |config: Option<ProcessConfig>| -> Outcome<Code> {
        let mut request = Request::new(sandbar_guest::protocol::process::ExecuteRequest { config });
        request.set_timeout(deadline);
        Ok(code(served.processes().await?.execute(request).await))
    };
    let is_late = |code: Code| matches!(code, Code::DeadlineExceeded | Code::Cancelled);
    let begun_and_dead = async |name: &str| -> Outcome<bool> {
        let Some(pid) = told_pid(&served.root.join(name)) else { return Ok(false) };
        until("the tree is dead", || !is_alive(pid)).await.map(|()| true)
    };
    let streamed = async {
        // The client of a stream does not cut it off itself.
        let mut request = Request::new(StartRequest { config: tree("streamed"), pty: None });
        request.metadata_mut().insert("grpc-timeout", format!("{}S", deadline.as_secs()).parse()?);
        let Ok(mut started) = Started::with(&served, request).await else { return Ok(false) };
        assert_eq!(code(started.end().await?), Code::DeadlineExceeded);
        begun_and_dead("streamed/pid").await
    };
    let executed = async {
        let refused = executing(tree("executed")).await?;
        assert!(is_late(refused), "{refused:?}");
        begun_and_dead("executed/pid").await
    };
    // What a command left behind in time is not its caller's any more.
    let left_behind = async {
        let script = "sleep 1000 > /dev/null 2>&1 & echo $! > daemon";
        let answered = executing(Some(shell(script))).await?;
        if is_late(answered) {
            return Ok(false);
        }
        assert_eq!(answered, Code::Ok);
        let pid = pid_in(&served.root.join("daemon")).await?;
        tokio::time::sleep(deadline + Duration::from_millis(500)).await;
        assert!(is_alive(pid), "the deadline outlived the call");
        Outcome::Ok(true)
    };
    // At once, as each takes all of its time.
    let (streamed, executed, left_behind) = tokio::try_join!(streamed, executed, left_behind)?;
    Ok(streamed && executed && left_behind)
}

pub(crate) async fn a_slow_reader_loses_nothing(guest: Guest) -> Outcome {
    const SIZE: usize = 32 << 20;
    let served = serve(guest, "").await?;
    let script = format!("head -c {SIZE} /dev/zero | tr '\\0' x; echo end >&2; echo done > finished");
    let mut started = Started::new(&served, shell(&script), None).await?;
    let before = served.guest.memory("VmRSS:")?;
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(!served.root.join("finished").exists(), "the writer did not wait");
    assert!(served.guest.memory("VmRSS:")? < before + (8 << 10), "the guest keeps it");
    assert_eq!(started.end().await??, 0);
    assert_eq!((started.stdout.len(), started.stderr.as_slice()), (SIZE, &b"end\n"[..]));
    assert!(started.stdout.iter().all(|byte| *byte == b'x'));
    Ok(())
}

pub(crate) async fn bounds_what_is_answered_in_one_piece(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let told = served.execute(shell("head -c 16777216 /dev/zero")).await??;
    assert_eq!(told.stdout.len(), 16 << 20);
    let refused = served.execute(shell("echo $$ > pid; head -c 16777217 /dev/zero; exec sleep 1000")).await?;
    assert_eq!(code(refused), Code::ResourceExhausted);
    let pid = pid_in(&served.root.join("pid")).await?;
    until("it is dead", || !is_alive(pid)).await
}

pub(crate) async fn asks_for_its_token(guest: Guest) -> Outcome {
    let served = serve(guest, TOKEN).await?;
    let mut client = served.processes().await?;
    let with = |token: Option<&str>| {
        let mut request =
            Request::new(sandbar_guest::protocol::process::ExecuteRequest { config: Some(config(&["true"])) });
        if let Some(value) = token.and_then(|token| token.parse().ok()) {
            request.metadata_mut().insert("authorization", value);
        }
        request
    };
    for wrong in [None, Some("Bearer wrong"), Some(TOKEN), Some("Bearer "), Some("Basic a-token-of-24-characters")] {
        assert_eq!(code(client.execute(with(wrong)).await), Code::Unauthenticated, "{wrong:?}");
    }
    client.execute(with(Some(&format!("Bearer {TOKEN}")))).await?;
    let signal = SendSignalRequest { process_id: 1, signal: 15 };
    assert_eq!(code(client.send_signal(signal).await), Code::Unauthenticated);
    let listed = services(&served).await;
    assert!(listed.is_err(), "reflection asks for it too");
    Ok(())
}

async fn services(served: &Served) -> Outcome<Vec<String>> {
    let mut client = ServerReflectionClient::new(served.channel().await?);
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let requests = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("process.v1.ProcessService".into())),
    ]);
    let mut replies = client.server_reflection_info(requests).await?.into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        replies.message().await?.and_then(|reply| reply.message_response)
    else {
        return Err("no list of services".into());
    };
    let Some(MessageResponse::FileDescriptorResponse(files)) =
        replies.message().await?.and_then(|reply| reply.message_response)
    else {
        return Err("no descriptor".into());
    };
    assert!(files.file_descriptor_proto.iter().any(|file| file.windows(9).any(|part| part == b"ResizeTTY")));
    Ok(list.service.into_iter().map(|service| service.name).collect())
}

pub(crate) async fn reflects(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let listed = services(&served).await?;
    assert!(listed.contains(&"process.v1.ProcessService".to_owned()), "{listed:?}");
    assert!(!listed.iter().any(|name| name.contains("sandbar")), "{listed:?}");
    let path = "/sandbar.guest.v1.Guest/Hello";
    let mut grpc = tonic::client::Grpc::new(served.channel().await?);
    grpc.ready().await?;
    let codec =
        tonic_prost::ProstCodec::<sandbar_guest::protocol::HelloRequest, sandbar_guest::protocol::HelloReply>::default(
        );
    let hello = Request::new(sandbar_guest::protocol::HelloRequest {});
    let refused = grpc.unary(hello, path.parse()?, codec).await;
    assert_eq!(code(refused), Code::Unimplemented, "the server's own protocol is not for those inside");
    Ok(())
}

pub(crate) async fn bounds_what_it_is_asked(guest: Guest) -> Outcome {
    let served = serve(guest, "").await?;
    let many = vec!["x"; 300_000];
    let refused = served.execute(config(&many)).await?.err().ok_or("it was read")?;
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    // What is typed may be larger.
    let mut processes = served.processes().await?;
    let request = StartRequest { config: Some(shell("wc -c")), pty: None };
    let mut events = processes.start(request).await?.into_inner();
    let Some(Event::Init(init)) = events.message().await?.and_then(|event| event.event) else {
        return Err("no init".into());
    };
    for payload in [Payload::Input(vec![7; 3 << 20].into()), Payload::Eof(())] {
        processes.write_stdin(WriteStdinRequest { process_id: init.process_id, payload: Some(payload) }).await?;
    }
    let Some(Event::Stdout(counted)) = events.message().await?.and_then(|event| event.event) else {
        return Err("no output".into());
    };
    assert_eq!(counted, "3145728\n");
    Ok(())
}

//! Processes that outlive their call, and the lives of sandboxes and sessions.

use tonic::{Code, Request, Streaming};

use crate::{
    grpc::api::{
        CreateSandboxRequest, CreateSessionRequest, DeleteSandboxRequest, DeleteSessionRequest, GetProcessRequest,
        GetSandboxRequest, GetSessionRequest, InputRequest, ListProcessesRequest, ListSandboxesRequest,
        ListSessionsRequest, OutputEvent, OutputRequest, ProcessState, ResizeRequest, SandboxState, SessionState,
        SignalRequest, StartProcessRequest, StopSandboxRequest, Stream, TerminalSize, output_event::Event,
        processes_client::ProcessesClient, sandboxes_client::SandboxesClient, sessions_client::SessionsClient,
    },
    grpc::channel,
    grpc::next,
    grpc::told,
    support::Bench,
};

type Client = ProcessesClient<tonic::transport::Channel>;

pub(crate) fn command(script: &str) -> StartProcessRequest {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    StartProcessRequest { sandbox: "box".to_owned(), argv, cwd: Some("/".to_owned()), ..Default::default() }
}

async fn read(client: &mut Client, process: &str, more: OutputRequest) -> (String, u64, Option<i32>) {
    let request = OutputRequest { sandbox: "box".to_owned(), process: process.to_owned(), ..more };
    let mut events = client.output(request).await.unwrap().into_inner();
    let (mut text, mut end, mut code) = (String::new(), 0, None);
    while let Some(event) = events.message().await.unwrap() {
        match event.event.unwrap() {
            Event::Output(chunk) => {
                end = chunk.offset + chunk.data.len() as u64;
                text.push_str(&String::from_utf8_lossy(&chunk.data));
            }
            Event::Exit(exit) => code = exit.exit.map(|exit| exit.code),
        }
    }
    (text, end, code)
}

/// Reads until the output has it, which may come in parts.
async fn shows(events: &mut Streaming<OutputEvent>, text: &str) {
    let mut shown = String::new();
    while !shown.contains(text) {
        match next(events).await.event.unwrap() {
            Event::Output(chunk) => shown.push_str(&String::from_utf8_lossy(&chunk.data)),
            Event::Exit(exit) => panic!("{exit:?} after {shown}"),
        }
    }
}

pub(crate) async fn used(bench: &Bench) {
    let mut client = ProcessesClient::new(channel(bench).await);
    let request = StartProcessRequest { stdin: true, ..command("echo a; echo b >&2; read x; echo got $x; exit 4") };
    let process = client.start(request).await.unwrap().into_inner();
    assert_eq!((process.state(), process.terminal), (ProcessState::Running, false));
    let named = |offset, data: &'static [u8], eof| InputRequest {
        sandbox: "box".to_owned(),
        process: process.id.clone(),
        offset,
        data: data.into(),
        eof,
    };
    // A repeat types nothing twice.
    for _ in 0..2 {
        assert_eq!(client.input(named(Some(0), b"on", false)).await.unwrap().into_inner().offset, 2);
    }
    assert_eq!(client.input(named(None, b"e\n", true)).await.unwrap().into_inner().offset, 4);
    let (all, end, code) = read(&mut client, &process.id, OutputRequest { follow: true, ..Default::default() }).await;
    assert_eq!((all.len() as u64, code), (end, Some(4)));
    // Two pipes have no order between them.
    let said = OutputRequest { stream: Stream::Stdout.into(), ..Default::default() };
    assert_eq!(read(&mut client, &process.id, said).await.0, "a\ngot one\n");
    let from_offset = all.find("one").map(|at| at as u64);
    let part = OutputRequest { from_offset, limit: Some(3), ..Default::default() };
    assert_eq!(read(&mut client, &process.id, part).await.0, "one");
    let errors = OutputRequest { stream: Stream::Stderr.into(), ..Default::default() };
    assert_eq!(read(&mut client, &process.id, errors).await.0, "b\n");
    let over = client.input(named(None, b"x", false)).await.unwrap_err();
    assert_eq!(told(&over), (Code::FailedPrecondition, "process_over".to_owned()));
    let beyond = OutputRequest {
        sandbox: "box".into(),
        process: process.id.clone(),
        from_offset: Some(999),
        ..Default::default()
    };
    let beyond = client.output(beyond).await.unwrap_err();
    assert_eq!(told(&beyond), (Code::OutOfRange, "offset_beyond".to_owned()));

    let size = Some(TerminalSize { cols: 100, rows: 30 });
    let request = StartProcessRequest {
        terminal: size,
        ..command("trap 'stty size; exit 7' WINCH; echo on; while :; do sleep 0.1; done")
    };
    let terminal = client.start(request).await.unwrap().into_inner();
    let mut events = client
        .output(OutputRequest {
            sandbox: "box".into(),
            process: terminal.id.clone(),
            follow: true,
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    shows(&mut events, "on").await;
    let resize = |size| ResizeRequest { sandbox: "box".into(), process: terminal.id.clone(), size };
    for bad in [None, Some(TerminalSize { cols: 0, rows: 1 }), Some(TerminalSize { cols: 70_000, rows: 1 })] {
        assert_eq!(client.resize(resize(bad)).await.unwrap_err().code(), Code::InvalidArgument);
    }
    client.resize(resize(Some(TerminalSize { cols: 90, rows: 20 }))).await.unwrap();
    shows(&mut events, "20 90").await;
    let exit = loop {
        if let Event::Exit(exit) = next(&mut events).await.event.unwrap() {
            break exit;
        }
    };
    assert_eq!(exit.exit.unwrap().code, 7);

    let sleeping = client.start(command("sleep 100")).await.unwrap().into_inner();
    let signal =
        |signal: &str| SignalRequest { sandbox: "box".into(), process: sleeping.id.clone(), signal: signal.into() };
    assert_eq!(client.signal(signal("NONE")).await.unwrap_err().code(), Code::InvalidArgument);
    client.signal(signal("KILL")).await.unwrap();
    let (_, _, code) = read(&mut client, &sleeping.id, OutputRequest { follow: true, ..Default::default() }).await;
    assert_eq!(code, Some(137));
    let get = GetProcessRequest { sandbox: "box".into(), process: sleeping.id.clone() };
    assert_eq!(client.get(get).await.unwrap().into_inner().state(), ProcessState::Exited);

    let mut listed = client.list(ListProcessesRequest { sandbox: "box".into() }).await.unwrap().into_inner();
    let mut ids = vec![];
    while let Some(process) = listed.message().await.unwrap() {
        ids.push(process.id);
    }
    assert!(ids.ends_with(&[process.id, terminal.id, sleeping.id]), "{ids:?}");
}

pub(crate) async fn lives(bench: &Bench) {
    let channel = channel(bench).await;
    let (mut sandboxes, mut sessions) = (SandboxesClient::new(channel.clone()), SessionsClient::new(channel));
    let keyed = |name: &str| {
        let labels = [("team".to_owned(), "a".to_owned())].into();
        let ttl = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
        let request = CreateSandboxRequest { name: Some(name.to_owned()), labels, ttl, ..Default::default() };
        let mut request = Request::new(request);
        request.metadata_mut().insert("idempotency-key", "grpc-1".parse().unwrap());
        request
    };
    let made = sandboxes.create(keyed("grpc")).await.unwrap();
    assert!(made.metadata().get("idempotency-replayed").is_none());
    let made = made.into_inner();
    assert_eq!((made.state(), made.name.as_str(), made.template.as_str()), (SandboxState::Ready, "grpc", "default"));
    assert_eq!(made.expires_at.unwrap().seconds - made.created_at.unwrap().seconds, 3600);
    let again = sandboxes.create(keyed("grpc")).await.unwrap();
    assert_eq!(again.metadata().get("idempotency-replayed").unwrap(), "true");
    assert_eq!(again.into_inner().id, made.id);
    let other = sandboxes.create(keyed("other")).await.unwrap_err();
    assert_eq!(told(&other), (Code::FailedPrecondition, "idempotency_mismatch".to_owned()));
    let taken = CreateSandboxRequest { name: Some("grpc".to_owned()), ..Default::default() };
    assert_eq!(told(&sandboxes.create(taken).await.unwrap_err()), (Code::AlreadyExists, "name_taken".to_owned()));

    let labels = [("team".to_owned(), "a".to_owned())].into();
    let list = ListSandboxesRequest { labels, states: vec![SandboxState::Ready.into()], ..Default::default() };
    let page = sandboxes.list(list).await.unwrap().into_inner();
    assert_eq!(page.sandboxes.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), [made.id.as_str()]);
    let stopped = sandboxes.stop(StopSandboxRequest { sandbox: "grpc".into() }).await.unwrap().into_inner();
    assert_eq!((stopped.state(), stopped.reason.unwrap().code.as_str()), (SandboxState::Stopped, "requested"));

    let session = sessions.get(GetSessionRequest { session: made.session.clone() }).await.unwrap().into_inner();
    assert_eq!((session.state(), session.owner.as_str()), (SessionState::Idle, "socket"));
    assert_eq!(session.sandboxes, std::slice::from_ref(&made.id));
    for _ in 0..2 {
        sandboxes.delete(DeleteSandboxRequest { sandbox: made.id.clone() }).await.unwrap();
    }
    let gone = sandboxes.get(GetSandboxRequest { sandbox: made.id }).await.unwrap().into_inner();
    assert_eq!(gone.state(), SandboxState::Deleted);

    let request = CreateSessionRequest {
        name: Some("talk".to_owned()),
        command: ["sh", "-c", "sleep 100"].map(str::to_owned).to_vec(),
        cwd: Some("/".to_owned()),
        ..Default::default()
    };
    let talk = sessions.create(request).await.unwrap().into_inner();
    assert_eq!((talk.terminals.len(), talk.name.as_deref()), (1, Some("talk")));
    let listed = sessions.list(ListSessionsRequest::default()).await.unwrap().into_inner();
    assert!(listed.sessions.iter().any(|found| found.id == talk.id));
    sessions.delete(DeleteSessionRequest { session: "talk".into() }).await.unwrap();
    let ended = sessions.get(GetSessionRequest { session: talk.id }).await.unwrap().into_inner();
    assert_eq!(ended.state(), SessionState::Ended);
    assert!(ended.deleted_at.is_some());
}

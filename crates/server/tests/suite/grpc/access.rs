//! Who is let in, what is refused, and how it is told.

use prost::Message as _;
use sandbar_api::{CreateToken, NewToken, Role};
use tonic::{
    Code, Request,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use crate::{
    grpc::api::{
        AttachOpen, AttachRequest, Control, CreateSandboxRequest, ExecRequest, ForkSandboxRequest, GetProcessRequest,
        GetSandboxRequest, GetSessionRequest, ListFilesRequest, ListSandboxesRequest, ListSessionsRequest,
        PauseSandboxRequest, ReadRequest, SearchRequest, StatRequest, attach_request::Message,
        files_client::FilesClient, processes_client::ProcessesClient, sandboxes_client::SandboxesClient,
        sessions_client::SessionsClient, terminals_client::TerminalsClient,
    },
    grpc::channel,
    grpc::end,
    grpc::exec::shell,
    grpc::listeners::Listener,
    grpc::next,
    grpc::told,
    grpc::with,
    support::Bench,
};

async fn token(bench: &Bench, role: Role, session: Option<&str>) -> NewToken {
    let session = session.map(|session| session.parse().unwrap());
    bench.engine.create_token(CreateToken { name: "test".to_owned(), role, session, ttl: None }).await.unwrap()
}

pub(crate) async fn errors(bench: &Bench) {
    let channel = channel(bench).await;
    let mut sandboxes = SandboxesClient::new(channel.clone());
    let create = |change: fn(&mut CreateSandboxRequest)| {
        let mut request = CreateSandboxRequest::default();
        change(&mut request);
        request
    };
    for (request, code, name) in [
        (create(|wanted| wanted.name = Some("Not A Name".into())), Code::InvalidArgument, "bad_name"),
        (create(|wanted| wanted.template = Some("none".into())), Code::NotFound, "unknown_template"),
        (create(|wanted| wanted.session = Some("nobody".into())), Code::InvalidArgument, "bad_request"),
        (create(|wanted| wanted.from_snapshot = Some("none".into())), Code::NotFound, "unknown_snapshot"),
        (create(|wanted| wanted.secrets = vec!["NONE".into()]), Code::NotFound, "unknown_secret"),
        (
            create(|wanted| wanted.ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 })),
            Code::InvalidArgument,
            "bad_duration",
        ),
    ] {
        assert_eq!(told(&sandboxes.create(request).await.unwrap_err()), (code, name.to_owned()));
    }
    let get = GetSandboxRequest { sandbox: "nobody".into() };
    let unknown = sandboxes.get(get).await.unwrap_err();
    assert_eq!(told(&unknown), (Code::NotFound, "unknown_sandbox".to_owned()));
    assert!(unknown.message().contains("nobody") && unknown.message().contains(". "), "{}", unknown.message());
    let limit = ListSandboxesRequest { limit: Some(0), ..Default::default() };
    assert_eq!(sandboxes.list(limit).await.unwrap_err().code(), Code::InvalidArgument);
    let cursor = ListSandboxesRequest { cursor: Some("x".into()), ..Default::default() };
    assert_eq!(told(&sandboxes.list(cursor).await.unwrap_err()), (Code::InvalidArgument, "bad_cursor".to_owned()));
    let pause = PauseSandboxRequest { sandbox: "nobody".into() };
    assert_eq!(told(&sandboxes.pause(pause).await.unwrap_err()), (Code::NotFound, "unknown_sandbox".to_owned()));
    let fork = ForkSandboxRequest { sandbox: "box".into(), count: Some(0), ..Default::default() };
    assert_eq!(sandboxes.fork(fork).await.unwrap_err().code(), Code::InvalidArgument);

    let mut processes = ProcessesClient::new(channel.clone());
    for (request, code, name) in [
        (ExecRequest { argv: vec![], ..shell("") }, Code::InvalidArgument, "bad_command"),
        (ExecRequest { argv: vec!["x".repeat(5 << 20)], ..shell("") }, Code::ResourceExhausted, "too_large"),
        (ExecRequest { argv: vec!["no-such".into()], ..shell("") }, Code::FailedPrecondition, "command_not_found"),
        (ExecRequest { cwd: Some("/none".into()), ..shell("") }, Code::NotFound, "unknown_file"),
        (ExecRequest { sandbox: "nobody".into(), ..shell("") }, Code::NotFound, "unknown_sandbox"),
        (ExecRequest { env: [("=".into(), "x".into())].into(), ..shell("") }, Code::InvalidArgument, "bad_env"),
    ] {
        assert_eq!(told(&processes.exec(request).await.unwrap_err()), (code, name.to_owned()));
    }
    let get = GetProcessRequest { sandbox: "box".into(), process: "prc-0".into() };
    assert_eq!(told(&processes.get(get).await.unwrap_err()), (Code::NotFound, "unknown_process".to_owned()));
    // A long path comes back cut, in a status that fits.
    let path = format!("/{}", "ü/".repeat(1300));
    let long =
        FilesClient::new(channel.clone()).list(ListFilesRequest { sandbox: "box".into(), path }).await.unwrap_err();
    assert_eq!(told(&long), (Code::NotFound, "unknown_file".to_owned()));
    let key = "k".repeat(256);
    let mut keyed = Request::new(CreateSandboxRequest::default());
    keyed.metadata_mut().insert("idempotency-key", key.parse().unwrap());
    assert_eq!(told(&sandboxes.create(keyed).await.unwrap_err()), (Code::InvalidArgument, "bad_request".to_owned()));
}

/// Calls a method that the generated client does not have.
async fn call(channel: &Channel, path: &'static str, secret: &str) -> tonic::Status {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<GetSandboxRequest, GetSandboxRequest>::default();
    let request = with(secret, GetSandboxRequest::default());
    client.unary(request, axum::http::uri::PathAndQuery::from_static(path), codec).await.unwrap_err()
}

pub(crate) async fn asleep(bench: &Bench) {
    bench.put_away("nap").await;
    let before = bench.provider.counts();
    let (viewer, operator) = (token(bench, Role::Viewer, None).await, token(bench, Role::Operator, None).await);
    let listener = Listener::new(bench, None).await;
    let mut files = FilesClient::new(listener.channel().await);
    let (sandbox, path) = ("nap".to_owned(), "/etc".to_owned());
    let list = ListFilesRequest { sandbox: sandbox.clone(), path: path.clone() };
    let stat = StatRequest { sandbox: sandbox.clone(), path: path.clone() };
    let read = ReadRequest { sandbox: sandbox.clone(), path: path.clone(), ..Default::default() };
    let search = SearchRequest { sandbox, path, pattern: Some("x".to_owned()), ..Default::default() };
    let refusals = [
        files.list(with(&viewer.secret, list.clone())).await.map(drop),
        files.stat(with(&viewer.secret, stat)).await.map(drop),
        files.read(with(&viewer.secret, read)).await.map(drop),
        files.search(with(&viewer.secret, search)).await.map(drop),
    ];
    for refused in refusals {
        assert_eq!(told(&refused.unwrap_err()), (Code::FailedPrecondition, "wrong_state".to_owned()));
    }
    assert_eq!(bench.provider.counts(), before);
    files.list(with(&operator.secret, list)).await.unwrap();
    assert_eq!(bench.provider.counts().0, before.0 + 1, "the control");
    bench.engine.delete("nap").await.unwrap();
}

pub(crate) async fn tokens(bench: &Bench) {
    let listener = Listener::new(bench, None).await;
    let channel = listener.channel().await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "sandbar.v1.Sandboxes", "sandbar.v1.Terminals"] {
        let asked = HealthCheckRequest { service: service.to_owned() };
        assert_eq!(health.check(asked.clone()).await.unwrap().into_inner().status(), ServingStatus::Serving);
        let mut watched = health.watch(asked).await.unwrap().into_inner();
        assert_eq!(next(&mut watched).await.status(), ServingStatus::Serving);
    }
    let unknown = HealthCheckRequest { service: "none".to_owned() };
    assert_eq!(health.check(unknown.clone()).await.unwrap_err().code(), Code::NotFound);
    let mut watched = health.watch(unknown).await.unwrap().into_inner();
    assert_eq!(next(&mut watched).await.status(), ServingStatus::ServiceUnknown);

    let get = || GetSandboxRequest { sandbox: "box".into() };
    let mut sandboxes = SandboxesClient::new(channel.clone());
    let mut processes = ProcessesClient::new(channel.clone());
    let refused = (Code::Unauthenticated, "unauthenticated".to_owned());
    assert_eq!(told(&sandboxes.get(get()).await.unwrap_err()), refused);
    assert_eq!(told(&sandboxes.get(with("sbt_wrong", get())).await.unwrap_err()), refused);
    assert_eq!(told(&processes.exec(shell("true")).await.unwrap_err()), refused);
    assert_eq!(told(&call(&channel, "/sandbar.v1.Sandboxes/Explode", "sbt_wrong").await), refused);
    let mut reflection = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let asked = tokio_stream::iter([v1::ServerReflectionRequest::default()]);
    assert_eq!(told(&reflection.server_reflection_info(asked).await.unwrap_err()), refused);

    let viewer = token(bench, Role::Viewer, None).await.secret;
    let session = sandboxes.get(with(&viewer, get())).await.unwrap().into_inner().session;
    let forbidden = (Code::PermissionDenied, "forbidden".to_owned());
    assert_eq!(told(&processes.exec(with(&viewer, shell("true"))).await.unwrap_err()), forbidden);
    assert_eq!(told(&sandboxes.create(with(&viewer, Default::default())).await.unwrap_err()), forbidden);
    let files = ListFilesRequest { sandbox: "box".into(), path: "/".into() };
    let mut listed = FilesClient::new(channel.clone()).list(with(&viewer, files.clone())).await.unwrap().into_inner();
    assert!(!next(&mut listed).await.name.is_empty());
    let terminal = crate::grpc::api::StartProcessRequest {
        terminal: Some(crate::grpc::api::TerminalSize { cols: 80, rows: 24 }),
        ..crate::grpc::processes::command("sleep 100")
    };
    let operator = token(bench, Role::Operator, None).await.secret;
    let terminal = processes.start(with(&operator, terminal)).await.unwrap().into_inner();
    let open = |control: Control| {
        let (sandbox, process) = ("box".to_owned(), terminal.id.clone());
        let open = AttachOpen { sandbox, process, control: control.into(), ..AttachOpen::default() };
        tokio_stream::iter([AttachRequest { message: Some(Message::Open(open)) }])
    };
    let mut terminals = TerminalsClient::new(channel.clone());
    terminals.attach(with(&viewer, open(Control::View))).await.unwrap();
    assert_eq!(told(&terminals.attach(with(&viewer, open(Control::Free))).await.unwrap_err()), forbidden);
    terminals.attach(with(&operator, open(Control::Free))).await.unwrap();

    let agent = token(bench, Role::Agent, Some(&session)).await.secret;
    let mut sessions = SessionsClient::new(channel.clone());
    let own = GetSessionRequest { session: session.clone() };
    assert_eq!(sessions.get(with(&agent, own)).await.unwrap().into_inner().id, session);
    let all = sessions.list(with(&agent, ListSessionsRequest::default())).await.unwrap().into_inner().sessions;
    assert_eq!(all.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), [session.as_str()]);
    let foreign = GetSessionRequest { session: "small".into() };
    assert_eq!(told(&sessions.get(with(&agent, foreign)).await.unwrap_err()), forbidden);
    assert_eq!(told(&sandboxes.get(with(&agent, get())).await.unwrap_err()), forbidden);
    assert_eq!(told(&processes.exec(with(&agent, shell("true"))).await.unwrap_err()), forbidden);
    assert_eq!(told(&terminals.attach(with(&agent, open(Control::View))).await.unwrap_err()), forbidden);
    let files = FilesClient::new(channel.clone()).list(with(&agent, files)).await.unwrap_err();
    assert_eq!(told(&files), forbidden);

    for path in ["/sandbar.v1.Sandboxes/Explode", "/sandbar.v2.Sandboxes/Get", "/nothing"] {
        let unknown = call(&channel, path, &operator).await;
        assert_eq!(told(&unknown), (Code::Unimplemented, "unknown_route".to_owned()), "{path}");
    }
    // Before any token is looked at.
    let rebound = Endpoint::from_shared(format!("http://{}", listener.address)).unwrap();
    let rebound = rebound.origin("http://evil.example".parse().unwrap()).connect().await.unwrap();
    for secret in [&operator, "sbt_wrong"] {
        let foreign = SandboxesClient::new(rebound.clone()).get(with(secret, get())).await.unwrap_err();
        assert_eq!(told(&foreign), (Code::PermissionDenied, "foreign_host".to_owned()));
    }
    let mut crossed = with(&operator, get());
    crossed.metadata_mut().insert("origin", "http://evil.example".parse().unwrap());
    let crossed = sandboxes.get(crossed).await.unwrap_err();
    assert_eq!(told(&crossed), (Code::PermissionDenied, "foreign_origin".to_owned()));
}

pub(crate) async fn revoked(bench: &Bench) {
    let listener = Listener::new(bench, None).await;
    let channel = listener.channel().await;
    let NewToken { token, secret } = token(bench, Role::Operator, None).await;
    let mut processes = ProcessesClient::new(channel.clone());
    let mut idle = processes.exec(with(&secret, shell("sleep 100"))).await.unwrap().into_inner();
    let mut busy = processes.exec(with(&secret, shell("yes"))).await.unwrap().into_inner();
    let begun = next(&mut idle).await;
    next(&mut busy).await;
    bench.engine.revoke_token(token.id.as_str()).await.unwrap();
    for events in [&mut idle, &mut busy] {
        let ended = end(events).await.unwrap_err();
        assert_eq!(told(&ended), (Code::Unauthenticated, "unauthenticated".to_owned()));
    }
    let Some(crate::grpc::api::exec_event::Event::Started(process)) = begun.event else { panic!("not started first") };
    assert_eq!(bench.ended(&process.id).await.exit.unwrap().code, 137, "what belonged to the call ended with it");
}

pub(crate) async fn reflection(bench: &Bench) {
    use v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let channel = channel(bench).await;
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let asked = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("sandbar.v1.Processes.Exec".to_owned())),
        ask(MessageRequest::FileByFilename("google/protobuf/timestamp.proto".to_owned())),
        ask(MessageRequest::FileContainingSymbol("sandbar.v1.Nothing".to_owned())),
    ]);
    let mut told =
        ServerReflectionClient::new(channel.clone()).server_reflection_info(asked).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(services)) = next(&mut told).await.message_response else {
        panic!()
    };
    let mut names: Vec<_> = services.service.into_iter().map(|service| service.name).collect();
    names.sort();
    let own = ["Files", "Processes", "Sandboxes", "Sessions", "Terminals"].map(|name| format!("sandbar.v1.{name}"));
    let common = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"].map(str::to_owned);
    assert_eq!(names, [&common[..], &own[..]].concat());
    for (name, imports) in [("sandbar/v1/sandbar.proto", 2), ("google/protobuf/timestamp.proto", 0)] {
        let Some(MessageResponse::FileDescriptorResponse(files)) = next(&mut told).await.message_response else {
            panic!()
        };
        let file = prost_types::FileDescriptorProto::decode(files.file_descriptor_proto[0].as_slice()).unwrap();
        assert_eq!((file.name(), file.dependency.len()), (name, imports));
    }
    assert_eq!(end(&mut told).await.unwrap_err().code(), Code::NotFound);

    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut older = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut told = older.server_reflection_info(tokio_stream::iter([asked])).await.unwrap().into_inner();
    assert!(next(&mut told).await.message_response.is_some());
}

//! TCP, TLS and the end of the server.

use std::{fs, net::SocketAddr, sync::Arc};

use axum::http::StatusCode;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use sandbar_api::{CreateToken, ProcessState, Role};
use sandbar_engine::Engine;
use sandbar_server::{Options, Server, Tls};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Code,
    transport::{Channel, Endpoint, Uri},
};

use crate::{
    grpc::SOON,
    grpc::api::{
        GetSandboxRequest, exec_event::Event, processes_client::ProcessesClient, sandboxes_client::SandboxesClient,
    },
    grpc::attach,
    grpc::channel,
    grpc::end,
    grpc::exec::shell,
    grpc::next,
    grpc::told,
    grpc::with,
    support::{Bench, request},
};

/// Another server over the same engine, on a port of its own.
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    _closing: DropGuard,
}

impl Listener {
    pub(crate) async fn new(bench: &Bench, tls: Option<Tls>) -> Self {
        let socket = tempfile::Builder::new().prefix("s").tempdir_in(bench.directory.path()).unwrap().keep();
        let options = Options {
            tcp: Some("127.0.0.1:0".parse().unwrap()),
            tls,
            socket: socket.join("s"),
            version: "test",
            preview_domain: None,
            shared: false,
        };
        let server = Server::bind(bench.engine.clone(), options).await.unwrap();
        let (address, closing) = (server.tcp_address().unwrap(), CancellationToken::new());
        tokio::spawn(server.serve(closing.clone()));
        Self { address, _closing: closing.drop_guard() }
    }

    /// Without TLS, knowing that HTTP/2 is spoken.
    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }
}

async fn operator(engine: &Engine) -> String {
    let request = CreateToken { name: "test".to_owned(), role: Role::Operator, session: None, ttl: None };
    engine.create_token(request).await.unwrap().secret
}

pub(crate) async fn plain_http(bench: &Bench) {
    let path = "/sandbar.v1.Sandboxes/List";
    for (method, headers, status, code) in [
        ("POST", &[("content-type", "application/json")][..], 415, "unsupported_media"),
        ("POST", &[("content-type", "application/grpc-web")], 415, "unsupported_media"),
        ("POST", &[], 415, "unsupported_media"),
        ("GET", &[("accept", "application/json")], 405, "method_not_allowed"),
    ] {
        let answer = bench.send(method, path, headers, "").await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{method} {headers:?}");
    }
    // What every answer has, a gRPC one has too.
    let (head, _) = bench.begin(request("POST", path, &[("content-type", "application/grpc")], "")).await;
    assert_eq!((head.status, &head.headers["x-content-type-options"]), (StatusCode::OK, &"nosniff".parse().unwrap()));
    assert!(head.headers.contains_key("x-request-id"));
    let mut client = ProcessesClient::new(channel(bench).await);
    end(&mut client.exec(shell("exit 0")).await.unwrap().into_inner()).await.unwrap();
    let metrics = bench.get("/metrics").await.text();
    assert!(metrics.contains(r#"route="/sandbar.v1.Processes/Exec",method="POST",status="2xx""#), "{metrics}");
    // Compressed messages are not taken, and clients are told in the way that has them call again without.
    let compressed = [("content-type", "application/grpc"), ("grpc-encoding", "gzip")];
    let answer = bench.send("POST", path, &compressed, "").await;
    let told = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!((told("grpc-status"), told("sandbar-code")), (Some("12"), Some("unsupported_media")));
    assert_eq!(told("grpc-accept-encoding"), Some("identity"));
}

pub(crate) async fn tls(bench: &Bench) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let place = bench.directory.path();
    let tls = Tls { certificate: place.join("cert.pem"), key: place.join("key.pem") };
    fs::write(&tls.certificate, made.cert.pem()).unwrap();
    fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&tls.certificate).unwrap()).unwrap();
    let listener = Listener::new(bench, Some(tls)).await;
    let address = listener.address;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connect = tower::service_fn(move |_: Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_shared(format!("http://localhost:{}", address.port())).unwrap();
    let channel = endpoint.connect_with_connector(connect).await.unwrap();
    let get = || GetSandboxRequest { sandbox: "box".into() };
    let mut client = SandboxesClient::new(channel);
    assert_eq!(client.get(get()).await.unwrap_err().code(), Code::Unauthenticated);
    let secret = operator(&bench.engine).await;
    assert_eq!(client.get(with(&secret, get())).await.unwrap().into_inner().name, "box");
}

/// Streams are told, what runs goes on.
pub(crate) async fn ended(bench: Bench) {
    let channel = channel(&bench).await;
    let mut client = ProcessesClient::new(channel.clone());
    let mut events = client.exec(shell("sleep 100")).await.unwrap().into_inner();
    let Some(Event::Started(process)) = next(&mut events).await.event else { panic!("not started first") };
    let size = Some(crate::grpc::api::TerminalSize { cols: 80, rows: 24 });
    let request =
        crate::grpc::api::StartProcessRequest { terminal: size, ..crate::grpc::processes::command("sleep 100") };
    let terminal = client.start(request).await.unwrap().into_inner();
    let open = crate::grpc::api::AttachOpen { sandbox: "box".into(), process: terminal.id, ..Default::default() };
    let mut viewer = attach::attach(&channel, open).await.unwrap();
    bench.closing.cancel();
    for ended in [end(&mut events).await, viewer.ends().await] {
        assert_eq!(told(&ended.unwrap_err()), (Code::Unavailable, "shutting_down".to_owned()));
    }
    drop((client, channel, events, viewer));
    tokio::time::timeout(SOON, bench.serving).await.expect("serving ends").unwrap().unwrap();
    let found = bench.engine.process("box", &process.id).await.unwrap();
    assert_eq!(found.state, ProcessState::Running);
}

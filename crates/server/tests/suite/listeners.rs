//! Real listeners: what is refused at binding, who is answered where, and how serving ends.

use sandbar_test_harness::Test;
use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use sandbar_api::{CreateToken, Role};
use sandbar_engine::{Config, Engine};
use sandbar_server::{BindError, HealthListener, Options, Server, Tls};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
};
use tokio_util::sync::CancellationToken;

use crate::support::test;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "listeners::what_is_unsafe_or_impossible_is_refused_with_the_fix",
            what_is_unsafe_or_impossible_is_refused_with_the_fix(),
        ),
        test(
            "listeners::the_owner_needs_no_token_and_the_network_does",
            the_owner_needs_no_token_and_the_network_does(),
        ),
        test("listeners::a_public_address_speaks_tls", a_public_address_speaks_tls()),
        test("listeners::operators_get_in_whoever_else_is_there", operators_get_in_whoever_else_is_there()),
        test(
            "listeners::a_renewed_certificate_is_shown_and_a_mistake_is_not",
            a_renewed_certificate_is_shown_and_a_mistake_is_not(),
        ),
        test("listeners::health_has_an_address_of_its_own", health_has_an_address_of_its_own()),
    ]
}

struct Place {
    directory: TempDir,
    engine: Engine,
}

impl Place {
    async fn new() -> Self {
        let directory = sandbar_test_harness::scratch().unwrap();
        let home = directory.path().join("home");
        let engine =
            Engine::open(Config { home, providers: Vec::new(), asks: true, ..Config::default() }).await.unwrap();
        Self { directory, engine }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("run/sandbar.sock")
    }

    async fn bind(&self, tcp: Option<&str>, tls: Option<Tls>, socket: &Path) -> Result<Server, BindError> {
        let tcp = tcp.map(|address| address.parse().unwrap());
        Server::bind(
            self.engine.clone(),
            Options { tcp, tls, socket: socket.to_owned(), version: "test", preview_domain: None, shared: false },
        )
        .await
    }

    /// A certificate for `localhost` and its key.
    fn tls(&self) -> Tls {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let tls = Tls { certificate: self.path("cert.pem"), key: self.path("key.pem") };
        fs::write(&tls.certificate, made.cert.pem()).unwrap();
        fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
        tls
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, host: &str, rest: &str) -> String {
    let request = format!("GET {rest} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn what_is_unsafe_or_impossible_is_refused_with_the_fix() {
    let place = Place::new().await;
    let socket = place.socket();
    let refused = async |tcp: Option<&str>, tls: Option<Tls>, socket: &Path| {
        place.bind(tcp, tls, socket).await.err().unwrap_or_else(|| panic!("{tcp:?} {socket:?} was bound"))
    };

    assert!(matches!(refused(Some("0.0.0.0:0"), None, &socket).await, BindError::NeedsTls(_)));
    assert!(matches!(refused(Some("[::]:0"), None, &socket).await, BindError::NeedsTls(_)));

    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(matches!(refused(Some(&address), None, &socket).await, BindError::AddressInUse(_)));

    let good = place.tls();
    let missing = Tls { certificate: place.path("none.pem"), ..good.clone() };
    assert!(matches!(refused(Some("0.0.0.0:0"), Some(missing), &socket).await, BindError::Pem { .. }));
    let swapped = Tls { certificate: good.key.clone(), key: good.key.clone() };
    assert!(matches!(refused(Some("0.0.0.0:0"), Some(swapped), &socket).await, BindError::NoCertificate(_)));
    let other = rcgen::KeyPair::generate().unwrap();
    fs::write(place.path("other.pem"), other.serialize_pem()).unwrap();
    let mismatched = Tls { key: place.path("other.pem"), ..good };
    assert!(matches!(refused(Some("0.0.0.0:0"), Some(mismatched), &socket).await, BindError::Tls(_)));

    let long = place.path(&"x".repeat(120));
    assert!(matches!(refused(None, None, &long).await, BindError::SocketTooLong { .. }));
    fs::write(place.path("file"), "precious").unwrap();
    assert!(matches!(refused(None, None, &place.path("file")).await, BindError::NotASocket(_)));
    assert_eq!(fs::read_to_string(place.path("file")).unwrap(), "precious");
    fs::create_dir(place.path("open")).unwrap();
    fs::set_permissions(place.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(refused(None, None, &place.path("open/s")).await, BindError::OpenDirectory { .. }));
}

async fn the_owner_needs_no_token_and_the_network_does() {
    let place = Place::new().await;
    let socket = place.socket();
    // Left over by a server that was killed.
    fs::create_dir(socket.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());

    let server = place.bind(Some("127.0.0.1:0"), None, &socket).await.unwrap();
    let address = server.tcp_address().unwrap();
    assert_ne!(address.port(), 0);
    let link = server.sign_in_link().unwrap().unwrap();
    assert!(link.starts_with(&format!("http://sandbar.localhost:{}/#code=", address.port())), "{link}");
    assert_ne!(server.sign_in_link().unwrap().unwrap(), link, "each is for one browser");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(server.serve(shutdown.clone()));
    let owner = ask(UnixStream::connect(&socket).await.unwrap(), "localhost", "/v1/tokens").await;
    assert!(owner.starts_with("HTTP/1.1 200 "), "{owner}");
    let stranger = ask(TcpStream::connect(address).await.unwrap(), &address.to_string(), "/v1/tokens").await;
    assert!(stranger.starts_with("HTTP/1.1 401 "), "{stranger}");
    let rebound = ask(TcpStream::connect(address).await.unwrap(), "evil.example", "/v1/tokens").await;
    assert!(rebound.starts_with("HTTP/1.1 403 ") && rebound.contains("foreign_host"), "{rebound}");

    let mut follower = UnixStream::connect(&socket).await.unwrap();
    follower
        .write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 12];
    follower.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    shutdown.cancel();
    let mut rest = String::new();
    follower.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("shutting_down") && rest.ends_with("0\r\n\r\n"), "{rest}");
    serving.await.unwrap().unwrap();
    assert!(!socket.exists());
    assert!(TcpStream::connect(address).await.is_err());
}

/// In the place of a file; never half of it.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// The certificate that is shown to who connects.
async fn shown(port: u16) -> Result<CertificateDer<'static>, std::io::Error> {
    #[derive(Debug)]
    struct Any;

    impl ServerCertVerifier for Any {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            // The key is the certificate's.
            let known = aws_lc_rs::default_provider().signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, &known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }

    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any))
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
}

async fn a_renewed_certificate_is_shown_and_a_mistake_is_not() {
    let place = Place::new().await;
    let tls = place.tls();
    let first = CertificateDer::from_pem_file(&tls.certificate).unwrap();
    let server = place.bind(Some("127.0.0.1:0"), Some(tls.clone()), &place.socket()).await.unwrap();
    let port = server.tcp_address().unwrap().port();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(server.serve(shutdown.clone()));
    assert_eq!(shown(port).await.unwrap(), first);

    // As a program renews it: one file after the other, and somebody connects in between.
    let renewed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    put(&tls.certificate, &renewed.cert.pem());
    assert_eq!(shown(port).await.unwrap(), first, "certificate and key do not match");
    put(&tls.key, &renewed.signing_key.serialize_pem());
    assert_eq!(shown(port).await.unwrap(), *renewed.cert.der());

    // Mistakes leave it as it is.
    let good = fs::read_to_string(&tls.certificate).unwrap();
    put(&tls.certificate, "no certificate");
    assert_eq!(shown(port).await.unwrap(), *renewed.cert.der());
    fs::remove_file(&tls.certificate).unwrap();
    assert_eq!(shown(port).await.unwrap(), *renewed.cert.der());
    put(&tls.certificate, &good);
    assert_eq!(shown(port).await.unwrap(), *renewed.cert.der());

    // As a cluster renews it: a link that leads elsewhere.
    let last = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(place.path("last.pem"), last.cert.pem()).unwrap();
    fs::write(place.path("last-key.pem"), last.signing_key.serialize_pem()).unwrap();
    for (file, new) in [(&tls.certificate, "last.pem"), (&tls.key, "last-key.pem")] {
        std::os::unix::fs::symlink(place.path(new), place.path("link")).unwrap();
        fs::rename(place.path("link"), file).unwrap();
    }
    assert_eq!(shown(port).await.unwrap(), *last.cert.der());
    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

async fn health_has_an_address_of_its_own() {
    let listener = HealthListener::open("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.address();
    let taken = HealthListener::open(address).await;
    assert!(matches!(taken.err(), Some(BindError::HealthInUse(_))));
    let serving = tokio::spawn(listener.serve("test"));
    let told = ask(TcpStream::connect(address).await.unwrap(), "10.0.0.7:7230", "/healthz").await;
    assert!(told.starts_with("HTTP/1.1 200 ") && told.contains(r#"{"status":"ok","version":"test"}"#), "{told}");
    for path in ["/", "/readyz", "/v1/tokens", "/openapi.json"] {
        let nothing = ask(TcpStream::connect(address).await.unwrap(), "localhost", path).await;
        assert!(nothing.starts_with("HTTP/1.1 404 "), "{path}: {nothing}");
    }
    serving.abort();
}

async fn a_public_address_speaks_tls() {
    let place = Place::new().await;
    let tls = place.tls();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&tls.certificate).unwrap()).unwrap();
    let server = place.bind(Some("0.0.0.0:0"), Some(tls), &place.socket()).await.unwrap();
    let port = server.tcp_address().unwrap().port();
    let link = server.sign_in_link().unwrap().unwrap();
    assert!(link.starts_with(&format!("https://sandbar.localhost:{port}/#code=")), "{link}");
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(server.serve(shutdown.clone()));

    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let answer = ask(stream, "box.example", "/healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

/// Out of so many descriptors a server makes 128 slots: 8 for a viewer's token, and 32 that are operators' alone.
const DESCRIPTORS: u64 = 512;

/// The head of the answer to an event stream that stays open.
async fn follow(address: SocketAddr, secret: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\nAuthorization: Bearer {secret}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    (stream, String::from_utf8_lossy(&head).into_owned())
}

async fn operators_get_in_whoever_else_is_there() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: most }).unwrap();
    let place = Place::new().await;
    let token = async |role: Role| {
        let request = CreateToken { name: "test".to_owned(), role, session: None, ttl: None };
        place.engine.create_token(request).await.unwrap().secret
    };
    let server = place.bind(Some("127.0.0.1:0"), None, &place.socket()).await.unwrap();
    let address = server.tcp_address().unwrap();
    let closing = CancellationToken::new();
    let serving = tokio::spawn(server.serve(closing.clone()));
    let operator = token(Role::Operator).await;

    // One token: as many as it may have, then a problem on a connection that ends.
    let mut streams = Vec::new();
    let greedy = token(Role::Viewer).await;
    for _ in 0..8 {
        let (stream, head) = follow(address, &greedy).await;
        assert_eq!(head, "HTTP/1.1 200");
        streams.push(stream);
    }
    let (mut refused, head) = follow(address, &greedy).await;
    let mut rest = String::new();
    refused.read_to_string(&mut rest).await.unwrap();
    assert!(head == "HTTP/1.1 429" && rest.contains("too_many") && rest.contains("connection: close"), "{rest}");
    // Many tokens: everybody but operators is refused in the end.
    let refused = 'full: loop {
        let next = token(Role::Viewer).await;
        for _ in 0..8 {
            let (stream, head) = follow(address, &next).await;
            match head.as_str() {
                "HTTP/1.1 200" => streams.push(stream),
                head => break 'full head.to_owned(),
            }
        }
    };
    assert_eq!((refused.as_str(), streams.len()), ("HTTP/1.1 429", 96));
    let (_operating, head) = follow(address, &operator).await;
    assert_eq!(head, "HTTP/1.1 200");
    // And who shows no token at all makes room for who does.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let (_too, head) = follow(address, &operator).await;
    assert_eq!(head, "HTTP/1.1 200");
    // What is closed is free again.
    drop(streams.drain(..8));
    loop {
        let (stream, head) = follow(address, &greedy).await;
        if head == "HTTP/1.1 200" {
            streams.push(stream);
            break;
        }
    }
    closing.cancel();
    drop((streams, silent));
    serving.await.unwrap().unwrap();
}

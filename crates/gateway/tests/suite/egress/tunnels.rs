//! Tunnels: whose first bytes are judged, and whose rest is nobody's business.

use std::time::{Duration, Instant};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandbar_gateway::Outcome;
use sandbar_policy::Effect::Allow;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    egress::client::{Reply, ends, raw, request},
    egress::server::Server,
    egress::world::{PATIENCE, World, settings},
};

/// A server that is given its connections by hand.
async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

async fn pair(world: &World, listener: &TcpListener, port: u16) -> (TcpStream, TcpStream) {
    let client = world.connect(&format!("a.example.test:{port}")).await;
    let (server, _) = listener.accept().await.expect("a connection");
    (client, server)
}

#[tokio::test]
async fn a_server_may_speak_first_and_halves_close_by_themselves() {
    let (listener, port) = listener().await;
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let (mut client, mut server) = pair(&world, &listener, port).await;
    let mut buffer = [0; 64];
    server.write_all(b"SSH-2.0-server\r\n").await.expect("written");
    assert_eq!(client.read(&mut buffer).await.expect("read"), 16);
    client.write_all(b"SSH-2.0-client\r\n").await.expect("written");
    assert_eq!(server.read(&mut buffer).await.expect("read"), 16);

    client.shutdown().await.expect("half closed");
    assert_eq!(server.read(&mut buffer).await.expect("read"), 0);
    server.write_all(b"still heard").await.expect("written");
    assert_eq!(client.read(&mut buffer).await.expect("read"), 11);
    drop(server);
    assert!(ends(&mut client).await);
    let fact = world.warden.fact("its end", |fact| fact.outcome == Outcome::Done { status: None }).await;
    assert_eq!((fact.sent, fact.received), (16, 27));
}

#[tokio::test]
async fn bytes_that_come_with_connect_are_not_lost() {
    let (listener, port) = listener().await;
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let mut client = world.dial().await;
    let eager = format!("CONNECT a.example.test:{port} HTTP/1.1\r\nHost: a\r\n\r\nSSH-2.0-eager\r\n");
    client.write_all(eager.as_bytes()).await.expect("written");
    let (mut server, _) = listener.accept().await.expect("a connection");
    let mut buffer = [0; 13];
    server.read_exact(&mut buffer).await.expect("read");
    assert_eq!(&buffer, b"SSH-2.0-eager");
}

#[tokio::test]
async fn another_sni_than_the_host_is_refused() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let target = format!("a.example.test:{port}");
    let error = world.tls_as(&target, "b.example.test", &[]).await.expect_err("refused");
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    world.warden.denied("asks for `b.example.test`").await;
    assert!(world.tls_as(&target, "a.example.test", &[]).await.is_ok(), "the control");
}

#[tokio::test]
async fn plain_http_inside_connect_fronts_for_nobody() {
    let server = Server::plain().await;
    let port = server.port();
    let target = format!("a.example.test:{port}");
    let world = World::new(&[(Allow, &target)]).await;
    for line in ["GET / HTTP/1.1", "PROPFIND / HTTP/1.1", "\r\nget / HTTP/1.1"] {
        let mut tunnel = world.connect(&target).await;
        let asked = format!("{line}\r\nHost: b.example.test:{port}\r\n\r\n");
        let answer = raw(&mut tunnel, asked.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{line}: {answer}");
    }
    in_pieces(&target, &format!("b.example.test:{port}")).await;
    assert!(server.seen().is_empty(), "nothing was sent");

    let mut tunnel = world.connect(&target).await;
    let answer = raw(&mut tunnel, format!("GET /x HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let fact = world.warden.fact("the request", |fact| fact.outcome == Outcome::Done { status: Some(200) }).await;
    assert_eq!(fact.path.as_deref(), Some("/x"), "it is judged and recorded as a request");
    assert!(world.warden.facts().iter().all(|fact| fact.outcome != Outcome::Opened), "none of them was a tunnel");
}

/// Who asks for another host in two pieces is refused like others.
async fn in_pieces(target: &str, other: &str) {
    for _ in 0..5 {
        let world = World::new(&[(Allow, target)]).await;
        let mut tunnel = world.connect(target).await;
        let began = Instant::now();
        tunnel.write_all(b"GE").await.expect("written");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let answer = raw(&mut tunnel, format!("T / HTTP/1.1\r\nHost: {other}\r\n\r\n").as_bytes()).await;
        if answer.starts_with("HTTP/1.1 421 ") {
            return;
        }
        // after so long it is a word of another protocol
        assert!(began.elapsed() >= Duration::from_secs(1), "{answer}");
    }
    panic!("each time the second piece comes too late");
}

#[tokio::test]
async fn http2_in_plain_inside_connect_is_judged_too() {
    let server = Server::plain().await;
    let port = server.port();
    let target = format!("a.example.test:{port}");
    let world = World::new(&[(Allow, &target)]).await;
    let io = TokioIo::new(world.connect(&target).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut ask = async |host: &str| {
        let asked = request("POST", &format!("http://{host}.example.test:{port}/x"), &[], "body");
        Reply::read(sender.send_request(asked).await.expect("an answer")).await
    };
    assert_eq!(ask("b").await.status, 421);
    assert!(server.seen().is_empty());
    let reply = ask("a").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "body"));
    assert_eq!(server.last().version, hyper::Version::HTTP_2, "servers of gRPC speak nothing else");
}

#[tokio::test]
async fn a_word_without_a_line_passes_and_never_becomes_a_request() {
    let (listener, port) = listener().await;
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    for (rest, passes) in [(&b" more\n"[..], true), (b" / HTTP/1.1\r\nHost: b\r\n\r\n", false)] {
        let (mut client, mut server) = pair(&world, &listener, port).await;
        client.write_all(b"HELLO").await.expect("written");
        let mut word = [0; 5];
        server.read_exact(&mut word).await.expect("the word, before the line is whole");
        client.write_all(rest).await.expect("written");
        client.shutdown().await.expect("half closed");
        let mut got = Vec::new();
        // a reset is an end too
        drop(server.read_to_end(&mut got).await);
        assert_eq!(got, if passes { rest } else { b"" });
    }
    world.warden.denied("would have become a request").await;
}

/// What a server skips before it reads on, or what somebody before it does.
const JUNK: &[&[u8]] = &[
    b"junk\r\n",
    b"\0\x01\x02\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\0\x50\0\x50",
    b"SSH-2.0-x\r\n\r\n",
    b"GET key\r\n",
];

#[tokio::test]
async fn a_request_behind_junk_goes_nowhere() {
    let (listener, port) = listener().await;
    let place = format!("a.example.test:{port}");
    let world = World::new(&[(Allow, &place)]).await;
    let request = b"GET /x HTTP/1.1\r\nHost: b.example.test\r\n\r\n";
    let greeting = greeting("a.example.test");
    for junk in [JUNK, &[&greeting]].concat() {
        // at once, and when the tunnel is open already
        for at_once in [true, false] {
            let (mut client, mut server) = pair(&world, &listener, port).await;
            let mut got = Vec::new();
            if at_once {
                client.write_all(&[junk, request].concat()).await.expect("written");
            } else {
                client.write_all(junk).await.expect("written");
                got.resize(junk.len(), 0);
                server.read_exact(&mut got).await.expect("the junk passes");
                client.write_all(request).await.expect("written");
            }
            // an end in any case, also if it were passed on; a reset is one too
            drop(client.shutdown().await);
            drop(server.read_to_end(&mut got).await);
            let text = got.escape_ascii().to_string();
            assert!(!text.contains("HTTP/1.1") && !text.contains("b.example.test"), "{text}");
            assert!(ends(&mut client).await);
        }
    }
    world.warden.denied("a request began in the middle").await;

    world.warden.rules(&[(Allow, &format!("{place} raw"))]);
    let (mut client, mut server) = pair(&world, &listener, port).await;
    client.write_all(&[JUNK[0], request].concat()).await.expect("written");
    client.shutdown().await.expect("half closed");
    let mut got = Vec::new();
    server.read_to_end(&mut got).await.expect("all of it");
    assert_eq!(got, [JUNK[0], request].concat(), "the control");
}

#[tokio::test]
async fn a_greeting_with_an_encrypted_part_needs_a_rule() {
    let server = Server::tls().await;
    let place = format!("a.example.test:{}", server.port());
    let world = World::new(&[(Allow, &place)]).await;
    let greet = async || {
        let stream = world.connect(&place).await;
        let name = rustls::pki_types::ServerName::try_from("a.example.test").expect("a name");
        tokio_rustls::TlsConnector::from(world.trusting_with_ech()).connect(name, stream).await
    };
    let error = greet().await.expect_err("refused");
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    let told = world.warden.denied("encrypted (ECH)").await;
    assert!(told.contains(&format!("`{place} ech`")) && told.contains(&format!("`{place} /**`")), "{told}");

    world.warden.rules(&[(Allow, &format!("{place} ech"))]);
    greet().await.expect("the control");
    world.warden.rules(&[(Allow, &format!("{place} /**"))]);
    greet().await.expect("where TLS is terminated nothing is hidden");
}

#[tokio::test]
async fn port_443_is_for_tls_with_a_name() {
    let Some(_server) = Server::on_443("port_443_is_for_tls_with_a_name", "127.77.0.2").await else { return };
    let mut settings = settings();
    settings.hosts.insert("a.example.test".into(), vec!["127.77.0.2".parse().expect("an address")]);
    let world = World::with(&[(Allow, "a.example.test"), (Allow, "127.77.0.2")], settings.clone()).await;
    assert!(world.tls_as("a.example.test:443", "a.example.test", &[]).await.is_ok(), "the control");

    let mut plain = world.connect("a.example.test:443").await;
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a.example.test\r\n\r\n").await.expect("written");
    assert!(ends(&mut plain).await);
    world.warden.denied("no TLS").await;

    // an address as server name means that no name is sent
    assert!(world.tls_as("a.example.test:443", "127.77.0.2", &[]).await.is_err());
    world.warden.denied("names no server").await;
    let error = world.tls_as("127.77.0.2:443", "127.77.0.2", &[]).await.expect_err("its certificate is not for it");
    assert!(error.to_string().contains("certificate"), "the address itself needs no name, so TLS went on: {error}");

    settings.head_timeout = Duration::from_secs(3);
    world.gateway.configure(settings).expect("settings");
    let mut silent = world.connect("a.example.test:443").await;
    assert!(ends(&mut silent).await);
    world.warden.denied("did not come in time").await;
}

#[tokio::test]
async fn a_greeting_in_many_pieces_is_judged_whole() {
    let (listener, port) = listener().await;
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let hello = greeting("a.example.test");
    let (mut client, mut server) = pair(&world, &listener, port).await;
    for piece in hello.chunks(7) {
        client.write_all(piece).await.expect("written");
        client.flush().await.expect("flushed");
        tokio::task::yield_now().await;
    }
    let mut got = vec![0; hello.len()];
    server.read_exact(&mut got).await.expect("read");
    assert_eq!(got, hello);

    let (mut client, mut server) = pair(&world, &listener, port).await;
    for piece in greeting("b.example.test").chunks(100) {
        // it may be closed before the last piece
        drop(client.write_all(piece).await);
    }
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.expect("the end");
    assert!(rest.is_empty(), "nothing was passed on");
}

fn greeting(name: &str) -> Vec<u8> {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("a greeting");
    bytes
}

#[tokio::test]
async fn silence_ends_a_tunnel() {
    const IDLE: Duration = Duration::from_secs(3);
    let (listener, port) = listener().await;
    let mut settings = settings();
    settings.idle_timeout = IDLE;
    let world = World::with(&[(Allow, &format!("a.example.test:{port}"))], settings).await;
    'tunnels: for _ in 0..5 {
        let mut said = Instant::now();
        let (mut client, mut server) = pair(&world, &listener, port).await;
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = Instant::now();
            let written = server.write_all(b"x").await;
            let read = client.read(&mut [0; 1]).await;
            if written.is_err() || !matches!(read, Ok(1)) {
                // on a busy machine this may be silent for as long
                assert!(said.elapsed() >= IDLE, "{written:?}, {read:?}");
                continue 'tunnels;
            }
            said = now;
        }
        assert!(ends(&mut client).await);
        return;
    }
    panic!("no tunnel stays open");
}

#[tokio::test]
async fn two_thousand_connections_leave_no_descriptor() {
    let server = Server::tls().await;
    let port = server.port();
    let world =
        World::new(&[(Allow, &format!("a.example.test:{port}")), (Allow, &format!("b.example.test:{port} GET /"))])
            .await;
    let open = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let before = open();
    for number in 0..2000 {
        let host = if number % 10 == 0 { "b" } else { "a" };
        let mut stream = world.connect(&format!("{host}.example.test:{port}")).await;
        drop(stream.write_all(b"\x16\x03\x01").await);
    }
    // other tests of this process have theirs open too
    crate::egress::world::poll("descriptors closed", || (open() < before + 150).then_some(())).await;
}

#[tokio::test]
async fn more_connections_than_allowed_wait() {
    let (listener, port) = listener().await;
    let mut settings = settings();
    settings.connections = 2;
    let world = World::with(&[(Allow, &format!("a.example.test:{port}"))], settings).await;
    let one = pair(&world, &listener, port).await;
    let _two = pair(&world, &listener, port).await;
    let target = format!("a.example.test:{port}");
    let third = world.connect(&target);
    let mut third = std::pin::pin!(third);
    assert!(tokio::time::timeout(Duration::from_millis(300), third.as_mut()).await.is_err(), "there is no room");
    drop(one);
    tokio::time::timeout(PATIENCE, third).await.expect("there is room again");
}

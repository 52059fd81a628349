//! Clients and servers that misbehave: each is told what is wrong, and the next one is served.

use std::time::{Duration, Instant};

use sandbar_gateway::Outcome;
use sandbar_policy::Effect::Allow;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
};

use crate::{
    egress::client::{ends, head, raw},
    egress::server::Server,
    egress::world::{World, settings},
};

#[tokio::test]
async fn a_server_that_is_down_is_named() {
    // nobody listens there, and nobody else gets it
    let taken = TcpSocket::new_v4().expect("a socket");
    taken.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let free = taken.local_addr().expect("an address").port();
    let world =
        World::new(&[(Allow, &format!("a.example.test:{free}")), (Allow, &format!("b.example.test:{free} GET /"))])
            .await;
    let (_, answer) = world.connect_raw(&format!("a.example.test:{free}")).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("connection refused"), "{answer}");
    let reply = world.plain(&format!("http://a.example.test:{free}/"), &[]).await;
    assert_eq!(reply.status, 502);
    let reply = world.get("b.example.test", free, "/", &[]).await;
    assert!(reply.status == 502 && reply.text().contains("connection refused"), "{}", reply.text());
    world
        .warden
        .fact("a failure", |fact| matches!(&fact.outcome, Outcome::Failed(text) if text.contains("refused")))
        .await;
}

#[tokio::test]
async fn a_server_that_hangs_up_or_talks_nonsense_is_named() {
    for (bytes, cause) in [(&b""[..], "closed the connection"), (b"SSH-2.0-x\r\n\r\n", "no HTTP")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("a connection");
            let mut buffer = [0; 1024];
            let _ = client.read(&mut buffer).await.expect("a request");
            client.write_all(bytes).await.expect("written");
        });
        let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
        let reply = world.plain(&format!("http://a.example.test:{port}/"), &[]).await;
        assert_eq!(reply.status, 502);
        assert!(reply.text().contains(cause), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_server_that_closes_between_requests_is_asked_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            // it promises to stay, and goes
            if client.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("written");
            }
        }
    });
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let mut client = world.dial().await;
    for _ in 0..20 {
        let asked = format!("GET http://a.example.test:{port}/ HTTP/1.1\r\nHost: a.example.test:{port}\r\n\r\n");
        let answer = raw(&mut client, asked.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn a_server_that_never_accepts_is_given_up_on() {
    let mut settings = settings();
    settings.connect_timeout = Duration::from_millis(300);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    // what nobody accepts fills the backlog, and then connecting hangs
    let mut filling = Vec::new();
    for _ in 0..2000 {
        let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address)).await
        else {
            break;
        };
        filling.push(stream);
    }
    if filling.len() == 2000 {
        sandbar_test_harness::not_run("a_server_that_never_accepts_is_given_up_on", "the backlog does not fill");
        return;
    }
    let port = address.port();
    let world = World::with(&[(Allow, &format!("a.example.test:{port}"))], settings).await;
    let (_, answer) = world.connect_raw(&format!("a.example.test:{port}")).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("timed out"), "{answer}");
}

#[tokio::test]
async fn header_bombs_are_refused() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port} GET /**"))]).await;
    let many: String = (0..1000).map(|number| format!("X-{number}: 1\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "x".repeat(200_000));
    for bomb in [many, long] {
        let mut stream = world.dial().await;
        let text = format!("GET http://a.example.test:{port}/ HTTP/1.1\r\nHost: a.example.test:{port}\r\n{bomb}\r\n");
        // it may be closed before all of it was written
        drop(stream.write_all(text.as_bytes()).await);
        let answer = head(&mut stream).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 ") || answer.starts_with("HTTP/1.1 400 "),
            "{answer}"
        );
        let mut inside = world.tls("a.example.test", port, &["http/1.1"]).await;
        let text = format!("GET / HTTP/1.1\r\nHost: a.example.test:{port}\r\n{bomb}\r\n");
        drop(inside.write_all(text.as_bytes()).await);
        assert!(ends(&mut inside).await);
    }
    assert!(server.seen().is_empty());
    assert_eq!(world.get("a.example.test", port, "/", &[]).await.status, 200, "the next one is served");
}

#[tokio::test]
async fn a_slow_loris_is_cut_off() {
    let mut settings = settings();
    settings.head_timeout = Duration::from_secs(3);
    let world = World::with(&[(Allow, "a.example.test:1 GET /")], settings).await;
    let began = Instant::now();
    let mut outside = world.dial().await;
    outside.write_all(b"CONNECT a.exam").await.expect("written");
    let mut unheard = world.connect("a.example.test:1").await;
    unheard.write_all(b"\x16\x03\x01\x02").await.expect("written");
    let mut inside = None;
    for _ in 0..5 {
        // on a busy machine a handshake may take too long as well
        inside = world.tls_as("a.example.test:1", "a.example.test", &["http/1.1"]).await.ok();
        if inside.is_some() {
            break;
        }
    }
    let mut inside = inside.expect("TLS");
    // it may be closed by now
    drop(inside.write_all(b"GET / HT").await);
    assert!(ends(&mut outside).await && ends(&mut unheard).await && ends(&mut inside).await);
    assert!(began.elapsed() < Duration::from_secs(60));
    world.warden.denied("did not come in time").await;
}

#[tokio::test]
async fn nonsense_is_a_bad_request() {
    let world = World::new(&[]).await;
    for nonsense in [
        &b"\x00\x01\x02\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"CONNECT  HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
    ] {
        let answer = raw(&mut world.dial().await, nonsense).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    let answer = raw(&mut world.dial().await, b"CONNECT a\x7fb.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn two_lengths_are_no_request() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let smuggle = format!(
        "POST http://a.example.test:{port}/x HTTP/1.1\r\nHost: a.example.test:{port}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
    );
    let mut stream = world.dial().await;
    drop(raw(&mut stream, smuggle.as_bytes()).await);
    assert!(server.seen().iter().all(|seen| seen.target != "/smuggled"));
    let twice = format!(
        "POST http://a.example.test:{port}/x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n"
    );
    assert!(raw(&mut world.dial().await, twice.as_bytes()).await.starts_with("HTTP/1.1 400 "));
}

//! Terminated connections: one host for CONNECT, SNI and Host; both versions of HTTP on both sides; upgrades, trailers.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, Version, body::Frame, header::HeaderValue};
use hyper_util::rt::TokioIo;
use sandbar_gateway::Outcome;
use sandbar_policy::Effect::Allow;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    egress::client::{Reply, request},
    egress::server::{Server, Shown},
    egress::world::World,
};

/// Everything of `a.example.test` is allowed, by a rule that has to look.
async fn looking(server: &Server) -> World {
    let port = server.port();
    World::new(&[
        (Allow, &format!("a.example.test:{port} GET,HEAD,POST,PUT /**")),
        (Allow, &format!("b.example.test:{port}")),
    ])
    .await
}

#[tokio::test]
async fn both_versions_on_both_sides() {
    for protocols in [vec!["h2", "http/1.1"], vec!["http/1.1"], vec![]] {
        let server = Server::shows(Shown { protocols: protocols.clone(), ..Shown::default() }).await;
        let port = server.port();
        let world = looking(&server).await;
        let expected = if protocols.contains(&"h2") { Version::HTTP_2 } else { Version::HTTP_11 };

        let reply = world.send("a.example.test", port, request("POST", "/one?q=1", &[("x-a", "1")], "body")).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "body"));
        assert_eq!(server.last().version, expected);

        let mut sender = world.http2("a.example.test", port).await;
        let url = format!("https://a.example.test:{port}/two?q=2");
        let asked = request("PUT", &url, &[("cookie", "a=1"), ("cookie", "b=2")], "more");
        let reply = Reply::read(sender.send_request(asked).await.expect("an answer")).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "more"));
        let seen = server.last();
        assert_eq!((seen.version, seen.method.as_str()), (expected, "PUT"));
        if expected == Version::HTTP_11 {
            assert_eq!(seen.headers["cookie"], "a=1; b=2");
            assert_eq!(seen.headers["host"], format!("a.example.test:{port}").as_str());
            assert_eq!(seen.target, "/two?q=2");
        } else {
            assert_eq!(seen.target, url);
        }
        let mut fact = None;
        for method in ["POST", "PUT"] {
            fact = Some(world.warden.fact(method, |fact| fact.method.as_deref() == Some(method)).await);
        }
        let fact = fact.expect("a fact");
        assert_eq!((fact.outcome, fact.sent, fact.received), (Outcome::Done { status: Some(200) }, 4, 4));
    }
}

#[tokio::test]
async fn one_client_connection_uses_one_of_the_server() {
    let server = Server::tls().await;
    let port = server.port();
    let world = looking(&server).await;
    let sender = world.http2::<Full<Bytes>>("a.example.test", port).await;
    let asked = (0..50).map(|number| {
        let mut sender = sender.clone();
        let url = format!("https://a.example.test:{port}/slow?{number}");
        async move { sender.send_request(request("GET", &url, &[], "")).await.expect("an answer").status() }
    });
    // which tells the client how many there may be at a time; the rest waits inside it
    let mut first = sender.clone();
    let url = format!("https://a.example.test:{port}/first");
    Reply::read(first.send_request(request("GET", &url, &[], "")).await.expect("an answer")).await;
    let statuses = futures_util::future::join_all(asked).await;
    assert!(statuses.iter().all(|status| *status == 200));
    assert_eq!(server.connections.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_connection_to_the_server_is_kept_for_the_next_request() {
    let server = Server::shows(Shown { protocols: vec!["http/1.1"], ..Shown::default() }).await;
    let port = server.port();
    let world = looking(&server).await;
    let mut sender = world.http1("a.example.test", port).await;
    let host = format!("a.example.test:{port}");
    for number in 0..5 {
        let asked = request("GET", &format!("/{number}"), &[("host", &host)], "");
        assert_eq!(Reply::read(sender.send_request(asked).await.expect("an answer")).await.status, 200);
    }
    assert_eq!(server.connections.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_request_for_another_host_is_misdirected() {
    let server = Server::tls().await;
    let port = server.port();
    let world = looking(&server).await;
    let host = format!("a.example.test:{port}");
    let raw = async |text: String| {
        let mut stream = world.tls("a.example.test", port, &["http/1.1"]).await;
        stream.write_all(text.as_bytes()).await.expect("written");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    assert_eq!(raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await, "200", "the control");
    assert_eq!(raw(format!("GET / HTTP/1.1\r\nHost: A.Example.Test:{port}\r\n\r\n")).await, "200");
    for (status, head) in [
        ("421", format!("GET / HTTP/1.1\r\nHost: b.example.test:{port}\r\n")),
        ("421", "GET / HTTP/1.1\r\nHost: a.example.test\r\n".into()),
        ("400", format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: b.example.test:{port}\r\n")),
        ("400", format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n")),
        ("400", format!("GET / HTTP/1.1\r\nHost: user@{host}\r\n")),
        ("400", "GET / HTTP/1.1\r\nHost: \r\n".into()),
        ("400", "GET / HTTP/1.1\r\nX-Any: 1\r\n".into()),
        ("400", format!("GET https://b.example.test:{port}/ HTTP/1.1\r\nHost: {host}\r\n")),
        ("400", format!("GET https://{host}/ HTTP/1.1\r\nHost: {host}\r\n")),
        ("405", format!("CONNECT b.example.test:{port} HTTP/1.1\r\nHost: b.example.test:{port}\r\n")),
    ] {
        assert_eq!(raw(format!("{head}\r\n")).await, status, "{head}");
    }
    let mut sender = world.http2("a.example.test", port).await;
    let url = format!("https://b.example.test:{port}/");
    assert_eq!(sender.send_request(request("GET", &url, &[], "")).await.expect("an answer").status(), 421);
    let url = format!("https://a.example.test:{port}/");
    let two = request("GET", &url, &[("host", &format!("b.example.test:{port}"))], "");
    assert_eq!(sender.send_request(two).await.expect("an answer").status(), 421, "Host beside :authority");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn websockets_pass() {
    let server = Server::tls().await;
    let port = server.port();
    let world = looking(&server).await;
    world.warden.grant("token", "ph_ws_1", &["a.example.test"], "header:x-key:{}");
    world.warden.secret("token", Some("s3cret"));
    let mut sender = world.http1("a.example.test", port).await;
    let host = format!("a.example.test:{port}");
    let asked = request(
        "GET",
        "/ws",
        &[("host", &host), ("connection", "Upgrade"), ("upgrade", "websocket"), ("x-key", "ph_ws_1")],
        "",
    );
    let mut response = sender.send_request(asked).await.expect("an answer");
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "websocket");
    assert!(!response.headers().contains_key("sandbar-refusal"), "{response:?}");
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgraded"));
    for _ in 0..3 {
        io.write_all(b"ping").await.expect("written");
        let mut echo = [0; 4];
        io.read_exact(&mut echo).await.expect("an echo");
        assert_eq!(&echo, b"ping");
    }
    drop(io);
    let seen = server.last();
    assert_eq!((seen.version, &seen.headers["x-key"]), (Version::HTTP_11, &HeaderValue::from_static("s3cret")));
    let fact = world.warden.fact("its end", |fact| fact.path.as_deref() == Some("/ws")).await;
    assert_eq!((fact.sent, fact.received), (12, 12), "{fact:?}");
}

#[tokio::test]
async fn websockets_pass_in_plain() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let mut sender = world.plain_sender().await;
    let host = format!("a.example.test:{port}");
    let headers = [("host", host.as_str()), ("connection", "upgrade"), ("upgrade", "websocket")];
    let asked = request("GET", &format!("http://{host}/ws"), &headers, "");
    let mut response = sender.send_request(asked).await.expect("an answer");
    assert_eq!(response.status(), 101);
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgraded"));
    io.write_all(b"ping").await.expect("written");
    let mut echo = [0; 4];
    io.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(&echo, b"ping");
}

#[tokio::test]
async fn http_is_no_upgrade() {
    let server = Server::shows(Shown { protocols: vec!["http/1.1"], ..Shown::default() }).await;
    let world = looking(&server).await;
    let headers =
        [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABkAAQAAP__")];
    let reply = world.get("a.example.test", server.port(), "/", &headers).await;
    assert_eq!(reply.status, 200);
    let seen = server.last();
    assert!(
        ["upgrade", "connection", "http2-settings"].iter().all(|name| !seen.headers.contains_key(*name)),
        "{seen:?}"
    );
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let server = Server::tls().await;
    let port = server.port();
    let world = looking(&server).await;
    let mut sender = world.http2("a.example.test", port).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("42"));
    let frames = [Frame::data(Bytes::from_static(b"hello ")), Frame::trailers(trailers)].map(Ok::<_, std::io::Error>);
    let asked = Request::post(format!("https://a.example.test:{port}/trailers"))
        .header("te", "trailers")
        .body(http_body_util::StreamBody::new(futures_util::stream::iter(frames)))
        .expect("a request");
    let response = sender.send_request(asked).await.expect("an answer");
    let collected = response.into_body().collect().await.expect("a body");
    let trailers = collected.trailers().expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    assert!(!trailers.contains_key("sandbar-refusal"), "{trailers:?}");
    let seen = server.last();
    assert_eq!(seen.headers["te"], "trailers");
    assert!(String::from_utf8_lossy(&seen.body).contains("\"x-sum\": \"42\""), "{seen:?}");
}

#[tokio::test]
async fn a_server_does_not_speak_in_the_gateways_name() {
    for protocols in [vec!["h2"], vec!["http/1.1"]] {
        let server = Server::shows(Shown { protocols, ..Shown::default() }).await;
        let world = looking(&server).await;
        let reply = world.get("a.example.test", server.port(), "/", &[]).await;
        assert_eq!((reply.status, reply.headers.contains_key("x-server")), (200, true));
        assert!(!reply.headers.contains_key("sandbar-refusal"), "{reply:?}");
        world.warden.rules(&[]);
        let (_, refused) = world.connect_raw(&format!("a.example.test:{}", server.port())).await;
        assert!(refused.contains("sandbar-refusal: network_denied"), "the control: {refused}");
    }
    let server = Server::plain().await;
    let world = World::new(&[(Allow, &format!("a.example.test:{}", server.port()))]).await;
    let reply = world.plain(&format!("http://a.example.test:{}/", server.port()), &[]).await;
    assert_eq!((reply.status, reply.headers.contains_key("x-server")), (200, true));
    assert!(!reply.headers.contains_key("sandbar-refusal"), "{reply:?}");
}

#[tokio::test]
async fn expect_is_answered_and_head_has_no_body() {
    let server = Server::shows(Shown { protocols: vec!["http/1.1"], ..Shown::default() }).await;
    let port = server.port();
    let world = looking(&server).await;
    let mut stream = world.tls("a.example.test", port, &["http/1.1"]).await;
    let head = format!(
        "POST /x HTTP/1.1\r\nHost: a.example.test:{port}\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = [0; 25];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").await.expect("written");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("an answer");
    assert!(rest.starts_with("HTTP/1.1 200 ") && rest.contains("body"), "{rest}");

    let reply = world.send("a.example.test", port, request("HEAD", "/source/65536", &[], "")).await;
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    world
        .warden
        .fact("HEAD is done", |fact| {
            fact.method.as_deref() == Some("HEAD") && fact.outcome == Outcome::Done { status: Some(200) }
        })
        .await;
}

#[tokio::test]
async fn another_sni_is_refused_before_a_certificate_is_shown() {
    let server = Server::tls().await;
    let port = server.port();
    let world = looking(&server).await;
    let target = format!("a.example.test:{port}");
    assert!(world.tls_as(&target, "b.example.test", &[]).await.is_err());
    world.warden.denied("asks for `b.example.test`").await;
    assert!(world.tls_as(&target, "127.0.0.1", &[]).await.is_err(), "no name at all");
    world.warden.denied("names no server").await;
    assert!(world.tls_as(&target, "a.example.test", &[]).await.is_ok(), "the control");
}

#[tokio::test]
async fn an_address_is_terminated_with_a_certificate_for_it() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("127.0.0.1:{port} GET /**"))]).await;
    assert_eq!(world.get("127.0.0.1", port, "/x", &[]).await.status, 200);
    assert_eq!(server.last().method, "GET");
}

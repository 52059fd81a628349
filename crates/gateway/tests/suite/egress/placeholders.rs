//! Secrets: put in towards their host, in their place, over verified TLS, and nowhere else.

use std::sync::atomic::Ordering;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::{Request, body::Frame};
use sandbar_gateway::Outcome;
use sandbar_policy::Effect::Allow;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    egress::client::{Reply, request},
    egress::server::Server,
    egress::world::World,
};

const PLACEHOLDER: &str = "sandbar_placeholder_token_1";

async fn world(server: &Server, placement: &str) -> World {
    let world = World::new(&[(Allow, &format!("*.example.test:{}", server.port()))]).await;
    world.warden.grant("token", PLACEHOLDER, &["secret.example.test"], placement);
    world.warden.secret("token", Some("s3cret"));
    world
}

#[tokio::test]
async fn a_header_is_swapped_towards_its_host_alone() {
    let server = Server::tls().await;
    let world = world(&server, "header:Authorization:Bearer {}").await;
    let bearer = format!("Bearer {PLACEHOLDER}");
    let ask = async |host: &str, headers: &[(&str, &str)]| world.get(host, server.port(), "/x", headers).await.status;

    assert_eq!(ask("secret.example.test", &[("authorization", &bearer)]).await, 200);
    assert_eq!(server.last().headers["authorization"], "Bearer s3cret");
    let fact = world.warden.fact("the request", |fact| !fact.secrets.is_empty()).await;
    assert_eq!((fact.secrets, fact.outcome), (vec!["token".to_owned()], Outcome::Done { status: Some(200) }));

    assert_eq!(ask("other.example.test", &[("authorization", &bearer)]).await, 200);
    assert_eq!(server.last().headers["authorization"], bearer.as_str(), "another host's request keeps it");
    let revealed = world.warden.revealed.load(Ordering::Relaxed);
    assert_eq!(ask("secret.example.test", &[("x-note", PLACEHOLDER)]).await, 200);
    assert_eq!(server.last().headers["x-note"], PLACEHOLDER, "another place keeps it");
    assert_eq!(world.warden.revealed.load(Ordering::Relaxed), revealed, "and the value is not even looked up");
    assert!(!format!("{:?}", world.warden.facts()).contains("s3cret"));
}

#[tokio::test]
async fn rotation_and_removal_are_immediate() {
    let server = Server::tls().await;
    let world = world(&server, "header:Authorization:Bearer {}").await;
    let port = server.port();
    let mut sender = world.http1("secret.example.test", port).await;
    let host = format!("secret.example.test:{port}");
    let bearer = format!("Bearer {PLACEHOLDER}");
    let mut ask = async || {
        let asked = request("GET", "/", &[("host", &host), ("authorization", &bearer)], "");
        Reply::read(sender.send_request(asked).await.expect("an answer")).await
    };
    assert_eq!(ask().await.status, 200);
    world.warden.secret("token", Some("rotated"));
    assert_eq!(ask().await.status, 200);
    assert_eq!(server.last().headers["authorization"], "Bearer rotated");
    world.warden.secret("token", None);
    let refused = ask().await;
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("`token` was removed"), "{}", refused.text());
    assert_eq!(server.seen().len(), 2, "nothing was sent");
    world.warden.denied("was removed").await;
}

#[tokio::test]
async fn a_secret_that_breaks_a_header_is_refused() {
    let server = Server::tls().await;
    let world = world(&server, "header:x-key:{}").await;
    world.warden.secret("token", Some("two\r\nlines: 1"));
    let reply = world.get("secret.example.test", server.port(), "/", &[("x-key", PLACEHOLDER)]).await;
    assert_eq!(reply.status, 403);
    assert!(!reply.text().contains("two") && server.seen().is_empty(), "{}", reply.text());
}

#[tokio::test]
async fn basic_and_query_are_swapped() {
    let server = Server::tls().await;
    let world = world(&server, "basic:git").await;
    world.warden.grant("key", "ph_key_2", &["secret.example.test"], "query:key");
    world.warden.secret("key", Some("a b&c"));
    let basic = format!("Basic {}", STANDARD.encode(format!("git:{PLACEHOLDER}")));
    let reply =
        world.get("secret.example.test", server.port(), "/x?key=ph_key_2&z=1", &[("authorization", &basic)]).await;
    assert_eq!(reply.status, 200);
    let seen = server.last();
    assert_eq!(seen.headers["authorization"], format!("Basic {}", STANDARD.encode("git:s3cret")).as_str());
    assert!(seen.target.ends_with("/x?key=a%20b%26c&z=1"), "{}", seen.target);
    let fact = world.warden.fact("both", |fact| fact.secrets.len() == 2).await;
    assert_eq!(fact.path.as_deref(), Some("/x"));
}

#[tokio::test]
async fn what_comes_back_in_a_head_is_the_placeholder() {
    let server = Server::tls().await;
    let world = world(&server, "query:key").await;
    world.warden.secret("token", Some("a b&c=d"));
    world.warden.grant("header", "ph_header_2", &["secret.example.test"], "header:x-key:{}");
    world.warden.secret("header", Some("s3cret-2"));
    world.warden.grant("basic", "ph_basic_3", &["secret.example.test"], "basic:git");
    world.warden.secret("basic", Some("s3cret-3"));
    let basic = format!("Basic {}", STANDARD.encode("git:ph_basic_3"));
    let path = format!("/back?key={PLACEHOLDER}&z=1");
    let headers = [("x-key", "ph_header_2"), ("authorization", basic.as_str())];
    let reply = world.get("secret.example.test", server.port(), &path, &headers).await;
    assert_eq!(reply.status, 302);
    let seen = server.last();
    assert!(seen.target.contains("key=a%20b%26c%3Dd") && seen.headers["x-key"] == "s3cret-2", "{seen:?}");
    assert_eq!(reply.headers["location"], format!("https://elsewhere.test/next?key={PLACEHOLDER}&z=1").as_str());
    assert_eq!(reply.headers["x-key"], "ph_header_2");
    assert_eq!(reply.headers["authorization"], basic.as_str());
}

#[tokio::test]
async fn a_body_is_swapped_wherever_it_is_cut() {
    let server = Server::tls().await;
    let world = world(&server, "body").await;
    let port = server.port();
    let whole = format!("{{\"token\":\"{PLACEHOLDER}\",\"again\":\"{PLACEHOLDER}\"}}");
    let swapped = whole.replace(PLACEHOLDER, "s3cret");
    for at in [1, 12, 25, 30] {
        let (one, two) = whole.split_at(at);
        let frames =
            [one.to_owned(), two.to_owned()].map(|part| Ok::<_, std::io::Error>(Frame::data(Bytes::from(part))));
        let mut sender = world.http2("secret.example.test", port).await;
        let asked = Request::post(format!("https://secret.example.test:{port}/x"))
            .body(StreamBody::new(stream::iter(frames)))
            .expect("a request");
        assert_eq!(Reply::read(sender.send_request(asked).await.expect("an answer")).await.text(), swapped);
    }
    let reply = world.send("secret.example.test", port, request("POST", "/x", &[], &whole)).await;
    assert_eq!(reply.text(), swapped, "with a length of its own");
    let fact = world.warden.fact("the secret", |fact| fact.secrets == ["token"]).await;
    assert_eq!(fact.sent, swapped.len() as u64);
    let untouched = world.send("other.example.test", port, request("POST", "/x", &[], &whole)).await;
    assert_eq!(untouched.text(), whole);
}

#[tokio::test]
async fn a_placeholder_in_two_writes_is_swapped() {
    let server = Server::tls().await;
    let world = world(&server, "header:x-key:{}").await;
    let port = server.port();
    let mut stream = world.tls("secret.example.test", port, &[]).await;
    let text = format!(
        "GET / HTTP/1.1\r\nHost: secret.example.test:{port}\r\nX-Key: {PLACEHOLDER}\r\nConnection: close\r\n\r\n"
    );
    let at = text.find(PLACEHOLDER).expect("it is there") + 9;
    for part in [&text[..at], &text[at..]] {
        stream.write_all(part.as_bytes()).await.expect("written");
        stream.flush().await.expect("flushed");
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(server.last().headers["x-key"], "s3cret");
}

#[tokio::test]
async fn nothing_goes_out_in_plain() {
    let server = Server::plain().await;
    let port = server.port();
    let world = world(&server, "basic:git").await;
    let url = |host: &str, rest: &str| format!("http://{host}.example.test:{port}/{rest}");
    let basic = format!("Basic {}", STANDARD.encode(format!("git:{PLACEHOLDER}")));
    for (url, header) in [
        (url("secret", ""), ("authorization", basic.as_str())),
        (url("secret", ""), ("x-any", PLACEHOLDER)),
        (url("secret", &format!("?q={PLACEHOLDER}")), ("x-any", "x")),
        (url("secret", PLACEHOLDER), ("x-any", "x")),
    ] {
        let reply = world.plain(&url, &[header]).await;
        assert_eq!(reply.status, 403, "{url} {header:?}");
        assert!(reply.text().contains("in plain"), "{}", reply.text());
    }
    assert!(server.seen().is_empty());
    assert_eq!(world.plain(&url("secret", ""), &[]).await.status, 200, "without it, plain is fine");
    assert_eq!(world.plain(&url("other", ""), &[("x-any", PLACEHOLDER)]).await.status, 200, "elsewhere it is a word");
    world.warden.grant("form", "ph_form_3", &["secret.example.test"], "body");
    assert_eq!(world.plain(&url("secret", ""), &[]).await.status, 403, "a body is not looked into in vain");
}

#[tokio::test]
async fn plain_http_inside_a_tunnel_is_plain() {
    let server = Server::plain().await;
    let port = server.port();
    let world = world(&server, "header:x-key:{}").await;
    let mut tunnel = world.connect(&format!("secret.example.test:{port}")).await;
    let ask = |extra: &str| format!("GET / HTTP/1.1\r\nHost: secret.example.test:{port}\r\n{extra}\r\n");
    let answer = crate::egress::client::raw(&mut tunnel, ask(&format!("X-Key: {PLACEHOLDER}\r\n")).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("in plain"), "{answer}");
    let answer = crate::egress::client::raw(&mut tunnel, ask("").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn other_protocols_to_the_host_of_a_secret_still_pass() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let world = World::new(&[(Allow, &format!("secret.example.test:{port}"))]).await;
    world.warden.grant("token", PLACEHOLDER, &["secret.example.test"], "header:x-key:{}");
    let mut client = world.connect(&format!("secret.example.test:{port}")).await;
    let (mut server, _) = listener.accept().await.expect("a connection");
    let mut buffer = [0; 8];
    server.write_all(b"SSH-2.0-").await.expect("written");
    client.read_exact(&mut buffer).await.expect("read");
    client.write_all(b"SSH-2.0-").await.expect("written");
    server.read_exact(&mut buffer).await.expect("read");
    assert_eq!(&buffer, b"SSH-2.0-");
}

#[tokio::test]
async fn what_fronts_for_another_host_gets_no_secret() {
    let server = Server::tls().await;
    let port = server.port();
    let world = world(&server, "header:x-key:{}").await;
    let secret = format!("secret.example.test:{port}");
    // SNI of another host
    assert!(world.tls_as(&secret, "other.example.test", &["http/1.1"]).await.is_err());
    world.warden.denied("asks for `other.example.test`").await;
    // Host of another one, both ways
    for (connected, named) in [("secret", "other"), ("other", "secret")] {
        let host = format!("{named}.example.test:{port}");
        let mut sender = world.http1(&format!("{connected}.example.test"), port).await;
        let asked = request("GET", "/", &[("host", &host), ("x-key", PLACEHOLDER)], "");
        let reply = Reply::read(sender.send_request(asked).await.expect("an answer")).await;
        if connected == "secret" {
            assert_eq!(reply.status, 421, "{}", reply.text());
        } else {
            assert_eq!(server.last().headers["x-key"], PLACEHOLDER, "a tunnel puts nothing in");
        }
    }
    assert!(server.seen().iter().all(|seen| seen.headers["x-key"] != "s3cret"));
}

#[tokio::test]
async fn trace_would_show_it() {
    let server = Server::tls().await;
    let world = world(&server, "header:x-key:{}").await;
    let reply =
        world.send("secret.example.test", server.port(), request("TRACE", "/", &[("x-key", PLACEHOLDER)], "")).await;
    assert_eq!(reply.status, 405);
    assert!(server.seen().is_empty());
}

//! Allow, deny, ask: at CONNECT, for each request, live; and what is recorded.

use sandbar_gateway::{Answer, Direction, Outcome};
use sandbar_policy::{
    Effect::{Allow, Ask, Deny},
    Host,
};
use tokio::io::AsyncReadExt as _;

use crate::{
    egress::client::{Reply, raw, request},
    egress::server::Server,
    egress::world::{PATIENCE, World},
};

#[tokio::test]
async fn what_is_allowed_passes_and_the_rest_is_told_why() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("*.example.test:{port}")), (Deny, "b.example.test:*")]).await;
    assert_eq!(world.get("a.example.test", port, "/x", &[]).await.status, 200);

    let (_, answer) = world.connect_raw(&format!("b.example.test:{port}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("b.example.test") && answer.contains("the rule `b.example.test:*`"), "{answer}");
    let (_, answer) = world.connect_raw("elsewhere.test:443").await;
    assert!(answer.contains("no rule allows it"), "{answer}");
    assert!(answer.contains("`sandbar net allow sbx-test elsewhere.test`"), "{answer}");

    let denied = world.warden.fact("elsewhere", |fact| fact.host == "elsewhere.test").await;
    assert_eq!((denied.port, denied.direction), (443, Direction::Tunnel));
    assert!(matches!(denied.outcome, Outcome::Denied(_)) && denied.decision.rule.is_none());
    let opened = world.warden.fact("opened", |fact| fact.outcome == Outcome::Opened).await;
    assert_eq!(opened.decision.rule.as_deref(), Some(format!("*.example.test:{port}").as_str()));
}

#[tokio::test]
async fn a_refusal_is_a_problem_document_for_who_asks_for_json() {
    let world = World::new(&[]).await;
    let reply = world.plain("http://a.example.test/x", &[("accept", "application/json")]).await;
    assert_eq!(reply.status, 403);
    assert_eq!(reply.headers["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(problem["code"], "network_denied");
    assert_eq!(problem["status"], 403);
    assert!(problem["fix"].as_str().is_some_and(|fix| fix.contains("sandbar net allow")));
}

#[tokio::test]
async fn plain_requests_are_judged_one_by_one() {
    let server = Server::plain().await;
    let port = server.port();
    let rule = format!("a.example.test:{port} GET /public/**");
    let world = World::new(&[(Allow, &rule)]).await;
    let reply =
        world.plain(&format!("http://a.example.test:{port}/public/x?q=1"), &[("proxy-authorization", "x")]).await;
    assert_eq!((reply.status, &reply.headers["x-server"]), (200, &"here".parse().expect("a header")));
    let seen = server.last();
    assert_eq!(seen.target, "/public/x?q=1");
    assert!(!seen.headers.contains_key("proxy-authorization") && !seen.headers.contains_key("via"));
    for path in ["/private", "/public/../private", "/public/%2e%2e/private"] {
        assert_eq!(world.plain(&format!("http://a.example.test:{port}{path}"), &[]).await.status, 403, "{path}");
    }
    assert_eq!(server.seen().len(), 1);
    let fact = world.warden.fact("done", |fact| matches!(fact.outcome, Outcome::Done { status: Some(200) })).await;
    assert_eq!(fact.path.as_deref(), Some("/public/x"), "without its query");
    assert_eq!(fact.method.as_deref(), Some("GET"));
}

#[tokio::test]
async fn one_connection_serves_many_plain_requests() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("*.example.test:{port}"))]).await;
    let mut sender = world.plain_sender().await;
    for number in 0..20 {
        let host = if number % 10 < 8 { "a" } else { "b" };
        let url = format!("http://{host}.example.test:{port}/{number}");
        let mut asked = request("POST", &url, &[], "body");
        asked.headers_mut().insert("host", format!("{host}.example.test:{port}").parse().expect("a header"));
        let reply = Reply::read(sender.send_request(asked).await.expect("an answer")).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "body"));
    }
    let connections = server.connections.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(connections, 4, "one for each time the host changed");
}

#[tokio::test]
async fn rules_change_live() {
    let server = Server::tls().await;
    let port = server.port();
    let rule = format!("a.example.test:{port} GET /one");
    let world = World::new(&[(Allow, &rule)]).await;
    let mut sender = world.http1("a.example.test", port).await;
    let host = format!("a.example.test:{port}");
    let mut ask = async |path: &str| {
        let asked = request("GET", path, &[("host", &host)], "");
        Reply::read(sender.send_request(asked).await.expect("an answer")).await.status
    };
    assert_eq!(ask("/one").await, 200);
    assert_eq!(ask("/two").await, 403);
    world.warden.rules(&[(Allow, &format!("a.example.test:{port} GET /two"))]);
    assert_eq!(ask("/two").await, 200, "on the same connection");
    assert_eq!(ask("/one").await, 403);
    world.warden.rules(&[]);
    assert_eq!(ask("/two").await, 403);
    assert!(world.connect_raw(&host).await.1.starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn a_question_parks_the_connection() {
    let server = Server::tls().await;
    let port = server.port();
    let rule = format!("a.example.test:{port}");
    let world = World::new(&[(Ask, &rule)]).await;
    let (reply, ()) = tokio::join!(world.get("a.example.test", port, "/", &[]), async {
        let (question, answer) = world.question().await;
        assert_eq!((question.host, question.port), (Host::Name("a.example.test".into()), port));
        assert_eq!((question.method, question.rule), (None, rule.clone()));
        assert_eq!(server.connections.load(std::sync::atomic::Ordering::Relaxed), 0, "nothing is dialled before");
        answer.send(Answer::Allow).expect("it waits");
    });
    assert_eq!(reply.status, 200);

    let target = format!("a.example.test:{port}");
    let ((_, text), ()) = tokio::join!(world.connect_raw(&target), async {
        let (_, answer) = world.question().await;
        answer.send(Answer::Deny("not on a Sunday".into())).expect("it waits");
    });
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains("not on a Sunday."), "{text}");
    world.warden.denied("not on a Sunday").await;
}

#[tokio::test]
async fn a_question_about_a_request_parks_that_request_alone() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[
        (Ask, &format!("a.example.test:{port} POST /ask")),
        (Allow, &format!("a.example.test:{port} GET /free")),
    ])
    .await;
    let sender = world.http2("a.example.test", port).await;
    let url = move |path: &str| format!("https://a.example.test:{port}{path}");
    let (mut one, mut two) = (sender.clone(), sender.clone());
    let parked = tokio::spawn(async move { one.send_request(request("POST", &url("/ask"), &[], "body")).await });
    let (question, answer) = world.question().await;
    assert_eq!((question.method.as_deref(), question.path.as_deref()), (Some("POST"), Some("/ask")));
    let free = two.send_request(request("GET", &url("/free"), &[], "")).await;
    assert_eq!(free.expect("an answer").status(), 200, "while the other one waits");
    assert_eq!(server.seen().len(), 1);
    answer.send(Answer::Allow).expect("it waits");
    let reply = Reply::read(parked.await.expect("no panic").expect("an answer")).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "body"));
}

#[tokio::test]
async fn a_connection_that_a_person_allowed_is_not_asked_about_again() {
    let server = Server::tls().await;
    let Some(https) = Server::on_443("a_connection_that_a_person_allowed", "127.77.0.1").await else { return };
    let mut settings = crate::egress::world::settings();
    settings.hosts.insert("secret.example.test".into(), vec!["127.77.0.1".parse().expect("an address")]);
    let world = World::with(&[(Ask, "secret.example.test")], settings).await;
    world.warden.grant("token", "ph_token", &["secret.example.test"], "header:x-key:{}");
    let (mut sender, ()) = tokio::join!(world.http1("secret.example.test", 443), async {
        world.question().await.1.send(Answer::Allow).expect("it waits");
    });
    for _ in 0..2 {
        let asked = request("GET", "/", &[("host", "secret.example.test")], "");
        assert_eq!(Reply::read(sender.send_request(asked).await.expect("an answer")).await.status, 200);
    }
    assert_eq!((https.seen().len(), server.seen().len()), (2, 0));
    world.warden.rules(&[(Deny, "secret.example.test")]);
    let asked = request("GET", "/", &[("host", "secret.example.test")], "");
    assert_eq!(sender.send_request(asked).await.expect("an answer").status(), 403, "a later rule counts");
}

#[tokio::test]
async fn a_deny_rule_that_comes_while_a_person_is_asked_wins() {
    let server = Server::tls().await;
    let port = server.port();
    let target = format!("a.example.test:{port}");
    let whole = (Ask, target.as_str());
    let world = World::new(&[whole]).await;
    let ((_, text), ()) = tokio::join!(world.connect_raw(&target), async {
        let (_, answer) = world.question().await;
        world.warden.rules(&[whole, (Deny, "a.example.test:*")]);
        answer.send(Answer::Allow).expect("it waits");
    });
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains("the rule `a.example.test:*`"), "{text}");

    // one that looks into requests makes the connection one that is looked into
    world.warden.rules(&[whole]);
    let (reply, ()) = tokio::join!(world.get("a.example.test", port, "/x", &[]), async {
        let (_, answer) = world.question().await;
        world.warden.rules(&[whole, (Deny, "a.example.test:* GET /x")]);
        answer.send(Answer::Allow).expect("it waits");
    });
    assert_eq!(reply.status, 403, "{}", reply.text());

    let asked = format!("{target} GET /**");
    world.warden.rules(&[(Ask, &asked)]);
    let (reply, ()) = tokio::join!(world.get("a.example.test", port, "/x", &[]), async {
        let (_, answer) = world.question().await;
        world.warden.rules(&[(Ask, &asked), (Deny, "a.example.test:* GET /x")]);
        answer.send(Answer::Allow).expect("it waits");
    });
    assert_eq!(reply.status, 403, "{}", reply.text());
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn what_is_denied_is_told_and_recorded_briefly() {
    let world = World::new(&[(Deny, "a.example.test /**")]).await;
    let path = format!("/{}", "%1b[2J".repeat(200));
    let reply = world.plain(&format!("http://a.example.test{path}"), &[]).await;
    assert_eq!(reply.status, 403);
    assert!(reply.text().len() < 500, "{}", reply.text());
    let fact = world.warden.fact("the denial", |fact| fact.path.is_some()).await;
    let shown = fact.path.unwrap_or_default();
    assert!(shown.starts_with("/%1b[2J") && shown.len() <= 200 + '…'.len_utf8(), "{shown}");
    let Outcome::Denied(reason) = fact.outcome else { panic!("{:?}", fact.outcome) };
    assert_eq!(reason, "a.example.test is refused by the rule `a.example.test /**`.");
}

#[tokio::test]
async fn who_goes_away_stops_asking() {
    let world = World::new(&[(Ask, "a.example.test")]).await;
    let mut stream = world.dial().await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"CONNECT a.example.test:443 HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .expect("written");
    let (_, mut answer) = world.question().await;
    drop(stream);
    tokio::time::timeout(PATIENCE, answer.closed()).await.expect("the question is given up");
    let fact = world.warden.fact("given up", |fact| fact.host == "a.example.test").await;
    assert!(matches!(fact.outcome, Outcome::Failed(_)), "{fact:?}");
}

#[tokio::test]
async fn who_goes_away_inside_http2_stops_asking() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Ask, &format!("a.example.test:{port} GET /**"))]).await;
    let sender = world.http2("a.example.test", port).await;
    let url = format!("https://a.example.test:{port}/");
    let ask = |mut sender: hyper::client::conn::http2::SendRequest<_>, url: String| {
        tokio::spawn(async move { sender.send_request(request("GET", &url, &[], "")).await })
    };
    let one = ask(sender.clone(), url.clone());
    let (_, mut first) = world.question().await;
    let two = ask(sender.clone(), url);
    let (_, mut second) = world.question().await;
    one.abort();
    tokio::time::timeout(PATIENCE, first.closed()).await.expect("one is given up");
    assert!(!second.is_closed(), "the other one still waits");
    two.abort();
    drop(sender);
    tokio::time::timeout(PATIENCE, second.closed()).await.expect("all are given up");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn its_own_pages() {
    let world = World::new(&[]).await;
    let mut stream = world.dial().await;
    let page = raw(&mut stream, b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n").await;
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("way out"), "{page}");
    let through = format!("GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n", world.proxy);
    assert!(raw(&mut stream, through.as_bytes()).await.contains("way out"), "asked through itself");
    assert!(raw(&mut stream, b"GET /x HTTP/1.1\r\nHost: gateway\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
    let answer = raw(&mut stream, b"GET https://a.example.test/ HTTP/1.1\r\nHost: a.example.test\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("CONNECT"), "{answer}");
}

#[tokio::test]
async fn stopping_ends_what_is_open() {
    let server = Server::tls().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("a.example.test:{port}"))]).await;
    let mut tunnel = world.connect(&format!("a.example.test:{port}")).await;
    world.stop.cancel();
    let mut rest = [0; 1];
    let read = tokio::time::timeout(PATIENCE, tunnel.read(&mut rest)).await.expect("it ends");
    assert!(matches!(read, Ok(0) | Err(_)));
    world.warden.fact("its end", |fact| matches!(fact.outcome, Outcome::Failed(_))).await;
    assert!(tokio::net::TcpStream::connect(world.proxy).await.is_err(), "nothing more is accepted");
}

#[tokio::test]
async fn settings_change_live_and_wrong_ones_change_nothing() {
    let server = Server::plain().await;
    let port = server.port();
    let world = World::new(&[(Allow, &format!("*.example.test:{port}"))]).await;
    let url = format!("http://a.example.test:{port}/");
    assert_eq!(world.plain(&url, &[]).await.status, 200);
    let mut changed = crate::egress::world::settings();
    changed.private.clear();
    world.gateway.configure(changed.clone()).expect("settings");
    let reply = world.plain(&url, &[]).await;
    assert_eq!(reply.status, 403, "{}", reply.text());
    assert!(reply.text().contains("127.0.0.1"), "{}", reply.text());
    changed.extra_roots = b"no certificate".to_vec();
    changed.private = vec!["127.0.0.0/8".parse().expect("a range")];
    assert!(world.gateway.configure(changed).is_err());
    assert_eq!(world.plain(&url, &[]).await.status, 403);
}

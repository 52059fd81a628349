//! Who reaches whose tools, and how many at a time.

use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use hyper_util::rt::TokioIo;
use sandbar_api::{CreateToken, Role};
use sandbar_server::{Options, Server};
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    mcp::wire::{BOTH, JSON, SESSION, ask, eventually, initialize, lent, modern},
    support::{Answer, Bench},
};

pub(crate) async fn crowded(bench: &Bench) {
    let path = "/v1/sessions/small/mcp";
    let mut last = String::new();
    for _ in 0..100 {
        let answer = bench.send("POST", path, &[BOTH, JSON], initialize()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        last = answer.headers[SESSION].to_str().unwrap().to_owned();
    }
    assert_eq!(bench.send("POST", path, &[BOTH, JSON], initialize()).await.code(), "too_many");
    assert_eq!(bench.send("DELETE", path, &[(SESSION, &last)], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(bench.send("POST", path, &[BOTH, JSON], initialize()).await.status, StatusCode::OK);
}

pub(crate) async fn nowhere(bench: &Bench) {
    let made = bench.post("/v1/sessions", &json!({"name": "brief"})).await;
    let session: Value = serde_json::from_slice(&made.body).unwrap();
    let id = session["id"].as_str().unwrap().to_owned();
    assert_eq!(bench.send("DELETE", "/v1/sandboxes/brief", &[], "").await.status, StatusCode::NO_CONTENT);
    let path = format!("/v1/sessions/{id}/mcp");
    assert_eq!(ask(bench, &path, "tools/list", json!({})).await["result"]["tools"].as_array().unwrap().len(), 13);
    let answer = ask(bench, &path, "tools/call", json!({"name": "list_dir", "arguments": {}})).await;
    assert_eq!(answer["result"]["isError"], true);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("has no sandbox") && text.contains(&format!("POST /v1/sessions/{id}/sandbox")), "{text}");
}

pub(crate) async fn tokens(bench: &Bench) {
    let socket = bench.directory.path().join("second.sock");
    let options = Options {
        tcp: Some("127.0.0.1:0".parse().unwrap()),
        tls: None,
        socket,
        version: "test",
        preview_domain: None,
        shared: false,
    };
    let server = Server::bind(bench.engine.clone(), options).await.unwrap();
    let (address, closing) = (server.tcp_address().unwrap(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(closing.clone()));
    let of = async |name: &str| {
        let session: Value = serde_json::from_slice(&bench.get(&format!("/v1/sessions/{name}")).await.body).unwrap();
        session["id"].as_str().unwrap().to_owned()
    };
    let token = async |role: Role, session: Option<&str>| {
        let session = session.map(|id| id.parse().unwrap());
        let request = CreateToken { name: "t".to_owned(), role, session, ttl: None };
        format!("Bearer {}", bench.engine.create_token(request).await.unwrap().secret)
    };
    let host = address.to_string();
    let begin = async |method: &str, path: &str, host: &str, more: &[(&str, &str)], body: String| {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", host);
        for (name, value) in [BOTH, JSON].iter().chain(more) {
            request = request.header(*name, *value);
        }
        sender.send_request(request.body(Body::from(body)).unwrap()).await.unwrap().into_parts()
    };
    let send = async |method: &str, path: &str, host: &str, more: &[(&str, &str)], body: String| -> Answer {
        let (head, body) = begin(method, path, host, more, body).await;
        let body = to_bytes(Body::new(body), usize::MAX).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    };
    let (own, other) = (of("box").await, of("small").await);
    let agent = token(Role::Agent, Some(&own)).await;
    let path = format!("/v1/sessions/{own}/mcp");
    let credentials = [("authorization", agent.as_str())];
    let answer = send("POST", &path, &host, &credentials, initialize()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let id = answer.headers[SESSION].to_str().unwrap().to_owned();
    for (foreign, code) in [(other.as_str(), "unknown_session"), ("ses-00000000000000000000000000", "unknown_session")]
    {
        let path = format!("/v1/sessions/{foreign}/mcp");
        let refused = send("POST", &path, &host, &credentials, initialize()).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::NOT_FOUND, code), "{foreign}");
    }
    // Nobody else's token gets into the agent's MCP session, not even an operator's or another one of the same session.
    for mine in [token(Role::Operator, None).await, token(Role::Agent, Some(&own)).await] {
        assert_eq!(send("POST", &path, &host, &[("authorization", &mine)], initialize()).await.status, StatusCode::OK);
        let headers = [("authorization", mine.as_str()), (SESSION, id.as_str())];
        assert_eq!(send("DELETE", &path, &host, &headers, String::new()).await.code(), "unknown_session");
    }
    let viewer = token(Role::Viewer, None).await;
    for method in ["GET", "POST", "DELETE"] {
        let refused = send(method, &path, &host, &[("authorization", &viewer)], initialize()).await;
        assert_eq!(refused.code(), "forbidden", "{method}");
        assert_eq!(send(method, &path, &host, &[], initialize()).await.code(), "unauthenticated", "{method}");
    }
    let refused = send("POST", &path, "evil.example", &credentials, initialize()).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::FORBIDDEN, "foreign_host"));
    let page = [("authorization", agent.as_str()), ("origin", "http://evil.example")];
    let refused = send("POST", &path, &host, &page, initialize()).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::FORBIDDEN, "foreign_origin"));
    assert_eq!(send("POST", "/v1/sandboxes/box/exec", &host, &credentials, "{}".to_owned()).await.code(), "forbidden");
    // What is listened to, and what waits, ends with the token.
    let request = CreateToken { name: "t".to_owned(), role: Role::Agent, session: own.parse().ok(), ttl: None };
    let made = bench.engine.create_token(request).await.unwrap();
    let brief = format!("Bearer {}", made.secret);
    let opened = send("POST", &path, &host, &[("authorization", &brief)], initialize()).await;
    let listener = [("authorization", brief.as_str()), (SESSION, opened.headers[SESSION].to_str().unwrap())];
    let (head, listening) = begin("GET", &path, &host, &listener, String::new()).await;
    assert_eq!(head.status, StatusCode::OK);
    let mut listening = std::pin::pin!(to_bytes(Body::new(listening), usize::MAX));
    assert!(timeout(Duration::from_millis(300), &mut listening).await.is_err(), "it goes on");
    // It tells that it can be signalled, and that it was.
    let told = bench.directory.path().join("files/told-to-end");
    let deaf = format!("trap ': > {}' TERM; echo up; while :; do sleep 1; done", told.display());
    let deaf = bench.start(json!({"argv": ["sh", "-c", deaf], "cwd": "/"})).await;
    let up = format!("/v1/sandboxes/box/processes/{}/output?follow=true&limit=3", deaf.id);
    assert_eq!(bench.get(&up).await.text(), "up\n");
    let arguments = json!({"process_id": deaf.id, "grace_ms": 120_000});
    let (headers, body) = modern("tools/call", json!({"name": "stop", "arguments": arguments}));
    let headers: Vec<_> =
        lent(&headers).into_iter().chain([listener[0]]).filter(|pair| ![BOTH, JSON].contains(pair)).collect();
    let mut stopping = std::pin::pin!(send("POST", &path, &host, &headers, body));
    tokio::select! {
        answer = &mut stopping => panic!("answered: {}", answer.text()),
        () = eventually("the signal", || told.exists().then_some(())) => {}
    }
    assert!(timeout(Duration::from_secs(2), &mut stopping).await.is_err(), "it goes on");
    bench.engine.revoke_token(made.token.id.as_str()).await.unwrap();
    timeout(Duration::from_secs(300), listening).await.unwrap().unwrap();
    let stopped = timeout(Duration::from_secs(300), stopping).await.unwrap();
    assert!(stopped.text().contains("The token was revoked or has expired"), "{}", stopped.text());
    bench.engine.signal("box", deaf.id.as_str(), "KILL").await.unwrap();
    closing.cancel();
    serving.await.unwrap().unwrap();
}

//! Previews as their visitors meet them.

use std::time::Duration;

use axum::http::header;
use futures_util::{SinkExt as _, StreamExt as _};
use sandbar_api::{ProcessState, Role};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::inward::house::{House, heard, json_of};

pub(crate) async fn entering(house: &House) {
    let (url, code) = house.link(&house.operator, house.port).await;
    let host = house.preview(&house.id, house.port);
    assert_eq!(url, format!("http://{host}/.sandbar/enter"));
    let page = house.send(&host, "GET", "/.sandbar/enter", &[], "").await;
    assert!(page.text().contains("/.sandbar/enter.js"), "{}", page.text());
    let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
    assert_eq!(
        (&page.headers["x-frame-options"], &page.headers["cache-control"]),
        (&"DENY".parse().unwrap(), &"no-store".parse().unwrap())
    );
    for (path, kind) in [("/.sandbar/enter.js", "text/javascript"), ("/.sandbar/style.css", "text/css")] {
        let part = house.send(&host, "GET", path, &[], "").await;
        assert!(part.status == 200 && part.headers["content-type"].to_str().unwrap().starts_with(kind), "{path}");
    }
    for (path, method) in [("/.sandbar", "GET"), ("/.sandbar/other", "GET"), ("/.sandbar/enter", "PUT")] {
        assert_eq!(house.send(&host, method, path, &[], "").await.status, 404, "{method} {path}");
    }

    assert_eq!(house.send(&host, "GET", "/", &[], "").await.status, 401);
    assert_eq!(house.enter(&host, "wrong").await.status, 401);
    let entered = house.enter(&host, &code).await;
    assert_eq!(entered.status, 204);
    let cookie = entered.headers[header::SET_COOKIE].to_str().unwrap();
    for part in ["; Path=/", "; Max-Age=43200", "; HttpOnly", "; SameSite=Lax"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Domain") && !cookie.contains(&house.operator), "{cookie}");
    assert_eq!(house.enter(&host, &code).await.status, 401, "it works once");
    let cookie = cookie.split(';').next().unwrap();
    let seen = house.send(&host, "GET", "/a%2Fb?c", &[("cookie", cookie)], "").await;
    assert_eq!(json_of(&seen)["path"], "/a%2Fb?c");
    // A name, which may be another sandbox's tomorrow, is for programs alone.
    let named = house.preview("box", house.port);
    let (_, code) = house.link(&house.operator, house.port).await;
    assert_eq!(house.enter(&named, &code).await.status, 401);
    assert_eq!(house.send(&named, "GET", "/", &[("cookie", cookie)], "").await.status, 401);
    assert_eq!(house.send(&named, "GET", "/", &[("authorization", &house.bearer())], "").await.status, 200);
}

pub(crate) async fn passing(house: &House) {
    let host = house.preview(&house.id, house.port);
    let cookie = house.cookie(&house.operator, house.port).await;
    let cookies = format!("a=b; {cookie}; sandbar=sbw_x; __Host-sandbar=sbw_x; c=d");
    let origin = format!("http://{host}");
    let more = [
        ("cookie", cookies.as_str()),
        ("origin", &origin),
        ("authorization", "Basic b3duOm93bg=="),
        ("x-forwarded-for", "10.0.0.1"),
    ];
    let told = json_of(&house.send(&host, "POST", "/x", &more, "body").await);
    let headers = &told["headers"];
    assert_eq!((&told["method"], &told["body"]), (&json!("POST"), &json!("body")));
    assert_eq!(heard(headers, "cookie"), ["a=b; c=d"]);
    assert_eq!(heard(headers, "authorization"), ["Basic b3duOm93bg=="], "what is the page's own passes");
    assert_eq!((heard(headers, "host"), heard(headers, "origin")), (vec![host.clone()], vec![origin.clone()]));
    assert_eq!(heard(headers, "x-forwarded-proto"), ["http"]);
    assert!(heard(headers, "x-forwarded-for").is_empty());
    let bearer = house.bearer();
    let told = json_of(&house.send(&host, "POST", "/x", &[("authorization", &bearer)], "").await);
    assert!(heard(&told["headers"], "authorization").is_empty(), "a token of ours does not");
    let both = [("cookie", cookie.as_str()), ("authorization", "Basic eDp5"), ("authorization", &bearer)];
    let told = json_of(&house.send(&host, "GET", "/x", &both, "").await);
    assert_eq!(heard(&told["headers"], "authorization"), ["Basic eDp5"], "nor behind one that does");

    let answer = house.send(&host, "GET", "/cookies", &[("cookie", &cookie)], "").await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (418, "teapot"));
    let set: Vec<_> = answer.headers.get_all(header::SET_COOKIE).iter().collect();
    assert_eq!(set, ["a=b; Path=/"]);
    assert_eq!(answer.headers["content-security-policy"], "default-src *", "the page's own");
    assert_eq!(answer.headers["referrer-policy"], "same-origin");
    assert_eq!(answer.headers["location"], "/v1/sandboxes/box", "the page's own");
    for gone in ["clear-site-data", "x-accel-redirect", "x-hop", "x-frame-options", "x-content-type-options"] {
        assert!(!answer.headers.contains_key(gone), "{gone}");
    }
}

pub(crate) async fn pages(house: &House) {
    let bearer = house.bearer();
    let token = ("authorization", bearer.as_str());
    let html = ("accept", "text/html,*/*");
    for (host, headers, status, text) in [
        (house.preview(&house.id, 1), &[token][..], 502, "Nothing listens on port 1 yet."),
        (house.preview("nobody", 80), &[token], 404, "There is no sandbox `nobody`."),
        (house.preview("sbx-01m7g3c3vxvj7sd95wdt31ms14", 80), &[token], 404, "There is no sandbox"),
        (house.preview("nobody", 80), &[], 401, "sandbar preview SANDBOX PORT"),
        (format!("box.localhost:{}", house.address.port()), &[token], 404, "SANDBOX-PORT"),
        (format!("box-080.localhost:{}", house.address.port()), &[token], 404, "SANDBOX-PORT"),
        (format!("x.box-80.localhost:{}", house.address.port()), &[token], 404, "SANDBOX-PORT"),
    ] {
        let answer = house.send(&host, "GET", "/", headers, "").await;
        assert_eq!(answer.status, status, "{host}: {}", answer.text());
        assert!(answer.text().contains(text), "{host}: {}", answer.text());
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
        let shown = house.send(&host, "GET", "/", &[headers, &[html]].concat(), "").await;
        assert!(shown.text().starts_with("<!doctype html>"), "{}", shown.text());
        assert!(shown.headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    }
    // What speaks no HTTP.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _sent = tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail.example ESMTP\r\n").await;
        }
    });
    let answer = house.send(&house.preview("box", port), "GET", "/", &[token], "").await;
    assert!(answer.status == 502 && answer.text().contains("speaks no HTTP"), "{}", answer.text());
}

pub(crate) async fn websocket(house: &House) {
    let (secret, id) = house.token(Role::Operator, None).await;
    let cookie = house.cookie(&secret, house.port).await;
    let host = house.preview(&house.id, house.port);
    let origin = format!("http://{host}");
    let headers = [("cookie", cookie.as_str()), ("origin", origin.as_str())];
    let mut socket = house.websocket(&host, "/ws", &headers).await.unwrap();
    let first = socket.next().await.unwrap().unwrap();
    let told: Value = serde_json::from_str(first.to_text().unwrap()).unwrap();
    assert!(heard(&told, "cookie").is_empty() && heard(&told, "origin") == [origin.clone()], "{told}");
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
    let api = format!("http://{}", house.host());
    for foreign in ["http://evil.example", "null", &api, &format!("http://localhost:{}", house.address.port())] {
        let refused = house.websocket(&host, "/ws", &[("cookie", &cookie), ("origin", foreign)]).await.err();
        assert_eq!(refused, Some(403), "{foreign}");
    }
    assert_eq!(house.websocket(&host, "/ws", &headers[..1]).await.err(), Some(403), "a cookie alone says too little");
    assert_eq!(house.websocket(&host, "/ws", &headers[1..]).await.err(), Some(401));
    let (_, link) = house.link(&secret, house.port).await;
    house.bench.engine.revoke_token(&id).await.unwrap();
    let over = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(Duration::from_secs(300), over).await.unwrap();
    assert_eq!(house.send(&host, "GET", "/", &headers[..1], "").await.status, 401);
    assert_eq!(house.enter(&host, &link).await.status, 401, "its links end with it");
}

pub(crate) async fn roles(house: &House) {
    let session = house.bench.engine.get("box").await.unwrap().session;
    let (viewer, _) = house.token(Role::Viewer, None).await;
    let (agent, _) = house.token(Role::Agent, Some(session)).await;
    let host = house.preview(&house.id, house.port);
    for secret in [viewer, agent] {
        let bearer = format!("Bearer {secret}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        for (path, body) in [("previews", json!({"port": 80})), ("router-token", json!({"ttl": "1h"}))] {
            let path = format!("/v1/sandboxes/box/{path}");
            assert_eq!(house.send(&house.host(), "POST", &path, &headers, body.to_string()).await.code(), "forbidden");
        }
        assert_eq!(house.send(&host, "GET", "/", &headers[..1], "").await.status, 403);
    }
    let made = house.bench.post("/v1/sandboxes/box/previews", &json!({"port": 80})).await;
    assert_eq!(made.code(), "bad_request", "a server without TCP has no previews: {}", made.text());
    let bearer = house.bearer();
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for (sandbox, body, code) in [
        ("box", json!({"port": 0}), "bad_request"),
        ("box", json!({"port": 65536}), "bad_json"),
        ("box", json!({}), "bad_json"),
        ("nobody", json!({"port": 80}), "unknown_sandbox"),
    ] {
        let path = format!("/v1/sandboxes/{sandbox}/previews");
        let answer = house.send(&house.host(), "POST", &path, &headers, body.to_string()).await;
        assert_eq!(answer.code(), code, "{body}");
    }
}

/// A server that somebody else wrote, started inside, and many requests to it.
pub(crate) async fn real(house: &House) {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        sandbar_test_harness::missing("a_real_server_is_shown", "python3");
        return;
    }
    let written = house.bench.send("PUT", &house.bench.at("index.html"), &[], "<h1>from inside</h1>").await;
    assert!(written.status.is_success(), "{}", written.text());
    let bearer = house.bearer();
    let token = [("authorization", bearer.as_str())];
    // The port is free a moment before, so that another one is tried when somebody was faster.
    let shown = async {
        loop {
            let kept = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = kept.local_addr().unwrap().port();
            drop(kept);
            let directory = house.bench.directory.path().join("files");
            let argv = json!(["python3", "-m", "http.server", "-b", "127.0.0.1", "-d", directory, port.to_string()]);
            let process = house.bench.start(json!({ "argv": argv, "cwd": "/" })).await;
            let host = house.preview("box", port);
            loop {
                let answer = house.send(&host, "GET", "/", &token, "").await;
                if (answer.status.as_u16(), answer.text().as_str()) == (200, "<h1>from inside</h1>") {
                    return (process, host);
                }
                let now = house.bench.engine.process("box", process.id.as_str()).await.unwrap();
                if now.state != ProcessState::Running {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    let (process, host) = tokio::time::timeout(Duration::from_secs(300), shown).await.unwrap();
    // More than may be open at once: each lets go of its connection.
    for _ in 0..6 {
        let all = (0..50).map(|_| house.send(&host, "GET", "/index.html", &token, ""));
        for answer in futures_util::future::join_all(all).await {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let path = format!("/v1/sandboxes/box/processes/{}", process.id);
    assert_eq!(house.bench.get(&path).await.status, 200);
    house.bench.post(&format!("{path}/signal"), &json!({"signal": "KILL"})).await;
    house.bench.ended(process.id.as_str()).await;
    assert_eq!(house.send(&host, "GET", "/", &token, "").await.status, 502);
}

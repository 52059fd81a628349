//! The router's contract.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use futures_util::{SinkExt as _, StreamExt as _};
use sandbar_api::Role;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio_tungstenite::tungstenite::Message;

use crate::{
    inward::house::{House, heard, json_of},
    support::Answer,
};

fn detail(answer: &Answer) -> (u16, String) {
    (answer.status.as_u16(), json_of(answer)["detail"].as_str().unwrap().to_owned())
}

fn refused(status: u16, text: &str) -> (u16, String) {
    (status, text.to_owned())
}

pub(crate) async fn passing(house: &House) {
    for (given, seen) in [
        ("/router/download/a%2Fb%20c?x=%2F&y", "/download/a%2Fb%20c?x=%2F&y"),
        ("/router/v1/files/%2E%2E%2Fetc", "/v1/files/%2E%2E%2Fetc"),
        ("/router/../v1/sandboxes", "/../v1/sandboxes"),
        ("/router//two", "//two"),
        ("/router/", "/"),
        ("/router", "/"),
        ("/router?a=b", "/?a=b"),
    ] {
        let answer = house.routed("GET", given, &[], "").await;
        assert_eq!(json_of(&answer)["path"], seen, "{given}");
    }
    let more = [
        ("cookie", "a=b; sandbar=sbw_x; __Host-sandbar=sbw_x; sandbar-preview=y; c=d"),
        ("connection", "close, x-hop"),
        ("x-hop", "of one connection"),
        ("x-sandbox-anything", "x"),
        ("proxy-authorization", "x"),
        ("te", "trailers"),
        ("x-own", "kept"),
        ("x-sandbox-timeout", "60.0"),
    ];
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let told = json_of(&house.routed(method, "/router/x", &more, "body").await);
        assert_eq!((&told["method"], &told["body"]), (&json!(method), &json!("body")));
        let headers = &told["headers"];
        assert_eq!(heard(headers, "host"), [format!("127.0.0.1:{}", house.port)]);
        assert_eq!(heard(headers, "cookie"), ["a=b; c=d"]);
        assert_eq!(
            (heard(headers, "x-own"), heard(headers, "content-length")),
            (vec!["kept".to_owned()], vec!["4".into()])
        );
        for gone in ["authorization", "x-hop", "x-sandbox-id", "x-sandbox-anything", "proxy-authorization", "te"] {
            assert!(heard(headers, gone).is_empty(), "{gone} in {headers}");
        }
    }
    // Of unknown length.
    let pieces = futures_util::stream::iter(["one ", "two"].map(|text| Ok::<_, std::io::Error>(Bytes::from(text))));
    let told = json_of(&house.routed("POST", "/router/x", &[], Body::from_stream(pieces)).await);
    assert_eq!(told["body"], "one two");
    let nothing = json_of(&house.routed("POST", "/router/x", &[("content-length", "0")], "").await);
    assert_eq!(heard(&nothing["headers"], "content-length"), ["0"]);
}

pub(crate) async fn answers(house: &House) {
    let answer = house.routed("GET", "/router/cookies", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (418, "teapot"));
    assert_eq!(answer.headers["x-own"], "kept");
    assert!(answer.headers["content-security-policy"].to_str().unwrap().contains("sandbox"));
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers["location"], "/router/v1/sandboxes/box", "who follows stays with the sandbox");
    assert_eq!(answer.headers["cache-control"], "no-store");
    for gone in ["set-cookie", "access-control-allow-origin", "clear-site-data", "x-accel-redirect", "x-hop"] {
        assert!(!answer.headers.contains_key(gone), "{gone}");
    }
    let head = house.routed("HEAD", "/router/cookies", &[], "").await;
    assert_eq!((head.status.as_u16(), head.headers["content-length"].to_str().unwrap()), (418, "6"));
}

pub(crate) async fn refusals(house: &House) {
    for (more, status, text) in [
        (("x-sandbox-id", ""), 400, "X-Sandbox-ID header is required."),
        (("x-sandbox-id", "Bad.Id"), 400, "Invalid sandbox ID format."),
        (("x-sandbox-namespace", "Bad"), 400, "Invalid namespace format."),
        (("x-sandbox-port", "0"), 400, "Invalid port format."),
        (("x-sandbox-pod-ip", "127.0.0.1"), 400, "Invalid target IP address."),
        (("x-sandbox-pod-ip", "169.254.169.254"), 400, "Invalid target IP address."),
        (("x-sandbox-namespace", "kube-system"), 502, "Could not connect to the backend sandbox: box"),
        (("x-sandbox-id", "nobody"), 502, "Could not connect to the backend sandbox: nobody"),
        (("authorization", "Bearer sbt_wrong"), 401, "unauthenticated"),
        (("authorization", "Basic eDp5"), 401, "unauthenticated"),
    ] {
        let answer = house.routed("GET", "/router/x", &[more], "").await;
        assert_eq!(detail(&answer), refused(status, text), "{more:?}");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    let bare = house.send(&house.host(), "GET", "/router/x", &[], "").await;
    assert_eq!(detail(&bare), refused(401, "unauthenticated"));
    assert!(bare.headers.contains_key("www-authenticate"));
    // What a browser sends by itself counts for nothing.
    let cookie = house.browser().await;
    let browser = [("cookie", cookie.as_str()), ("sec-fetch-site", "same-origin"), ("x-sandbox-id", "box")];
    assert_eq!(
        house.send(&house.sign_in(), "GET", "/v1/sandboxes", &browser[..2], "").await.status,
        200,
        "the control"
    );
    let answer = house.send(&house.sign_in(), "GET", "/router/x", &browser, "").await;
    assert_eq!(detail(&answer), refused(401, "unauthenticated"));
    let bearer = house.bearer();
    let page = [("authorization", bearer.as_str()), ("origin", "http://evil.example"), ("x-sandbox-id", "box")];
    assert_eq!(house.send(&house.host(), "GET", "/router/x", &page, "").await.code(), "foreign_origin");
    assert_eq!(house.send("evil.example", "GET", "/router/x", &page[..1], "").await.code(), "foreign_host");
}

pub(crate) async fn tokens(house: &House) {
    let (viewer, _) = house.token(Role::Viewer, None).await;
    let answer = house.routed("GET", "/router/x", &[("authorization", &format!("Bearer {viewer}"))], "").await;
    assert_eq!(detail(&answer), refused(403, "forbidden"));
    let session = |name: &'static str| async move { house.bench.engine.get(name).await.unwrap().session };
    let (own, _) = house.token(Role::Agent, Some(session("box").await)).await;
    let (other, _) = house.token(Role::Agent, Some(session("small").await)).await;
    for (secret, sandbox, status) in
        [(&own, "box", 200), (&other, "box", 403), (&own, "small", 403), (&own, "none", 403)]
    {
        let more = [("authorization", &*format!("Bearer {secret}")), ("x-sandbox-id", sandbox)];
        let answer = house.routed("GET", "/router/x", &more, "").await;
        assert_eq!(answer.status, status, "{sandbox}: {}", answer.text());
    }
    // The owner's socket needs no token.
    let port = house.port.to_string();
    let answer = house.bench.send("GET", "/router/x", &[("x-sandbox-id", "box"), ("x-sandbox-port", &port)], "").await;
    assert_eq!(json_of(&answer)["path"], "/x");
}

async fn minted(house: &House, ttl: &str) -> Answer {
    let bearer = house.bearer();
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = json!({ "ttl": ttl }).to_string();
    house.send(&house.host(), "POST", "/v1/sandboxes/box/router-token", &headers, body).await
}

pub(crate) async fn scoped(house: &House) {
    for (ttl, code) in [("999ms", "bad_duration"), ("31d", "bad_duration"), ("soon", "bad_duration")] {
        assert_eq!(minted(house, ttl).await.code(), code, "{ttl}");
    }
    let made = json_of(&minted(house, "1h").await);
    let token = made["token"].as_str().unwrap();
    assert!(token.starts_with("v1.") && made["expires_at"].is_string());
    let bearer = format!("Bearer {token}");
    let send = |more: Vec<(&'static str, String)>| {
        let bearer = bearer.clone();
        async move {
            let mut headers = vec![("authorization", bearer)];
            headers.extend(more);
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            house.routed("GET", "/router/x", &headers, "").await
        }
    };
    assert_eq!(send(vec![]).await.status, 200);
    assert_eq!(send(vec![("x-sandbox-id", house.id.clone())]).await.status, 200);
    for more in [
        ("x-sandbox-id", "small".to_owned()),
        ("x-sandbox-id", "nobody".to_owned()),
        ("x-sandbox-namespace", "other".to_owned()),
        ("x-sandbox-pod-ip", "10.1.2.3".to_owned()),
        ("x-sandbox-uid", "x".to_owned()),
    ] {
        let shown = format!("{more:?}");
        assert_eq!(detail(&send(vec![more]).await), refused(403, "forbidden"), "{shown}");
    }
    // It is nothing but that.
    for path in ["/v1/sandboxes", "/v1/sandboxes/box", "/metrics"] {
        let answer = house.send(&house.host(), "GET", path, &[("authorization", &bearer)], "").await;
        assert_eq!(answer.code(), "unauthenticated", "{path}");
    }
    let preview = house.preview(&house.id, house.port);
    assert_eq!(house.send(&preview, "GET", "/", &[("authorization", &bearer)], "").await.status, 401);
    let tampered = format!("Bearer {}A", token);
    let answer = house.routed("GET", "/router/x", &[("authorization", &tampered)], "").await;
    assert_eq!(detail(&answer), refused(401, "unauthenticated"));
    let port = house.port.to_string();
    let (mut brief, mut socket) = (String::new(), Err(0));
    // On a busy machine it may be over before it is used, but not each time.
    for ttl in ["3s", "12s"] {
        let made = json_of(&minted(house, ttl).await);
        brief = format!("Bearer {}", made["token"].as_str().unwrap());
        let headers = [("authorization", brief.as_str()), ("x-sandbox-id", "box"), ("x-sandbox-port", &port)];
        socket = house.websocket(&house.host(), "/router/ws", &headers).await;
        if socket.is_ok() {
            break;
        }
    }
    let mut socket = socket.unwrap();
    let over = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(Duration::from_secs(300), over).await.unwrap();
    let answer = house.routed("GET", "/router/x", &[("authorization", &brief)], "").await;
    assert_eq!(detail(&answer), refused(401, "unauthenticated"));
}

/// With a key in the home, whoever has it mints.
pub(crate) async fn keys(house: &House) {
    // Of the sandbox `web`, signed with 32 times `k` by another program.
    let foreign =
        "v1.eyJucyI6ImRlZmF1bHQiLCJuYW1lIjoid2ViIiwiZXhwIjo0MTAyNDQ0ODAwfQ.92rCZBuoHq5Ulcvxk5VbGFFs9H82SAs0Vs9Wx7GAoQE";
    let bearer = format!("Bearer {foreign}");
    let headers = [("authorization", bearer.as_str()), ("x-sandbox-id", "web")];
    let answer = house.send(&house.host(), "GET", "/router/x", &headers, "").await;
    assert_eq!(detail(&answer), refused(401, "unauthenticated"));
    let file = house.bench.directory.path().join("home/router.key");
    std::fs::write(&file, format!(" {}\n", "k".repeat(32))).unwrap();
    let shared = house.another().await.unwrap();
    let answer = house.send_to(shared.address, "GET", "/router/x", &headers).await;
    assert_eq!(detail(&answer), refused(502, "Could not connect to the backend sandbox: web"));
    shared.close().await;
    std::fs::write(&file, "short").unwrap();
    let error = house.another().await.err().unwrap();
    assert!(error.to_string().contains("router.key"), "{error}");
    std::fs::remove_file(&file).unwrap();
}

pub(crate) async fn websocket(house: &House) {
    let (secret, id) = house.token(Role::Operator, None).await;
    let (bearer, port) = (format!("Bearer {secret}"), house.port.to_string());
    let origin = format!("http://{}", house.host());
    let headers =
        [("authorization", bearer.as_str()), ("x-sandbox-id", "box"), ("x-sandbox-port", &port), ("origin", &origin)];
    let mut socket = house.websocket(&house.host(), "/router/ws", &headers).await.unwrap();
    let first = socket.next().await.unwrap().unwrap();
    let told: Value = serde_json::from_str(first.to_text().unwrap()).unwrap();
    for gone in ["origin", "authorization", "x-sandbox-id"] {
        assert!(heard(&told, gone).is_empty(), "{gone} in {told}");
    }
    let large = Message::binary(vec![7; 300_000]);
    socket.send(large.clone()).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), large);
    assert_eq!(house.websocket(&house.host(), "/router/ws", &headers[1..]).await.err(), Some(401));
    // Only what was looked at is switched to.
    let h2c = house.routed("GET", "/router/x", &[("connection", "upgrade"), ("upgrade", "h2c")], "").await;
    assert!(heard(&json_of(&h2c)["headers"], "upgrade").is_empty());
    house.bench.engine.revoke_token(&id).await.unwrap();
    let over = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(Duration::from_secs(300), over).await.unwrap();
}

pub(crate) async fn time(house: &House) {
    let answer = house.routed("GET", "/router/slow", &[("x-sandbox-timeout", "0.3")], "").await;
    assert_eq!(detail(&answer), refused(504, "The backend sandbox did not answer in time: box"));
    let bearer = house.bearer();
    let port = house.port.to_string();
    let began = async |timeout: &str| {
        let headers = [
            ("authorization", bearer.as_str()),
            ("x-sandbox-id", "box"),
            ("x-sandbox-port", &port),
            ("x-sandbox-timeout", timeout),
        ];
        house.begin(&house.host(), "GET", "/router/endless", &headers, "").await
    };
    let (mut head, mut endless) = began("3").await;
    if head.status == 504 {
        // On a busy machine it may begin later than that.
        (head, endless) = began("20").await;
    }
    assert_eq!(head.status, 200);
    assert!(to_bytes(endless, usize::MAX).await.is_err(), "it is cut off");
    house.inside.lock().await.left.recv().await.unwrap();

    // A server that is just starting is waited for. On a busy machine it may start too late for that, but not each time.
    let mut answer = of_a_late_one(house).await;
    for _ in 0..2 {
        if answer.status == 502 {
            answer = of_a_late_one(house).await;
        }
    }
    assert_eq!(answer.text(), "late");
    let answer = house.routed("GET", "/router/x", &[("x-sandbox-port", "1")], "").await;
    assert_eq!(detail(&answer), refused(502, "Could not connect to the backend sandbox: box"));
}

/// The answer of a server that begins to listen when it was already asked.
async fn of_a_late_one(house: &House) -> Answer {
    // Bound, its port is closed and still nobody else's.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let starting = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let listener = socket.listen(16).unwrap();
        let router = axum::Router::new().fallback(async || "late");
        tokio::spawn(async move { axum::serve(listener, router).await });
    };
    let late = [("x-sandbox-port", port.as_str())];
    let (answer, ()) = tokio::join!(house.routed("GET", "/router/x", &late, ""), starting);
    answer
}

pub(crate) async fn streams(house: &House) {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let pieces = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver));
    let (bearer, port) = (house.bearer(), house.port.to_string());
    let headers = [("authorization", bearer.as_str()), ("x-sandbox-id", "box"), ("x-sandbox-port", &port)];
    sender.send(Ok(Bytes::from(vec![0; 1000]))).await.unwrap();
    let (_, body) = house.begin(&house.host(), "POST", "/router/count", &headers, pieces).await;
    let mut counts = body.into_data_stream();
    assert_eq!(counts.next().await.unwrap().unwrap(), "1000\n");
    sender.send(Ok(Bytes::from(vec![0; 500]))).await.unwrap();
    assert_eq!(counts.next().await.unwrap().unwrap(), "1500\n");
    drop(sender);
    assert!(counts.next().await.is_none());

    let (_, endless) = house.begin(&house.host(), "GET", "/router/endless", &headers, "").await;
    let mut pieces = endless.into_data_stream();
    assert!(pieces.next().await.unwrap().unwrap().starts_with(b"piece"));
    drop(pieces);
    let left = async { house.inside.lock().await.left.recv().await };
    tokio::time::timeout(Duration::from_secs(300), left).await.unwrap().unwrap();
}

pub(crate) async fn health(house: &House) {
    for path in ["/router/healthz", "/router/readyz"] {
        let answer = house.send(&house.host(), "GET", path, &[], "").await;
        assert_eq!((answer.status.as_u16(), json_of(&answer)), (200, json!({"status": "ok"})), "{path}");
    }
}

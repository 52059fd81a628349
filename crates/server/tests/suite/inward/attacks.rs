//! What pages, programs and sandboxes try, and what must hold.

use axum::http::header;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::inward::house::{House, json_of};

pub(crate) async fn rerouting(house: &House) {
    let (bearer, port) = (house.bearer(), house.port.to_string());
    let named = [
        ("authorization", bearer.as_str()),
        ("x-sandbox-id", "box"),
        ("x-sandbox-port", &port),
        ("x-sandbox-namespace", "default"),
        ("x-sandbox-pod-ip", "10.1.2.3"),
    ];
    for path in ["/v1/templates", "/v1/sandboxes/box", "/v1/nothing", "/healthz", "/", "/routerx", "/v1/../router/x"] {
        let plain = house.send(&house.host(), "GET", path, &named[..1], "").await;
        let tried = house.send(&house.host(), "GET", path, &named, "").await;
        assert_eq!((plain.status, plain.text()), (tried.status, tried.text()), "{path}");
    }
    let (_, headers) = named.split_first().unwrap();
    assert_eq!(house.send(&house.host(), "GET", "/v1/sandboxes", headers, "").await.code(), "unauthenticated");
    // Nor does it choose the port or the sandbox of a preview.
    let host = house.preview(&house.id, house.port);
    let more = [("authorization", bearer.as_str()), ("x-sandbox-id", "small"), ("x-sandbox-port", "1")];
    assert_eq!(json_of(&house.send(&host, "GET", "/here", &more, "").await)["path"], "/here");
}

/// A listener that the caller names stays alone, though it could be reached.
pub(crate) async fn addresses(house: &House) {
    let listener = TcpListener::bind("127.0.0.9:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for address in ["127.0.0.9", "::ffff:127.0.0.9"] {
        let more = [("x-sandbox-pod-ip", address), ("x-sandbox-port", port.as_str())];
        assert_eq!(house.routed("GET", "/router/x", &more, "").await.status, 400, "{address}");
    }
    let told = house.routed("GET", "/router/x", &[("x-sandbox-pod-ip", "10.1.2.3"), ("x-sandbox-uid", "u")], "").await;
    assert_eq!(json_of(&told)["path"], "/x", "it goes to the sandbox all the same");
    for id in ["127.0.0.9", "localhost", "a.b", "169-254-169-254"] {
        let more = [("x-sandbox-id", id), ("x-sandbox-port", port.as_str())];
        let status = house.routed("GET", "/router/x", &more, "").await.status.as_u16();
        assert!(status == 400 || status == 502, "{id}: {status}");
    }
    let waited = tokio::time::timeout(std::time::Duration::from_millis(200), listener.accept()).await;
    assert!(waited.is_err(), "somebody connected");
}

pub(crate) async fn hosts(house: &House) {
    let bearer = house.bearer();
    let token = [("authorization", bearer.as_str())];
    let preview = house.preview(&house.id, house.port);
    // By a preview's name every path is the page's, whatever it is called.
    for path in ["/v1/sandboxes", "/router/x", "/healthz", "/docs/", "/v1/login", "/static/style.css"] {
        let answer = house.send(&preview, "GET", path, &token, "").await;
        assert_eq!(json_of(&answer)["path"], path);
        assert_eq!(house.send(&preview, "GET", path, &[], "").await.status, 401, "{path}");
    }
    // By the API's names no path is a preview's.
    for path in ["/.sandbar/enter", "/.sandbar/enter.js"] {
        assert_eq!(house.send(&house.host(), "GET", path, &token, "").await.code(), "unknown_route");
    }
    let port = house.address.port();
    for host in [
        format!("{}-{}.localhost", house.id, house.port),
        format!("{}-{}.localhost:1", house.id, house.port),
        format!("{}-{}.evil.example:{port}", house.id, house.port),
        format!("{}-{}.localhost.evil.example:{port}", house.id, house.port),
        format!("{}-{}.127.0.0.1:{port}", house.id, house.port),
        format!("user@{preview}"),
    ] {
        assert_eq!(house.send(&host, "GET", "/", &token, "").await.code(), "foreign_host", "{host}");
    }
    let twice = [token[0], ("host", preview.as_str())];
    assert_eq!(house.send(&house.host(), "GET", "/v1/sandboxes", &twice, "").await.code(), "foreign_host");
    let absolute = format!("http://{}/v1/sandboxes", house.host());
    let stream = TcpStream::connect(house.address).await.unwrap();
    let answer = raw(
        stream,
        &format!("GET {absolute} HTTP/1.1\r\nHost: {preview}\r\nAuthorization: {bearer}\r\nConnection: close\r\n\r\n"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("foreign_host"), "{answer}");
}

async fn raw(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![];
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) async fn cookies(house: &House) {
    let cookie = house.cookie(&house.operator, house.port).await;
    let here = house.preview(&house.id, house.port);
    assert_eq!(house.send(&here, "GET", "/", &[("cookie", &cookie)], "").await.status, 200);
    let small = house.bench.engine.get("small").await.unwrap().id.to_string();
    for elsewhere in [
        house.preview(&house.id, house.port + 1),
        house.preview(&small, house.port),
        house.preview("small", house.port),
    ] {
        assert_eq!(house.send(&elsewhere, "GET", "/", &[("cookie", &cookie)], "").await.status, 401, "{elsewhere}");
    }
    let (name, value) = cookie.split_once('=').unwrap();
    let (expires, rest) = value.split_once('.').unwrap();
    let (owner, mac) = rest.rsplit_once('.').unwrap();
    let later = expires.parse::<i64>().unwrap() + 1;
    for forged in [
        format!("{name}="),
        format!("{name}={later}.{owner}.{mac}"),
        format!("{name}={expires}.socket.{mac}"),
        format!("{name}={expires}.{owner}."),
        format!("{name}=1.{owner}.{mac}"),
        format!("__Host-{name}={value}"),
        format!("sandbar={}", house.operator),
        house.browser().await,
        house.browser().await.replacen("sandbar", name, 1),
        format!("sandbar={value}"),
    ] {
        assert_eq!(house.send(&here, "GET", "/", &[("cookie", &forged)], "").await.status, 401, "{forged}");
    }
    // Another host of a shared domain can put one beside ours, but not in its place.
    let tossed = format!("{name}=tossed; {cookie}");
    assert_eq!(house.send(&here, "GET", "/", &[("cookie", &tossed)], "").await.status, 200);
    // A code is for its own preview too.
    let (_, code) = house.link(&house.operator, house.port).await;
    assert_eq!(house.enter(&house.preview(&house.id, house.port + 1), &code).await.status, 401);
    assert_eq!(house.enter(&house.preview(&small, house.port), &code).await.status, 401);
    assert_eq!(house.enter(&here, &code).await.status, 204);
}

pub(crate) async fn other_sites(house: &House) {
    let cookie = house.cookie(&house.operator, house.port).await;
    let host = house.preview(&house.id, house.port);
    let own = ("cookie", cookie.as_str());
    let elsewhere = format!("http://{}", house.preview(&house.id, house.port + 1));
    for (method, more) in [
        ("GET", &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")][..]),
        ("GET", &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")]),
        ("GET", &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")]),
        ("GET", &[("origin", "http://evil.example")]),
        ("POST", &[("origin", elsewhere.as_str())]),
        ("POST", &[("origin", "null")]),
        ("POST", &[]),
        ("DELETE", &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]),
    ] {
        let answer = house.send(&host, method, "/", &[&[own], more].concat(), "").await;
        assert_eq!(answer.status, 403, "{method} {more:?}");
    }
    let link = [own, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    assert_eq!(house.send(&host, "GET", "/", &link, "").await.status, 200, "a link in a mail leads there");
    // No other page signs its visitor in.
    let (_, code) = house.link(&house.operator, house.port).await;
    let body = serde_json::json!({ "code": code }).to_string();
    for origin in [&[][..], &[("origin", "http://evil.example")], &[("origin", "null")]] {
        let headers = [&[("content-type", "application/json")], origin].concat();
        let answer = house.send(&host, "POST", "/.sandbar/enter", &headers, body.clone()).await;
        assert!(answer.status == 403 && !answer.headers.contains_key(header::SET_COOKIE), "{origin:?}");
    }
}

/// A page of a preview, in the browser of somebody who is signed in to the API.
pub(crate) async fn api(house: &House) {
    let origin = format!("http://{}", house.preview(&house.id, house.port));
    let signed_in = house.browser().await;
    let host = house.sign_in();
    let as_admin = [("cookie", signed_in.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(house.send(&host, "GET", "/v1/sandboxes", &as_admin, "").await.status, 200, "the control");
    for (method, path) in [("GET", "/v1/sandboxes"), ("DELETE", "/v1/sandboxes/box"), ("POST", "/v1/sandboxes")] {
        for site in ["cross-site", "same-site"] {
            let page = [("cookie", signed_in.as_str()), ("origin", origin.as_str()), ("sec-fetch-site", site)];
            let answer = house.send(&host, method, path, &page, "").await;
            assert_eq!(answer.code(), "foreign_origin", "{method} {path}");
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
            let silent = [page[0], page[2]];
            assert_eq!(house.send(&host, method, path, &silent, "").await.code(), "foreign_origin", "{method} {path}");
        }
    }
    let preflight = [("origin", origin.as_str()), ("access-control-request-method", "DELETE")];
    let answer = house.send(&host, "OPTIONS", "/v1/sandboxes/box", &preflight, "").await;
    assert!(answer.code() == "foreign_origin" && !answer.headers.contains_key("access-control-allow-origin"));
    // And a preview's cookie is none of the API's.
    let cookie = house.cookie(&house.operator, house.port).await;
    let renamed = cookie.replacen("sandbar-preview", "sandbar", 1);
    // Nor is a browser's elsewhere, or a token in its place.
    let token = format!("sandbar={}", house.operator);
    for (host, cookie) in [(&host, &cookie), (&host, &renamed), (&house.host(), &signed_in), (&host, &token)] {
        let headers = [("cookie", cookie.as_str()), ("sec-fetch-site", "same-origin")];
        assert_eq!(house.send(host, "GET", "/v1/sandboxes", &headers, "").await.code(), "unauthenticated");
    }
}

/// A body that looks like another request stays a body, and an answer with two lengths stays one answer.
pub(crate) async fn smuggling(house: &House) {
    let preview = house.preview(&house.id, house.port);
    let bearer = house.bearer();
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";
    let request = format!(
        "POST /x HTTP/1.1\r\nHost: {preview}\r\nAuthorization: {bearer}\r\nConnection: close\r\n\
         Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n{hidden}",
        hidden.len()
    );
    let answer = raw(TcpStream::connect(house.address).await.unwrap(), &request).await;
    let ok = answer.starts_with("HTTP/1.1 400")
        || (answer.matches("HTTP/1.1 200").count() == 1 && answer.contains(r#""body":"""#));
    assert!(ok && !answer.contains("/hidden"), "{answer}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let both = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
                    5\r\nwhole\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: smuggled=1\r\n\r\n";
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 4096];
            let _read = stream.read(&mut asked).await;
            let _sent = stream.write_all(both.as_bytes()).await;
        }
    });
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {}\r\nAuthorization: {bearer}\r\nConnection: close\r\n\r\n",
        house.preview("box", port)
    );
    let answer = raw(TcpStream::connect(house.address).await.unwrap(), &request).await;
    assert!(!answer.contains("smuggled") && !answer.to_lowercase().contains("content-length: 3"), "{answer}");
    assert!(answer.starts_with("HTTP/1.1 502") || answer.contains("whole"), "{answer}");
}

/// An answer of an old server, which only the end of its connection ends, has an end of its own outside.
pub(crate) async fn old_answers(house: &House) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 4096];
            let _read = stream.read(&mut asked).await;
            let _sent = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nold").await;
        }
    });
    let (host, bearer) = (house.preview(&house.id, port), house.bearer());
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: {bearer}\r\nConnection: close\r\n\r\n");
    let answer = raw(TcpStream::connect(house.address).await.unwrap(), &request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("3\r\nold\r\n0\r\n\r\n"), "{answer}");
}

//! The server inside: it tells what it was asked, and does what servers do.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json, Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State, WebSocketUpgrade, ws::Message},
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{any, get},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

/// Told when somebody left an endless answer.
type Left = mpsc::UnboundedSender<()>;

pub(crate) struct Inside {
    pub(crate) port: u16,
    pub(crate) left: mpsc::UnboundedReceiver<()>,
}

impl Inside {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, left) = mpsc::unbounded_channel();
        let router = Router::new()
            .route("/ws", get(websocket))
            .route("/cookies", get(cookies))
            .route("/endless", get(endless))
            .route("/slow", get(slow))
            .route("/count", any(count))
            .fallback(tell)
            .with_state(sender);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, left }
    }
}

fn told(headers: &HeaderMap) -> Value {
    let pair = |(name, value): (&HeaderName, &header::HeaderValue)| {
        json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())])
    };
    headers.iter().map(pair).collect()
}

async fn tell(request: Request) -> Json<Value> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    Json(json!({
        "method": head.method.as_str(),
        "path": head.uri.to_string(),
        "headers": told(&head.headers),
        "body": String::from_utf8_lossy(&body),
    }))
}

/// Echoes, and says first what it was opened with.
async fn websocket(upgrade: WebSocketUpgrade, headers: HeaderMap) -> Response {
    upgrade.on_upgrade(async move |mut socket| {
        let _sent = socket.send(Message::Text(told(&headers).to_string().into())).await;
        while let Some(Ok(message)) = socket.recv().await {
            if matches!(message, Message::Close(_)) || socket.send(message).await.is_err() {
                break;
            }
        }
    })
}

async fn cookies() -> Response {
    let mut response = (StatusCode::IM_A_TEAPOT, "teapot").into_response();
    let headers = response.headers_mut();
    for cookie in
        ["a=b; Domain=localhost; Path=/", "sandbar=stolen", "__Host-sandbar=stolen", "sandbar-preview=stolen; Path=/"]
    {
        headers.append(header::SET_COOKIE, cookie.parse().unwrap());
    }
    for (name, value) in [
        ("x-own", "kept"),
        ("content-security-policy", "default-src *"),
        ("access-control-allow-origin", "*"),
        ("clear-site-data", "\"*\""),
        ("x-accel-redirect", "/internal"),
        ("cache-control", "public, max-age=60"),
        ("location", "/v1/sandboxes/box"),
        ("connection", "x-hop"),
        ("x-hop", "of one connection"),
    ] {
        headers.insert(HeaderName::from_static(name), value.parse().unwrap());
    }
    response
}

struct Guard(Left);

impl Drop for Guard {
    fn drop(&mut self) {
        let _heard = self.0.send(());
    }
}

async fn endless(State(left): State<Left>) -> Response {
    let guard = Guard(left);
    let pieces = futures_util::stream::unfold(guard, async |guard| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"piece\n")), guard))
    });
    Body::from_stream(pieces).into_response()
}

async fn slow() -> &'static str {
    tokio::time::sleep(Duration::from_secs(60)).await;
    "at last"
}

/// Tells with each piece how much has come.
async fn count(body: Body) -> Response {
    let counted = body.into_data_stream().scan(0, |sum, piece| {
        *sum += piece.map_or(0, |piece| piece.len());
        std::future::ready(Some(Ok::<_, Infallible>(format!("{sum}\n"))))
    });
    Body::from_stream(counted).into_response()
}

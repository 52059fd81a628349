//! A server on TCP over the bench's engine, its callers, and the server inside.

use std::net::SocketAddr;

use axum::{
    body::{Body, to_bytes},
    http::{Request, header, response::Parts},
};
use hyper_util::rt::TokioIo;
use sandbar_api::{CreateToken, Role, SessionId};
use sandbar_server::{BindError, Options, Server};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::Mutex};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, client::IntoClientRequest as _},
};
use tokio_util::sync::CancellationToken;

use crate::{
    inward::inside::Inside,
    support::{Answer, Bench, broke_off},
};

pub(crate) struct House {
    pub(crate) bench: Bench,
    pub(crate) address: SocketAddr,
    pub(crate) port: u16,
    pub(crate) inside: Mutex<Inside>,
    /// Of the sandbox `box`.
    pub(crate) id: String,
    pub(crate) operator: String,
    closing: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// A server on TCP, one of several over the same engine.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    closing: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Listening {
    async fn new(bench: &Bench, name: &str) -> Result<Self, BindError> {
        let options = Options {
            tcp: Some("127.0.0.1:0".parse().unwrap()),
            tls: None,
            socket: bench.directory.path().join(format!("home/{name}.sock")),
            version: "test",
            preview_domain: None,
            shared: false,
        };
        let server = Server::bind(bench.engine.clone(), options).await?;
        let address = server.tcp_address().unwrap();
        let closing = CancellationToken::new();
        let serving = tokio::spawn(server.serve(closing.clone()));
        Ok(Self { address, closing, serving })
    }

    pub(crate) async fn close(self) {
        self.closing.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

pub(crate) type Socket = WebSocketStream<TcpStream>;

impl House {
    pub(crate) async fn new() -> Self {
        let bench = Bench::new().await;
        let Listening { address, closing, serving } = Listening::new(&bench, "second").await.unwrap();
        let inside = Inside::new().await;
        let id = bench.engine.get("box").await.unwrap().id.to_string();
        let port = inside.port;
        let operator = token(&bench, Role::Operator, None).await.0;
        Self { bench, address, port, inside: Mutex::new(inside), id, operator, closing, serving }
    }

    pub(crate) async fn token(&self, role: Role, session: Option<SessionId>) -> (String, String) {
        token(&self.bench, role, session).await
    }

    pub(crate) async fn another(&self) -> Result<Listening, BindError> {
        Listening::new(&self.bench, "third").await
    }

    /// As the API is called.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Where browsers sign in.
    pub(crate) fn sign_in(&self) -> String {
        format!("sandbar.localhost:{}", self.address.port())
    }

    /// The cookie of an admin's browser, as it sends it.
    pub(crate) async fn browser(&self) -> String {
        let origin = format!("http://{}", self.sign_in());
        let lasts = std::time::Duration::from_secs(3600);
        format!("sandbar={}", self.bench.engine.sign_browser_in(&origin, lasts).await.unwrap().secret)
    }

    /// As the preview of a port is.
    pub(crate) fn preview(&self, sandbox: &str, port: u16) -> String {
        format!("{sandbox}-{port}.localhost:{}", self.address.port())
    }

    pub(crate) async fn begin(
        &self,
        host: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (Parts, Body) {
        begin(self.address, host, method, path, headers, body.into()).await
    }

    /// To another server.
    pub(crate) async fn send_to(&self, to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let (head, body) = begin(to, &to.to_string(), method, path, headers, Body::empty()).await;
        Answer { status: head.status, headers: head.headers, body: to_bytes(body, usize::MAX).await.unwrap().to_vec() }
    }

    pub(crate) async fn send(
        &self,
        host: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let (head, body) = self.begin(host, method, path, headers, body).await;
        let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    }

    /// Through the router, as the operator, to the server inside.
    pub(crate) async fn routed(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let (bearer, port) = (self.bearer(), self.port.to_string());
        let mut headers =
            vec![("authorization", bearer.as_str()), ("x-sandbox-id", "box"), ("x-sandbox-port", port.as_str())];
        headers.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
        headers.extend(more);
        self.send(&self.host(), method, path, &headers, body).await
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.operator)
    }

    /// A link to the preview of a port, made with this token: its address and its code.
    pub(crate) async fn link(&self, token: &str, port: u16) -> (String, String) {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let body = json!({ "port": port }).to_string();
        let made = self.send(&self.host(), "POST", "/v1/sandboxes/box/previews", &headers, body).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let made: Value = serde_json::from_slice(&made.body).unwrap();
        let (url, code) = made["url"].as_str().unwrap().split_once("#code=").unwrap();
        (url.to_owned(), code.to_owned())
    }

    pub(crate) async fn enter(&self, host: &str, code: &str) -> Answer {
        let origin = format!("http://{host}");
        let headers = [("origin", origin.as_str()), ("content-type", "application/json")];
        self.send(host, "POST", "/.sandbar/enter", &headers, json!({ "code": code }).to_string()).await
    }

    /// The cookie of a browser that was let in, as it sends it.
    pub(crate) async fn cookie(&self, token: &str, port: u16) -> String {
        let (_, code) = self.link(token, port).await;
        let entered = self.enter(&self.preview(&self.id, port), &code).await;
        assert_eq!(entered.status, 204, "{}", entered.text());
        let cookie = entered.headers[header::SET_COOKIE].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    pub(crate) async fn websocket(
        &self,
        host: &str,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Socket, u16> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let mut request = format!("ws://{host}{path}").into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends the server under open connections.
    pub(crate) async fn close(self) {
        let bearer = self.bearer();
        let host = self.preview(&self.id, self.port);
        let authorization = [("authorization", bearer.as_str())];
        let (_, endless) = self.begin(&host, "GET", "/endless", &authorization, "").await;
        let mut socket = self.websocket(&host, "/ws", &authorization).await.unwrap();
        self.closing.cancel();
        let over = async {
            assert!(to_bytes(endless, usize::MAX).await.is_err(), "it is cut off, not ended");
            while let Some(Ok(_)) = futures_util::StreamExt::next(&mut socket).await {}
            self.serving.await.unwrap().unwrap();
        };
        tokio::time::timeout(std::time::Duration::from_secs(300), over).await.unwrap();
        assert!(!broke_off(), "the server waited for what does not end");
        for name in ["box", "small"] {
            self.bench.engine.delete(name).await.unwrap();
        }
        self.bench.closing.cancel();
        self.bench.serving.await.unwrap().unwrap();
        self.bench.engine.shutdown().await;
        assert!(self.bench.provider.guests.lock().unwrap().is_empty());
    }
}

async fn begin(
    to: SocketAddr,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> (Parts, Body) {
    let stream = TcpStream::connect(to).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (head, body) = sender.send_request(request.body(body).unwrap()).await.unwrap().into_parts();
    (head, Body::new(body))
}

/// Its secret and its id.
async fn token(bench: &Bench, role: Role, session: Option<SessionId>) -> (String, String) {
    let request = CreateToken { name: "test".to_owned(), role, session, ttl: None };
    let made = bench.engine.create_token(request).await.unwrap();
    (made.secret, made.token.id.to_string())
}

pub(crate) fn json_of(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{}: {}", answer.status, answer.text()))
}

/// What the server inside heard under this name.
pub(crate) fn heard(told: &Value, name: &str) -> Vec<String> {
    let pairs = told.as_array().unwrap();
    pairs.iter().filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned()).collect()
}

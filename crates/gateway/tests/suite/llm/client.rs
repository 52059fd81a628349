//! A client as an agent has one: a connection for each request, an answer whole or as it comes.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, task::JoinHandle};

pub(crate) const CHAT: &str = "/llm/openai/v1/chat/completions";
pub(crate) const RESPONSES: &str = "/llm/openai/v1/responses";
pub(crate) const EMBEDDINGS: &str = "/llm/openai/v1/embeddings";
pub(crate) const MESSAGES: &str = "/llm/anthropic/v1/messages";

pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Whole {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {:?}", self.body))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// What an error says.
    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// An answer that comes in pieces; dropped, the client has gone.
pub(crate) struct Coming {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Coming {
    /// The next piece; nothing at the end, an error if it was cut off.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        let frame = self.body.frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    pub(crate) async fn whole(mut self) -> Result<Whole, hyper::Error> {
        let mut body = Vec::new();
        while let Some(piece) = self.next().await {
            body.extend_from_slice(&piece?);
        }
        Ok(Whole { status: self.status, headers: self.headers.clone(), body: body.into() })
    }
}

pub(crate) async fn send(gate: SocketAddr, request: Request<Full<Bytes>>) -> Coming {
    try_send(gate, request).await.expect("an answer")
}

/// An answer may also break off before its head has left.
pub(crate) async fn try_send(gate: SocketAddr, request: Request<Full<Bytes>>) -> Result<Coming, hyper::Error> {
    let stream = TcpStream::connect(gate).await.expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    let connection = tokio::spawn(async move { drop(connection.await) });
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(Coming { status: head.status.as_u16(), headers: head.headers, body, connection })
}

pub(crate) fn request(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "gate")
        .header("content-type", "application/json")
        .header("authorization", "Bearer placeholder")
        .header("x-api-key", "placeholder")
        .body(Full::new(body.into()))
        .expect("a request")
}

pub(crate) async fn post(gate: SocketAddr, path: &str, body: &Value) -> Whole {
    send(gate, request(path, body.to_string())).await.whole().await.expect("a whole answer")
}

pub(crate) async fn open(gate: SocketAddr, path: &str, body: &Value) -> Coming {
    send(gate, request(path, body.to_string())).await
}

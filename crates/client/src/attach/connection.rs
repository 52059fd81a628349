//! One WebSocket to the server: asked for over HTTP, so that a refusal is a problem, and greeted by its first frame.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::{Method, Upgraded, header};
use sandbar_api::{Code, Control, Problem, TerminalFrame, TerminalSize};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};

use super::Standing;
use crate::{Client, Error, Result};

/// A server that takes longer to greet is asked again.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) type Socket = WebSocketStream<Upgraded>;

/// What stays the same from one connection to the next.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) client: Client,
    pub(super) sandbox: String,
    pub(super) process: String,
    pub(super) raw: bool,
    pub(super) writer: String,
}

pub(super) struct Greeting {
    pub(super) standing: Standing,
    /// How many bytes of this writer were taken before.
    pub(super) input: u64,
}

impl Request {
    pub(super) async fn open(
        &self,
        from: Option<u64>,
        control: Control,
        size: Option<TerminalSize>,
    ) -> Result<(Socket, Greeting)> {
        let opened = tokio::time::timeout(PATIENCE, self.connect(from, control, size)).await;
        opened.unwrap_or_else(|_| Err(self.broken("there is no answer")))
    }

    async fn connect(
        &self,
        from: Option<u64>,
        control: Control,
        size: Option<TerminalSize>,
    ) -> Result<(Socket, Greeting)> {
        let key = generate_key();
        let route = ["v1", "sandboxes", &self.sandbox, "processes", &self.process, "attach"];
        let mut request = self
            .client
            .request(Method::GET, &route)
            .query(&[("writer", &self.writer)])
            .query(&[("raw", self.raw)])
            .query(&[("control", control)])
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key);
        if let Some(from) = from {
            request = request.query(&[("from", from)]);
        }
        if let Some(size) = size {
            request = request.query(&[("cols", size.cols), ("rows", size.rows)]);
        }
        let response = self.client.send_once(request).await.map_err(|error| self.understood(error))?;
        let accepted = response.headers().get(header::SEC_WEBSOCKET_ACCEPT).map(header::HeaderValue::as_bytes);
        if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(self.client.foreign(response.status().as_u16(), "it is no WebSocket"));
        }
        let upgraded = response.upgrade().await.map_err(|error| self.client.transport(error))?;
        let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
        let greeting = self.greeting(socket.next().await)?;
        Ok((socket, greeting))
    }

    fn greeting(&self, first: Option<tungstenite::Result<Message>>) -> Result<Greeting> {
        match self.text(first)? {
            Some(TerminalFrame::Attached { size, control, controller, input, .. }) => {
                Ok(Greeting { standing: Standing { size, held: control, controller }, input })
            }
            Some(TerminalFrame::Error { problem }) => Err(Error::Problem(problem)),
            _ => Err(self.client.foreign(101, "its first frame is no `attached`")),
        }
    }

    fn text(&self, message: Option<tungstenite::Result<Message>>) -> Result<Option<TerminalFrame>> {
        match message {
            None | Some(Ok(Message::Close(_))) => Err(self.broken("it was closed")),
            Some(Err(error)) => Err(self.failed(error)),
            Some(Ok(Message::Text(text))) => self.frame(&text).map(Some),
            Some(Ok(_)) => Ok(None),
        }
    }

    pub(super) fn frame(&self, text: &str) -> Result<TerminalFrame> {
        serde_json::from_str(text).map_err(|error| self.client.foreign(101, error))
    }

    pub(super) fn failed(&self, error: tungstenite::Error) -> Error {
        match error {
            tungstenite::Error::Io(source) => Error::Broken { server: self.client.server().to_owned(), source },
            tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)
            | tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed => self.broken("it was closed"),
            error => self.client.foreign(101, error),
        }
    }

    pub(super) fn broken(&self, cause: &str) -> Error {
        Error::Broken { server: self.client.server().to_owned(), source: std::io::Error::other(cause.to_owned()) }
    }

    fn understood(&self, error: Error) -> Error {
        if error.code() != Some(Code::UnknownRoute) {
            return error;
        }
        let detail = format!("The server at {} is too old to attach to terminals.", self.client.server());
        Problem::new(Code::UnknownRoute, detail, "Restart it with the program of this version.").into()
    }
}

//! A session's tools over MCP's Streamable HTTP: a message goes in, messages come out. What they mean is the caller's
//! affair; here they get the headers that their revision of the protocol wants.

use std::collections::VecDeque;

use reqwest::{Method, RequestBuilder, Response, StatusCode, header};
use sandbar_api::bytes;
use serde_json::Value;

use crate::{Client, Error, Result, sse::Parser};

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
const BOTH: &str = "application/json, text/event-stream";
const STREAM: &str = "text/event-stream";
/// As much as one event of a stream may have.
const MAX_DOCUMENT: usize = 16 * 1024 * 1024;

/// An MCP session that `initialize` opened. A server that was restarted does not know it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSession {
    pub id: String,
    /// The revision that was agreed on.
    pub version: String,
}

/// What HTTP has to know of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpEra {
    /// Revisions with a handshake: the MCP session, once there is one.
    Handshake(Option<McpSession>),
    /// Revisions without: each message says all about itself, and what is said twice must agree.
    Stateless { version: String, method: String, name: Option<String> },
}

impl McpEra {
    /// `None` for a message of a revision with a handshake.
    pub fn stateless(message: &Value) -> Option<Self> {
        let (method, params) = (message.get("method")?.as_str()?, message.get("params")?);
        let version = params.get("_meta")?.get("io.modelcontextprotocol/protocolVersion")?.as_str()?;
        let name = match method {
            "tools/call" | "prompts/get" => params.get("name"),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => params.get("uri"),
            method if method.starts_with("tasks/") => params.get("taskId"),
            _ => None,
        };
        let name = name.and_then(Value::as_str).map(str::to_owned);
        Some(Self::Stateless { version: version.to_owned(), method: method.to_owned(), name })
    }

    fn dress(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::Handshake(None) => request,
            Self::Handshake(Some(session)) => session.dress(request),
            Self::Stateless { version, method, name } => {
                let request = request.header(VERSION, header_value(version)).header("mcp-method", header_value(method));
                match name {
                    Some(name) => request.header("mcp-name", header_value(name)),
                    None => request,
                }
            }
        }
    }

    fn has_session(&self) -> bool {
        matches!(self, Self::Handshake(Some(_)))
    }
}

impl McpSession {
    fn dress(&self, request: RequestBuilder) -> RequestBuilder {
        request.header(SESSION, &self.id).header(VERSION, header_value(&self.version))
    }
}

/// What no header can carry as it is travels as base64, and what looks like that too.
fn header_value(text: &str) -> String {
    let plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if plain && text.trim() == text && !text.starts_with("=?base64?") {
        return text.to_owned();
    }
    format!("=?base64?{}?=", bytes::encode(text.as_bytes()))
}

#[derive(Debug)]
pub enum McpReply {
    Answer(Box<McpAnswer>),
    /// The server does not know the MCP session (any more), and has done nothing.
    Lost,
}

/// The messages that answer one, as they come. Dropping it early hangs up, which cancels what a stateless message asked.
#[derive(Debug)]
pub struct McpAnswer {
    client: Client,
    /// The MCP session that this opened.
    opened: Option<String>,
    messages: VecDeque<String>,
    stream: Option<(Response, Parser)>,
}

impl McpAnswer {
    pub fn opened(&self) -> Option<&str> {
        self.opened.as_deref()
    }

    /// `None` when the server has said all; of a notification that is at once.
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(Some(message));
            }
            let Some((response, parser)) = &mut self.stream else { return Ok(None) };
            match response.chunk().await.map_err(|error| self.client.transport(error))? {
                Some(bytes) => parser.feed(&bytes).map_err(|error| self.client.foreign(200, error))?,
                None => self.stream = None,
            }
            if let Some((_, parser)) = &mut self.stream {
                let said = std::iter::from_fn(|| parser.next_frame()).map(|frame| frame.data);
                // Streams begin with an event that says nothing but its id.
                self.messages.extend(said.filter(|data| !data.is_empty()));
            }
        }
    }
}

impl Client {
    /// Waits for a server that is being restarted, but never sends twice what may have arrived.
    pub async fn mcp_send(&self, session: &str, message: &str, era: &McpEra) -> Result<McpReply> {
        let mut backoff = self.backoff();
        loop {
            let request = self.mcp(Method::POST, session).header(header::ACCEPT, BOTH);
            let request = era.dress(request.header(header::CONTENT_TYPE, "application/json"));
            match self.answer(request.body(message.to_owned())).await {
                Err(Error::Unreachable { server, source }) => {
                    if !self.wait(&mut backoff).await {
                        return Err(Error::Unreachable { server, source });
                    }
                }
                response => return self.mcp_reply(response?, era.has_session()).await,
            }
        }
    }

    /// What the server says unasked.
    pub async fn mcp_listen(&self, session: &str, opened: &McpSession) -> Result<McpReply> {
        let request = opened.dress(self.mcp(Method::GET, session)).header(header::ACCEPT, STREAM);
        self.mcp_reply(self.answer(request).await?, true).await
    }

    /// Calls that still run in it are cancelled.
    pub async fn mcp_close(&self, session: &str, opened: &McpSession) -> Result<()> {
        self.send_once(opened.dress(self.mcp(Method::DELETE, session))).await.map(drop)
    }

    fn mcp(&self, method: Method, session: &str) -> RequestBuilder {
        self.request(method, &["v1", "sessions", session, "mcp"])
    }

    async fn mcp_reply(&self, response: Response, has_session: bool) -> Result<McpReply> {
        let status = response.status();
        if has_session && status == StatusCode::NOT_FOUND {
            return Ok(McpReply::Lost);
        }
        let value = |name| response.headers().get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
        let kind = value(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        let is_stream = kind.starts_with(STREAM);
        let opened = value(SESSION).map(str::to_owned);
        let mut answer = McpAnswer { client: self.clone(), opened, messages: VecDeque::new(), stream: None };
        if !status.is_success() {
            // Refusals of the protocol are messages, all others problems.
            let body = self.short_body(response).await?;
            let Some(message) = message(&body) else { return Err(self.problem(status, &body)) };
            answer.messages.push_back(message);
        } else if is_stream {
            answer.stream = Some((response, Parser::new()));
        } else if status != StatusCode::ACCEPTED && status != StatusCode::NO_CONTENT {
            let body = self.document(response).await?;
            let message = message(&body).ok_or_else(|| self.foreign(status.as_u16(), "it is no message of MCP"))?;
            answer.messages.push_back(message);
        }
        Ok(McpReply::Answer(Box::new(answer)))
    }

    async fn document(&self, mut response: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.transport(error))? {
            if body.len() + chunk.len() > MAX_DOCUMENT {
                return Err(self.foreign(response.status().as_u16(), "the message is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

fn message(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    value.get("jsonrpc")?;
    String::from_utf8(body.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stateless(method: &str, mut params: Value) -> Option<(String, Option<String>)> {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
        match McpEra::stateless(&json!({"method": method, "params": params}))? {
            McpEra::Stateless { version, method, name } if version == "2026-07-28" => Some((method, name)),
            _ => None,
        }
    }

    #[test]
    fn a_message_without_a_handshake_says_what_it_is() {
        let named = |method: &str, params| stateless(method, params).and_then(|(_, name)| name);
        assert_eq!(named("tools/call", json!({"name": "exec"})).as_deref(), Some("exec"));
        assert_eq!(named("resources/read", json!({"uri": "file:///x", "name": "y"})).as_deref(), Some("file:///x"));
        assert_eq!(named("tasks/get", json!({"taskId": "t"})).as_deref(), Some("t"));
        assert_eq!(stateless("tools/list", json!({"name": "no"})), Some(("tools/list".into(), None)));
        for with_handshake in [json!({"method": "initialize", "params": {"protocolVersion": "2026-07-28"}}), json!([])]
        {
            assert_eq!(McpEra::stateless(&with_handshake), None);
        }
    }

    #[test]
    fn what_no_header_carries_is_wrapped() {
        for plain in ["exec", "a b", "x=?base64?"] {
            assert_eq!(header_value(plain), plain);
        }
        assert_eq!(header_value("grüß"), "=?base64?Z3LDvMOf?=");
        for wrapped in [" x", "x\t", "a\r\nb", "=?base64?eA==?=", "\u{7f}"] {
            assert!(header_value(wrapped).starts_with("=?base64?") && header_value(wrapped) != wrapped, "{wrapped:?}");
        }
    }
}

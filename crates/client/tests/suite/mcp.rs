//! Messages of MCP over the wire: the headers they get, the forms that answers come in, and an MCP session that is gone.

use std::path::Path;

use sandbar_api::Code;
use sandbar_client::{Client, Error, McpEra, McpReply, McpSession};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Answers one request with this, and returns the request's head.
async fn answer(socket: &Path, answer: &str) -> Outcome<String> {
    let _gone = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    let (mut stream, _) = listener.accept().await?;
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    // To hang up on what is unread would break the connection.
    if head.starts_with(b"POST") {
        stream.read_exact(&mut [0; 2]).await?;
    }
    stream.write_all(answer.as_bytes()).await?;
    Ok(String::from_utf8(head)?)
}

fn http(status: &str, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nmcp-session-id: opened\r\nconnection: close\r\n\r\n{body}")
}

struct Wire {
    _directory: tempfile::TempDir,
    client: Client,
    socket: std::path::PathBuf,
}

impl Wire {
    fn new() -> Outcome<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("s");
        Ok(Self { client: Client::unix(&socket)?, socket, _directory: directory })
    }

    /// What is asked, and what comes of this answer.
    async fn send(&self, era: &McpEra, said: &str) -> Outcome<(String, Result<McpReply, Error>)> {
        let (asked, reply) = tokio::join!(answer(&self.socket, said), self.client.mcp_send("a/b", "{}", era));
        Ok((asked?, reply))
    }
}

async fn messages(reply: Result<McpReply, Error>) -> Outcome<Vec<String>> {
    let McpReply::Answer(mut answer) = reply? else { return Err("lost".into()) };
    let mut said = vec![];
    while let Some(message) = answer.next().await? {
        said.push(message);
    }
    Ok(said)
}

#[tokio::test]
async fn each_era_has_its_headers() -> Outcome {
    let wire = Wire::new()?;
    let accepted = http("202 Accepted", "text/plain", "");
    let (asked, reply) = wire.send(&McpEra::Handshake(None), &accepted).await?;
    assert!(asked.starts_with("POST /v1/sessions/a%2Fb/mcp HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("accept: application/json, text/event-stream\r\n"), "{asked}");
    assert!(asked.contains("content-type: application/json\r\n") && !asked.contains("mcp-"), "{asked}");
    assert_eq!(messages(reply).await?, [""; 0]);

    let session = McpSession { id: "one".into(), version: "2025-06-18".into() };
    let (asked, _) = wire.send(&McpEra::Handshake(Some(session)), &accepted).await?;
    assert!(
        asked.contains("mcp-session-id: one\r\n") && asked.contains("mcp-protocol-version: 2025-06-18\r\n"),
        "{asked}"
    );

    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let call = json!({"method": "tools/call", "params": {"name": "grüß", "_meta": meta}});
    let (asked, _) = wire.send(&McpEra::stateless(&call).ok_or("not stateless")?, &accepted).await?;
    assert!(
        asked.contains("mcp-method: tools/call\r\n") && asked.contains("mcp-name: =?base64?Z3LDvMOf?=\r\n"),
        "{asked}"
    );
    assert!(asked.contains("mcp-protocol-version: 2026-07-28\r\n") && !asked.contains("mcp-session-id"), "{asked}");
    Ok(())
}

#[tokio::test]
async fn answers_come_as_documents_as_streams_and_as_refusals() -> Outcome {
    let wire = Wire::new()?;
    let era = McpEra::Handshake(None);
    let message = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let (_, reply) = wire.send(&era, &http("200 OK", "application/json", message)).await?;
    assert!(matches!(&reply, Ok(McpReply::Answer(answer)) if answer.opened() == Some("opened")));
    assert_eq!(messages(reply).await?, [message]);

    let stream = format!("id: 0\ndata:\n\n: alive\n\ndata: {{\"progress\":1}}\n\ndata: {message}\n\n");
    let (_, reply) = wire.send(&era, &http("200 OK", "text/event-stream", &stream)).await?;
    assert_eq!(messages(reply).await?, [r#"{"progress":1}"#, message]);

    let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#;
    let (_, reply) = wire.send(&era, &http("404 Not Found", "application/json", refused)).await?;
    assert_eq!(messages(reply).await?, [refused]);

    let problem = serde_json::to_string(&sandbar_api::Problem::new(Code::UnknownSession, "None.", "Make one."))?;
    let (_, reply) = wire.send(&era, &http("404 Not Found", "application/problem+json", &problem)).await?;
    assert!(matches!(&reply, Err(error) if error.code() == Some(Code::UnknownSession)), "{reply:?}");

    for foreign in [http("200 OK", "text/html", "<html>"), http("500 Oops", "text/plain", "oops")] {
        let (_, reply) = wire.send(&era, &foreign).await?;
        assert!(matches!(&reply, Err(Error::Foreign { .. })), "{reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_mcp_session_that_is_gone_is_told_apart() -> Outcome {
    let wire = Wire::new()?;
    let session = McpSession { id: "one".into(), version: "2025-06-18".into() };
    let gone = http("404 Not Found", "text/plain", "");
    let (_, reply) = wire.send(&McpEra::Handshake(Some(session.clone())), &gone).await?;
    assert!(matches!(reply, Ok(McpReply::Lost)), "{reply:?}");
    let (asked, reply) = tokio::join!(answer(&wire.socket, &gone), wire.client.mcp_listen("s", &session));
    let asked = asked?;
    assert!(asked.starts_with("GET ") && asked.contains("accept: text/event-stream\r\n"), "{asked}");
    assert!(matches!(reply, Ok(McpReply::Lost)), "{reply:?}");
    let closed = http("204 No Content", "text/plain", "");
    let (asked, reply) = tokio::join!(answer(&wire.socket, &closed), wire.client.mcp_close("s", &session));
    assert!(asked?.starts_with("DELETE /v1/sessions/s/mcp "));
    Ok(reply?)
}

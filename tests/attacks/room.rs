//! Conversations with their sandboxes and agents, and how one talks to their tools.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use sandbar_client::WorkspaceAsk;
use serde_json::{Value, json};

use crate::{
    attack::Finding,
    stage::{Stage, Target},
    support::Outcome,
    web::{JSON, ask, bearer, host},
};

pub(crate) const ONE: &[&str] = &["standard"];
/// A server inside that is always there.
pub(crate) const RUNTIMES: &str = "[runtimes.legacy]\n";
pub(crate) const SOON: Duration = Duration::from_secs(300);

/// A conversation with its sandbox, and the token that its agent has.
pub(crate) struct Room {
    pub(crate) session: String,
    pub(crate) sandbox: String,
    pub(crate) token: String,
}

impl Room {
    pub(crate) async fn open(stage: &Stage, target: &Target) -> Outcome<Self> {
        let config = format!("[default]\ntemplate = \"{}\"\n", target.template);
        fs::write(stage.server.home.path().join("workspaces.toml"), config)?;
        let ask = WorkspaceAsk { create: true, ..WorkspaceAsk::default() };
        let made = stage.client.workspace(&format!("room-{}", stage.number()), &ask).await?;
        let token = made.headers.get("Authorization").and_then(|value| value.strip_prefix("Bearer "));
        Ok(Self {
            session: made.session.to_string(),
            sandbox: made.sandbox_id.ok_or("no sandbox")?.to_string(),
            token: token.ok_or("no token")?.to_owned(),
        })
    }

    pub(crate) async fn close(self, stage: &Stage) -> Outcome {
        Ok(stage.client.delete_session(&self.session).await?)
    }

    /// A tool, without a handshake.
    pub(crate) fn call(
        &self,
        stage: &Stage,
        token: &str,
        tool: &str,
        arguments: Value,
        more: &[String],
    ) -> Outcome<(u16, String)> {
        self.tell(stage, token, "tools/call", json!({"name": tool, "arguments": arguments}), more)
    }

    pub(crate) fn tell(
        &self,
        stage: &Stage,
        token: &str,
        method: &str,
        mut params: Value,
        more: &[String],
    ) -> Outcome<(u16, String)> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut headers = self.headers(stage, token)?;
        headers.extend(["MCP-Protocol-Version: 2026-07-28".to_owned(), format!("Mcp-Method: {method}")]);
        if let Some(name) = params["name"].as_str() {
            headers.push(format!("Mcp-Name: {name}"));
        }
        headers.extend_from_slice(more);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        ask(stage, &format!("POST /v1/sessions/{}/mcp", self.session), &headers, &body)
    }

    pub(crate) fn headers(&self, stage: &Stage, token: &str) -> Outcome<Vec<String>> {
        let accept = "Accept: application/json, text/event-stream";
        Ok(vec![host(stage)?, bearer(token), JSON.to_owned(), accept.to_owned()])
    }

    /// An MCP session of a revision that has them.
    pub(crate) fn shake_hands(&self, stage: &Stage) -> Outcome<String> {
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
            {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}});
        let first = format!("POST /v1/sessions/{}/mcp", self.session);
        let head = head(stage, &first, &self.headers(stage, &self.token)?, &hello.to_string())?;
        let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        Ok(id.ok_or_else(|| format!("no MCP session: {head}"))?.to_owned())
    }
}

async fn two(stage: &Stage, target: &Target) -> Outcome<(Room, Room)> {
    Ok((Room::open(stage, target).await?, Room::open(stage, target).await?))
}

pub(crate) async fn with_two(
    stage: &Stage,
    target: &Target,
    try_it: impl AsyncFnOnce(&Room, &Room) -> Outcome<Finding>,
) -> Outcome<Finding> {
    let (own, other) = two(stage, target).await?;
    let found = try_it(&own, &other).await;
    own.close(stage).await?;
    other.close(stage).await?;
    found
}

pub(crate) fn open(stage: &Stage, first: &str, headers: &[String], body: &str) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(stage.address()?)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut text = format!("{first} HTTP/1.1\r\nConnection: close\r\n");
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    stream.write_all(format!("{text}\r\n{body}").as_bytes())?;
    Ok(stream)
}

/// The head alone: some answers have no end.
pub(crate) fn head(stage: &Stage, first: &str, headers: &[String], body: &str) -> Outcome<String> {
    let mut stream = open(stage, first, headers, body)?;
    let (mut heard, mut chunk) = (vec![], [0; 4096]);
    while !heard.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => break,
            count => heard.extend_from_slice(&chunk[..count]),
        }
    }
    let text = String::from_utf8_lossy(&heard).into_owned();
    Ok(text.split("\r\n\r\n").next().unwrap_or_default().to_owned())
}

pub(crate) fn status(head: &str) -> u16 {
    head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// All must be refused so; the first that was not is told.
pub(crate) fn refused(wanted: &[u16], tried: impl IntoIterator<Item = (String, u16)>) -> Finding {
    let (mut count, mut seen) = (0, BTreeSet::new());
    for (what, status) in tried {
        if !wanted.contains(&status) {
            return Finding::escaped(format!("{what}: {status}"));
        }
        count += 1;
        seen.insert(status);
    }
    Finding::contained(format!("{count} refused with {seen:?}"))
}

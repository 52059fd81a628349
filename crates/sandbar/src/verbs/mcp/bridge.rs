//! Between a client on standard input and output and a session's MCP endpoint. One loop owns everything: what the client
//! says is sent on in its order, requests then run beside each other, and a server that was restarted is introduced to
//! the client again without its noticing. Nothing that may have been done is ever sent twice.

use std::{collections::HashMap, time::Duration};

use sandbar_client::{McpEra, McpReply, McpSession};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::{
    Place,
    call::{Call, Fate, Wire, told},
    lines::{self, LONGEST},
    message::{self, CONNECTION_LOST, INVALID_REQUEST, Kind, Message},
};
use crate::print::Printer;

/// For the server to end an MCP session.
const FAREWELL: Duration = Duration::from_millis(500);
const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

pub(super) struct Bridge {
    wire: Wire,
    place: Place,
    print: Printer,
    /// What the client introduced itself with.
    hello: Option<Hello>,
    /// Whether it said that it is ready, so that a new server must hear that too.
    ready: bool,
    opened: Option<McpSession>,
    /// Counts how often an MCP session was opened.
    opening: u64,
    listener: Option<AbortHandle>,
    running: JoinSet<Fate>,
    /// By id.
    calls: HashMap<String, Running>,
    serial: u64,
}

#[derive(Clone)]
struct Hello {
    text: String,
    id: Value,
}

struct Running {
    serial: u64,
    stateless: bool,
    task: AbortHandle,
}

impl Bridge {
    pub(super) fn new(place: Place, out: mpsc::Sender<String>, print: Printer) -> Self {
        let wire = Wire { client: place.client.clone(), session: place.session.clone(), out, creates: place.create };
        Self {
            wire,
            place,
            print,
            hello: None,
            ready: false,
            opened: None,
            opening: 0,
            listener: None,
            running: JoinSet::new(),
            calls: HashMap::new(),
            serial: 0,
        }
    }

    /// Until the client has said all and heard everything.
    pub(super) async fn serve(&mut self, mut lines: mpsc::Receiver<lines::Line>) {
        loop {
            tokio::select! {
                line = lines.recv() => match line {
                    Some(line) => self.take(line).await,
                    None => break,
                },
                Some(fate) = self.running.join_next() => self.settle(fate.unwrap_or(Fate::Over)).await,
            }
        }
        while !self.calls.is_empty()
            && let Some(fate) = self.running.join_next().await
        {
            self.settle(fate.unwrap_or(Fate::Over)).await;
        }
    }

    /// Cancels what still runs: a command that nobody waits for is killed.
    pub(super) async fn leave(mut self) {
        self.running.shutdown().await;
        if let Some(opened) = self.opened.take() {
            let closed = timeout(FAREWELL, self.wire.client.mcp_close(&self.wire.session, &opened)).await;
            if !matches!(closed, Ok(Ok(()))) {
                self.print.warn("the server was not told that this client is gone");
            }
        }
    }

    async fn take(&mut self, line: lines::Line) {
        let parsed = match line {
            lines::Line::Message(line) => Message::parse(line),
            lines::Line::TooLong(line) => {
                let id = line.map_or(Value::Null, |line| message::id_of(&line));
                let why = format!("The message is longer than {LONGEST} bytes. Send less at a time.");
                Err(message::error(&id, INVALID_REQUEST, &why, None))
            }
        };
        let message = match parsed {
            Ok(message) => message,
            Err(error) => return self.wire.say(error).await,
        };
        match message.kind.clone() {
            Kind::Request { id, method } => self.request(message, id, &method).await,
            Kind::Notification { method } if method == "notifications/cancelled" => self.cancel(message).await,
            Kind::Notification { method } => {
                self.tell(&message).await;
                if method == "notifications/initialized" {
                    self.ready = true;
                    self.listen();
                }
            }
            Kind::Answer => self.tell(&message).await,
        }
    }

    async fn request(&mut self, message: Message, id: Value, method: &str) {
        self.serial += 1;
        let stateless = McpEra::stateless(&message.value);
        let handshake = stateless.is_none() && method == "initialize";
        let era = stateless.unwrap_or(McpEra::Handshake(None));
        let call = Call { message, id, serial: self.serial, opening: self.opening, era, again: false };
        // What comes after it needs its outcome.
        if handshake { self.introduce(call).await } else { self.start(call) }
    }

    fn start(&mut self, mut call: Call) {
        let stateless = matches!(call.era, McpEra::Stateless { .. });
        if !stateless {
            call.era = McpEra::Handshake(self.opened.clone());
        }
        call.opening = self.opening;
        let (key, serial) = (call.id.to_string(), call.serial);
        let task = self.running.spawn(self.wire.clone().carry(call));
        self.calls.insert(key, Running { serial, stateless, task });
    }

    async fn settle(&mut self, fate: Fate) {
        match fate {
            Fate::Over => {}
            Fate::Answered(call) => self.forget(&call),
            Fate::Deaf(opening) => {
                if opening == self.opening
                    && let Err(why) = self.reintroduce(&Value::Null).await
                {
                    self.print.warn(format!("the server does not know this client any more: {why}"));
                }
            }
            Fate::Lost(mut call) => {
                self.forget(&call);
                if call.again {
                    return self.wire.say(forgot(&call.id)).await;
                }
                call.again = true;
                // Several are lost at once when a server is restarted; the first restores for all.
                let restored = if call.opening == self.opening { self.restore(&call.id).await } else { Ok(()) };
                match restored {
                    Ok(()) => self.start(call),
                    Err(error) => self.wire.say(error).await,
                }
            }
        }
    }

    fn forget(&mut self, call: &Call) {
        let key = call.id.to_string();
        if self.calls.get(&key).is_some_and(|running| running.serial == call.serial) {
            self.calls.remove(&key);
        }
    }

    /// Notifications and answers have no answer of their own.
    async fn tell(&mut self, message: &Message) {
        let era = || McpEra::stateless(&message.value).unwrap_or(McpEra::Handshake(self.opened.clone()));
        let mut sent = self.wire.client.mcp_send(&self.wire.session, &message.text, &era()).await;
        if matches!(sent, Ok(McpReply::Lost)) && self.restore(&Value::Null).await.is_ok() {
            let era = McpEra::Handshake(self.opened.clone());
            sent = self.wire.client.mcp_send(&self.wire.session, &message.text, &era).await;
        }
        match sent {
            Ok(McpReply::Answer(_)) => {}
            Ok(McpReply::Lost) => self.print.warn("the server does not know this client; a notification was lost"),
            Err(error) => self.print.warn(format!("a notification was lost: {}", crate::exit::chain(&error))),
        }
    }

    async fn cancel(&mut self, message: Message) {
        let key = message.value.pointer("/params/requestId").map(Value::to_string).unwrap_or_default();
        // It is not answered any more; where there is no handshake, to hang up is also how it is said.
        let stateless = self.calls.remove(&key).map(|running| {
            running.task.abort();
            running.stateless
        });
        if stateless != Some(true) && self.opened.is_some() {
            self.tell(&message).await;
        }
    }

    async fn introduce(&mut self, call: Call) {
        if let Some(before) = self.opened.take() {
            self.silence();
            let _unknown_by_now = self.wire.client.mcp_close(&self.wire.session, &before).await;
        }
        self.ready = false;
        let reply = self.wire.client.mcp_send(&self.wire.session, &call.message.text, &McpEra::Handshake(None)).await;
        match reply {
            Ok(McpReply::Answer(answer)) => {
                let id = answer.opened().map(str::to_owned);
                match self.wire.pass_on(*answer, &call.id).await {
                    Ok(text) => self.open(id, &text),
                    Err(error) => self.wire.say(error).await,
                }
                self.hello = Some(Hello { text: call.message.text, id: call.id });
            }
            Ok(McpReply::Lost) => self.wire.say(forgot(&call.id)).await,
            Err(error) => self.wire.say(told(&call.id, error)).await,
        }
    }

    fn open(&mut self, id: Option<String>, answer: &str) {
        let version = agreed(answer);
        self.opening += 1;
        self.opened = id.zip(version).map(|(id, version)| McpSession { id, version });
    }

    /// Whatever a request needs is there again; or the error to answer it with.
    async fn restore(&mut self, id: &Value) -> Result<(), String> {
        self.place.prepare().await.map_err(|error| told(id, error))?;
        self.reintroduce(id).await
    }

    /// To a server that was restarted. A session that somebody deleted stays so until it is needed.
    async fn reintroduce(&mut self, id: &Value) -> Result<(), String> {
        let Some((before, hello)) = self.opened.clone().zip(self.hello.clone()) else { return Ok(()) };
        self.silence();
        let Wire { client, session, .. } = self.wire.clone();
        let mut answer = match client.mcp_send(&session, &hello.text, &McpEra::Handshake(None)).await {
            Ok(McpReply::Answer(answer)) => answer,
            Ok(McpReply::Lost) => return Err(forgot(id)),
            Err(error) => return Err(told(id, error)),
        };
        let opened = answer.opened().map(str::to_owned);
        let mut said = None;
        while said.is_none()
            && let Some(text) = answer.next().await.map_err(|error| told(id, error))?
        {
            said = message::answers(&text, &hello.id).then_some(text);
        }
        let said = said.unwrap_or_default();
        let version = agreed(&said);
        if version.as_deref() != Some(&before.version) {
            let why = "The server was restarted and no longer speaks the same revision of MCP. Restart this client.";
            return Err(message::error(id, CONNECTION_LOST, why, None));
        }
        self.open(opened, &said);
        if self.ready {
            let era = McpEra::Handshake(self.opened.clone());
            client.mcp_send(&session, INITIALIZED, &era).await.map_err(|error| told(id, error))?;
            self.listen();
            // Another server may have other tools, and does not know which ones this client has heard of.
            if said.contains(r#""listChanged":true"#) {
                self.wire.say(LIST_CHANGED.to_owned()).await;
            }
        }
        Ok(())
    }

    fn listen(&mut self) {
        self.silence();
        if let Some(opened) = self.opened.clone() {
            self.listener = Some(self.running.spawn(self.wire.clone().listen(opened, self.opening)));
        }
    }

    fn silence(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.abort();
        }
    }
}

fn forgot(id: &Value) -> String {
    message::error(id, CONNECTION_LOST, "The server forgets this client again and again. Look into its log.", None)
}

/// The revision that an answer to `initialize` names.
fn agreed(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    Some(answer.pointer("/result/protocolVersion")?.as_str()?.to_owned())
}

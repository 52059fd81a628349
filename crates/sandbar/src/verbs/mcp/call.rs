//! One request on its way: what the server says to it goes out as it comes, and when it can say no more we say why.

use sandbar_api::Code;
use sandbar_client::{Client, Error, McpAnswer, McpEra, McpReply, McpSession};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Duration, sleep},
};

use super::message::{self, CONNECTION_LOST, INTERNAL_ERROR, Message};
use crate::exit::{Failure, chain};

/// Between two attempts to hear what the server says unasked.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// The session's endpoint, and the way to standard output.
#[derive(Clone)]
pub(super) struct Wire {
    pub client: Client,
    pub session: String,
    pub out: mpsc::Sender<String>,
    /// A session that is gone is made anew.
    pub creates: bool,
}

#[derive(Debug)]
pub(super) struct Call {
    pub message: Message,
    pub id: Value,
    /// Tells calls with the same id apart.
    pub serial: u64,
    /// Which opening of the MCP session it belongs to.
    pub opening: u64,
    pub era: McpEra,
    /// It has been sent before, to a server that did nothing with it.
    pub again: bool,
}

/// How something that ran beside the others ended.
#[derive(Debug)]
pub(super) enum Fate {
    Answered(Call),
    /// Nothing was done: what it was sent to is not there any more.
    Lost(Call),
    /// The stream of what the server says unasked, of this opening, found its MCP session gone.
    Deaf(u64),
    Over,
}

impl Wire {
    pub(super) async fn say(&self, text: String) {
        // Fails when nobody reads, which the writer has told already.
        let _ = self.out.send(text).await;
    }

    pub(super) async fn carry(self, call: Call) -> Fate {
        match self.client.mcp_send(&self.session, &call.message.text, &call.era).await {
            Ok(McpReply::Lost) => Fate::Lost(call),
            Ok(McpReply::Answer(answer)) => {
                if let Err(text) = self.pass_on(*answer, &call.id).await {
                    self.say(text).await;
                }
                Fate::Answered(call)
            }
            Err(error) if self.creates && is_gone(&error) && !call.again => Fate::Lost(call),
            Err(error) => {
                self.say(told(&call.id, error)).await;
                Fate::Answered(call)
            }
        }
    }

    /// Until its answer has come; or the error to answer with.
    pub(super) async fn pass_on(&self, mut answer: McpAnswer, id: &Value) -> Result<String, String> {
        loop {
            match answer.next().await {
                Ok(Some(text)) if message::answers(&text, id) => {
                    let text = message::addressed(text, id);
                    self.say(text.clone()).await;
                    return Ok(text);
                }
                Ok(Some(text)) => self.say(text).await,
                Ok(None) => return Err(broke(id, "the server ended it")),
                Err(error) => return Err(broke(id, &chain(&error))),
            }
        }
    }

    /// What the server says unasked, for as long as it knows the MCP session.
    pub(super) async fn listen(self, opened: McpSession, opening: u64) -> Fate {
        loop {
            match self.client.mcp_listen(&self.session, &opened).await {
                Ok(McpReply::Lost) => {
                    // A server that forgets at once is not asked without end.
                    sleep(LISTEN_AGAIN).await;
                    return Fate::Deaf(opening);
                }
                Ok(McpReply::Answer(mut answer)) => {
                    while let Ok(Some(text)) = answer.next().await {
                        self.say(text).await;
                    }
                }
                Err(Error::Unreachable { .. } | Error::Transport { .. }) => {}
                // It has nothing to say, or not to us.
                Err(_) => return Fate::Over,
            }
            sleep(LISTEN_AGAIN).await;
        }
    }
}

/// The session itself, and not just a file in it.
fn is_gone(error: &Error) -> bool {
    matches!(error.code(), Some(Code::UnknownSession | Code::SessionEnded))
}

/// A refusal, or no server.
pub(super) fn told(id: &Value, error: Error) -> String {
    let (code, data) = match &error {
        Error::Problem(problem) => (INTERNAL_ERROR, serde_json::to_value(problem).ok()),
        Error::Transport { .. } => return broke(id, &chain(&error)),
        Error::Unreachable { .. } => (CONNECTION_LOST, None),
        _ => (INTERNAL_ERROR, None),
    };
    let text = match Failure::from(error) {
        Failure::Told { what, fix, .. } => format!("{}. {}", what.trim_end_matches('.'), fix.unwrap_or_default()),
        Failure::Quiet(_) => String::new(),
    };
    message::error(id, code, text.trim_end(), data)
}

/// Never repeated: it may have been done.
fn broke(id: &Value, why: &str) -> String {
    let why = why.trim_end_matches('.');
    let text = format!(
        "The connection was lost before the answer came ({why}). Whether the request was carried out is not known: look before you repeat it."
    );
    message::error(id, CONNECTION_LOST, &text, None)
}

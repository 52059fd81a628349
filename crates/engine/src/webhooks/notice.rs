//! What is told: made of an event, field by field, so that nothing gets out because somebody added it to an event.
//!
//! No answer's text, no screen, no command, no environment, no path of a request. A terminal's question and the labels of its
//! choices are what the program printed.

use chrono::{DateTime, Utc};
use sandbar_api::{Approval, ApprovalId, ApprovalKind, Choice, Event, SandboxId};
use serde::Serialize;
use serde_json::Value;

use crate::store::{self, Store};

/// Of a question, in letters.
const LONGEST_QUESTION: usize = 400;
const LONGEST_LABEL: usize = 200;
/// Of a word that this server chose.
const LONGEST_WORD: usize = 64;
pub(super) const TEST: &str = "webhook.test";

/// The payload, shaped as Standard Webhooks recommends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Notice {
    /// The same for the same event and the same receiver, however often it is sent.
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// When it happened, not when it is told.
    #[serde(rename = "timestamp")]
    pub(crate) at: DateTime<Utc>,
    #[serde(rename = "data")]
    pub(crate) about: About,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct About {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<String>,
    /// Of a crash loop: how many in a row ended too soon, and the exit status of the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approval: Option<Asked>,
}

/// An approval as people outside need it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Asked {
    id: String,
    kind: String,
    /// As of the event.
    state: String,
    question: String,
    choices: Vec<Choice>,
    takes_text: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_deadline: Option<String>,
    context: Value,
    /// Who answered, and what: the id of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<String>,
    /// Why it was withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Notice {
    /// `id` without the event's number. What the store still knows is added to what the event says.
    pub(super) async fn of(event: &Event, id: &str, store: &dyn Store) -> store::Result<Self> {
        let text = |name: &str| event.data[name].as_str();
        let sandbox_id = event.sandbox.as_deref().and_then(|id| id.parse::<SandboxId>().ok());
        let sandbox = match &sandbox_id {
            Some(id) => store.sandbox(id).await?.map(|row| row.sandbox),
            None => None,
        };
        let approval = match text("approval").filter(|_| event.kind.starts_with("approval.")) {
            Some(id) => {
                let known = match id.parse::<ApprovalId>() {
                    Ok(id) => store.approval(&id).await?,
                    Err(_) => None,
                };
                Some(Asked::of(event, known.as_ref(), sandbox.as_ref().map(|sandbox| sandbox.name.as_str())))
            }
            None => None,
        };
        let session = text("session").map(word).or_else(|| sandbox.map(|sandbox| sandbox.session.into()));
        let about = About {
            session,
            sandbox: event.sandbox.clone(),
            process: event.process.clone(),
            runs: event.data["runs"].as_u64(),
            exit_code: event.data["exit"]["code"].as_i64(),
            approval,
        };
        Ok(Self { id: format!("{id}_{}", event.seq), kind: event.kind.clone(), at: event.at, about })
    }

    pub(super) fn test(id: String, at: DateTime<Utc>) -> Self {
        Self { id, kind: TEST.into(), at, about: About::default() }
    }
}

impl Asked {
    fn of(event: &Event, known: Option<&Approval>, sandbox: Option<&str>) -> Self {
        let text = |name: &str| event.data[name].as_str().unwrap_or_default();
        let some = |name: &str| Some(word(text(name))).filter(|word| !word.is_empty());
        let state = match event.kind.as_str() {
            "approval.opened" => "open",
            "approval.withdrawn" => "withdrawn",
            "approval.expired" => "expired",
            _ => "answered",
        };
        let (context, shown) = (&event.data["context"], text("question"));
        let is_network = text("kind") == ApprovalKind::Network.as_str();
        let (question, context) = if is_network {
            (network_question(context, shown, sandbox), only(context, &["host", "port"]))
        } else {
            (shown.to_owned(), only(context, &["process", "prompt"]))
        };
        let label = |choice: &Choice| Choice::new(word(&choice.id), cut(&choice.label, LONGEST_LABEL));
        let is_answer = state == "answered";
        Self {
            id: word(text("approval")),
            kind: word(text("kind")),
            state: state.into(),
            question: cut(&question, LONGEST_QUESTION),
            choices: known.map(|known| known.choices.iter().map(label).collect()).unwrap_or_default(),
            takes_text: known.is_some_and(|known| known.takes_text),
            deadline: known.map(|known| known.deadline),
            on_deadline: known.map(|known| word(&known.on_deadline)),
            context,
            answered_by: some("by").filter(|_| is_answer),
            choice: some("choice").filter(|_| is_answer),
            reason: some("reason").filter(|_| state == "withdrawn"),
        }
    }
}

/// The path of a request may be a credential; who is asked to decide about one looks at the approval itself.
fn network_question(context: &Value, shown: &str, sandbox: Option<&str>) -> String {
    if context.get("path").is_none() && context.get("method").is_none() {
        return shown.to_owned();
    }
    let who = sandbox.map_or_else(|| "a sandbox".to_owned(), |name| format!("\"{name}\""));
    let host = context["host"].as_str().unwrap_or("a host");
    let port = context["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    format!("Allow {who} to send a request to {host}{port}?")
}

/// These fields alone, if they are plain.
fn only(context: &Value, names: &[&str]) -> Value {
    let plain = |name: &&str| match &context[*name] {
        Value::String(text) => Some(((*name).to_owned(), cut(text, LONGEST_QUESTION).into())),
        Value::Number(number) => Some(((*name).to_owned(), Value::Number(number.clone()))),
        _ => None,
    };
    Value::Object(names.iter().filter_map(plain).collect())
}

fn word(text: &str) -> String {
    cut(text, LONGEST_WORD)
}

/// At most so many letters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests;

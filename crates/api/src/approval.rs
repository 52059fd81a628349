//! Approvals: questions to a person. Durable, expiring, answered exactly once, never by an agent.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{ApprovalId, Role, SandboxId, SessionId};

/// Bytes of an answer's text.
pub const MAX_TEXT: usize = 64 * 1024;

/// What kind of thing asks. Kinds are only ever added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApprovalKind {
    /// A connection to a host that a rule says to ask about.
    Network,
    /// A program in a terminal waits for somebody to type.
    Terminal,
}

impl ApprovalKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Terminal => "terminal",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    Open,
    Answered,
    /// Nobody answered before the deadline; `on_deadline` happened.
    Expired,
    /// What asked is gone.
    Withdrawn,
}

impl ApprovalState {
    pub const ALL: [Self; 4] = [Self::Open, Self::Answered, Self::Expired, Self::Withdrawn];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Answered => "answered",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl std::str::FromStr for ApprovalState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| format!("`{text}` is not a state"))
    }
}

/// One of the answers that can be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Choice {
    /// For programs: `once`, `sandbox`, `deny`, …
    #[schema(example = "once")]
    pub id: String,
    /// For people.
    pub label: String,
}

impl Choice {
    pub fn new(id: impl Into<String>, label: impl Into<String>) -> Self {
        Self { id: id.into(), label: label.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ApprovalAnswer {
    /// The id of a choice.
    pub choice: String,
    /// What was typed, where the question takes text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Text was given to a question for something secret: it was typed, and is kept nowhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
    /// Who gave it: `socket` or `token:<id>`.
    pub by: String,
    pub at: DateTime<Utc>,
}

/// What became of an answer that had to be typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// It counts, and is being typed.
    Pending,
    Typed,
    /// It was not typed: the terminal had moved on, or its program had ended.
    Refused,
}

impl Delivery {
    pub const ALL: [Self; 3] = [Self::Pending, Self::Typed, Self::Refused];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Typed => "typed",
            Self::Refused => "refused",
        }
    }
}

impl std::str::FromStr for Delivery {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|one| one.as_str() == text).ok_or_else(|| format!("`{text}` is no delivery"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Approval {
    pub id: ApprovalId,
    pub kind: ApprovalKind,
    pub state: ApprovalState,
    pub session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// One sentence, for people.
    pub question: String,
    pub choices: Vec<Choice>,
    /// Whether an answer may carry text.
    #[serde(default)]
    pub takes_text: bool,
    /// What it is about, by kind: for `network` `host`, `port`, `method`, `path` and `rule`; for `terminal` `process`,
    /// `command`, `prompt` (`yes_no`, `menu`, `permission`, `press_enter`, `press_key`, `password`, `text`), `screen` (its
    /// last lines), `keys` (what each choice types; events have neither these two), and `output` and `input`, the offsets it
    /// was seen at: as long as it stands unchanged, those of the last time.
    pub context: serde_json::Value,
    /// The least role that may answer; an agent never may.
    pub answerable_by: Role,
    pub created_at: DateTime<Utc>,
    pub deadline: DateTime<Utc>,
    /// The choice that counts when nobody answers in time; `none`, which is no choice, where nothing happens then.
    pub on_deadline: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<ApprovalAnswer>,
    /// Of kind `terminal`, once answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Why it was withdrawn: `sandbox_gone`, `process_ended`, `moved_on`, `typed_over`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it stopped being open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ApprovalList {
    /// Newest last.
    pub approvals: Vec<Approval>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"choice": "once"}))]
pub struct AnswerApproval {
    /// The id of one of its choices.
    pub choice: String,
    /// With the choice `text`: one line, typed with Enter behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl fmt::Debug for AnswerApproval {
    /// Without the text, which may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerApproval").field("choice", &self.choice).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_does_not_show_its_text() {
        let answer = AnswerApproval { choice: "text".into(), text: Some("hunter2".into()) };
        assert!(!format!("{answer:?}").contains("hunter2"));
    }
}

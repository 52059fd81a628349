//! Webhooks: where somebody outside is told of events, signed and at least once.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{Code, Problem, WebhookId, check};

pub const MAX_WEBHOOKS: u32 = 64;
pub const MAX_KINDS: usize = 32;
const LONGEST_KIND: usize = 64;

/// What is told of when nobody says: who waits for a person, how that ended, and what keeps dying.
pub const DEFAULT_KINDS: [&str; 5] =
    ["approval.opened", "approval.answered", "approval.withdrawn", "approval.expired", "process.crash_loop"];

/// Like a sandbox's, and never mistaken for a webhook's id.
pub fn check_name(text: &str) -> Result<(), Problem> {
    if check::name(text).is_ok() && !text.starts_with(WebhookId::PREFIX) {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("`{}` cannot be the name of a webhook.", text.escape_debug()),
        "Use 1 to 63 of a-z, 0-9 and `-`, not starting or ending with `-`, not starting with `sbx-` or `whk-`.",
    ))
}

/// Each a type of events (`approval.opened`), or all that begin with it (`approval.`).
pub fn check_kinds(kinds: &[String]) -> Result<(), Problem> {
    if kinds.len() > MAX_KINDS {
        return Err(Problem::new(
            Code::BadWebhook,
            format!("{} kinds of events are too many.", kinds.len()),
            format!("Name at most {MAX_KINDS}; `approval.` stands for all that begin with it."),
        ));
    }
    let word = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let good = |kind: &str| {
        let (first, rest) = kind.split_once('.').unwrap_or_default();
        kind.len() <= LONGEST_KIND && !first.is_empty() && word(first) && word(rest)
    };
    match kinds.iter().find(|kind| !good(kind)) {
        None => Ok(()),
        Some(bad) => Err(Problem::new(
            Code::BadWebhook,
            format!("`{}` is not a kind of events.", bad.escape_debug()),
            "Write it like `approval.opened`, or `approval.` for all that begin with it; `sandbar events` shows them.",
        )),
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://hooks.example.org/sandbar", "kinds": ["approval.", "process.crash_loop"]}))]
pub struct CreateWebhook {
    /// Where to POST: https, or http to an address that the operator lists as private.
    pub url: String,
    /// Made up when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Types of events, or beginnings of them that end in a dot. Empty: those of approvals, and crash loops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}

/// Without the URL: some have a credential in their path.
impl fmt::Debug for CreateWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateWebhook").field("name", &self.name).field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// What was tried last went through, or nothing was tried yet.
    Ok,
    /// What was tried last did not go through, and is tried again.
    Failing,
    /// Its target answered 410 Gone: nothing is sent any more.
    Disabled,
}

impl WebhookState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failing => "failing",
            Self::Disabled => "disabled",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Webhook {
    pub id: WebhookId,
    pub name: String,
    pub url: String,
    pub kinds: Vec<String>,
    pub state: WebhookState,
    pub created_at: DateTime<Utc>,
    /// When something last went through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<DateTime<Utc>>,
    /// Since when nothing went through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<DateTime<Utc>>,
    /// How often the notice whose turn it is was tried.
    #[serde(default)]
    pub attempts: u32,
    /// Why the last attempt did not go through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Without the URL: some have a credential in their path.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("kinds", &self.kinds)
            .field("state", &self.state)
            .field("delivered_at", &self.delivered_at)
            .field("failing_since", &self.failing_since)
            .field("attempts", &self.attempts)
            .field("last_error", &self.last_error)
            .finish_non_exhaustive()
    }
}

/// The only time the signing secret is shown: it is stored encrypted.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NewWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// `whsec_` and base64 of 32 bytes, as Standard Webhooks has it.
    pub secret: String,
}

impl fmt::Debug for NewWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewWebhook").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WebhookList {
    /// Newest last.
    pub webhooks: Vec<Webhook>,
}

/// What became of a notice of type `webhook.test`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WebhookTest {
    pub delivered: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_types_or_beginnings_of_them() {
        let check = |kind: &str| check_kinds(&[kind.to_owned()]);
        for good in DEFAULT_KINDS.into_iter().chain(["approval.", "process.", "net.log_lost"]) {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "approval", "*", "Approval.opened", "a.b.c", ".opened", "a. b", "a.\u{1b}"] {
            assert_eq!(check(bad).map_err(|problem| problem.code), Err(Code::BadWebhook), "{bad}");
        }
        assert!(check(&format!("a.{}", "b".repeat(63))).is_err());
        assert!(check_kinds(&vec!["a.b".to_owned(); MAX_KINDS + 1]).is_err());
    }

    #[test]
    fn a_name_is_no_id() {
        assert!(check_name("pager").is_ok() && check_name("whk-pager").is_err() && check_name("Pager").is_err());
    }
}

//! Ids and secrets: the one place that takes randomness and the clock.

use chrono::{DateTime, Utc};
use sandbar_api::{
    ApprovalId, Code, InstanceId, Problem, ProcessId, SandboxId, SessionId, SnapshotId, TokenId, WebhookId,
};

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "the kernel gave no random bytes");
        Problem::new(Code::Internal, "The host gave no random bytes.", "Look at the server's log.")
    })?;
    Ok(bytes)
}

/// Times before 1970 do not happen on a host that runs us; they sort first.
fn millis(at: DateTime<Utc>) -> u64 {
    u64::try_from(at.timestamp_millis()).unwrap_or(0)
}

pub(crate) fn sandbox(at: DateTime<Utc>) -> Result<SandboxId, Problem> {
    Ok(SandboxId::from_parts(millis(at), random()?))
}

pub(crate) fn session(at: DateTime<Utc>) -> Result<SessionId, Problem> {
    Ok(SessionId::from_parts(millis(at), random()?))
}

pub(crate) fn process(at: DateTime<Utc>) -> Result<ProcessId, Problem> {
    Ok(ProcessId::from_parts(millis(at), random()?))
}

pub(crate) fn snapshot(at: DateTime<Utc>) -> Result<SnapshotId, Problem> {
    Ok(SnapshotId::from_parts(millis(at), random()?))
}

pub(crate) fn token(at: DateTime<Utc>) -> Result<TokenId, Problem> {
    Ok(TokenId::from_parts(millis(at), random()?))
}

/// Of an LLM call.
pub(crate) fn call(at: DateTime<Utc>) -> Result<String, Problem> {
    let session = session(at)?;
    Ok(format!("llm-{}", session.as_str().trim_start_matches(SessionId::PREFIX)))
}

pub(crate) fn approval(at: DateTime<Utc>) -> Result<ApprovalId, Problem> {
    Ok(ApprovalId::from_parts(millis(at), random()?))
}

pub(crate) fn webhook(at: DateTime<Utc>) -> Result<WebhookId, Problem> {
    Ok(WebhookId::from_parts(millis(at), random()?))
}

pub(crate) fn instance(at: DateTime<Utc>) -> Result<InstanceId, Problem> {
    Ok(InstanceId::from_parts(millis(at), random()?))
}

/// The made-up name of a sandbox that was given none: the random end of its id, 40 bits.
pub(crate) fn default_name(id: &SandboxId) -> String {
    let id = id.as_str();
    format!("sb-{}", &id[id.len() - 8..])
}

/// Likewise of a snapshot.
pub(crate) fn default_snapshot_name(id: &SnapshotId) -> String {
    let id = id.as_str();
    format!("snap-{}", &id[id.len() - 8..])
}

/// Likewise of a webhook.
pub(crate) fn default_webhook_name(id: &WebhookId) -> String {
    let id = id.as_str();
    format!("hook-{}", &id[id.len() - 8..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_names_are_names() {
        let id = sandbox(Utc::now()).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(sandbar_api::check::name(&default_name(&id)), Ok(()));
    }
}

//! Errors on the wire: RFC 9457 problem documents with a stable code, a sentence and the fix.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $text:literal $status:literal $title:literal)*) => {
        /// What went wrong, for programs. Codes are never renamed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
            /// A code of a newer server.
            #[serde(other, rename = "unknown")]
            Unknown,
        }
        impl Code {
            pub const ALL: &[Code] = &[$(Code::$name),*];
            pub fn as_str(self) -> &'static str { match self { $(Code::$name => $text,)* Code::Unknown => "unknown" } }
            pub fn status(self) -> u16 { match self { $(Code::$name => $status,)* Code::Unknown => 500 } }
            pub fn title(self) -> &'static str { match self { $(Code::$name => $title,)* Code::Unknown => "Unknown problem" } }
        }
    };
}

codes! {
    BadRequest "bad_request" 400 "The request is malformed"
    BadJson "bad_json" 400 "The body is not the JSON that was expected"
    BadName "bad_name" 400 "The name is not usable"
    BadLabel "bad_label" 400 "The label is not usable"
    BadEnv "bad_env" 400 "The environment variable is not usable"
    BadCommand "bad_command" 400 "The command is not usable"
    BadPath "bad_path" 400 "The path is not usable"
    BadDuration "bad_duration" 400 "The duration is not usable"
    BadCursor "bad_cursor" 400 "The cursor is not one of ours"
    BadArchive "bad_archive" 400 "The archive cannot be unpacked"
    BadLimit "bad_limit" 400 "The limit is not usable"
    BadTemplate "bad_template" 400 "The template is not usable"
    BadRule "bad_rule" 400 "The rule is not usable"
    BadSecret "bad_secret" 400 "The secret is not usable"
    BadBudget "bad_budget" 400 "The budget is not usable"
    BadAnswer "bad_answer" 400 "The answer is none of the choices"
    BadWebhook "bad_webhook" 400 "The webhook is not usable"
    BadGatewayConfig "bad_gateway_config" 400 "The gateway's configuration is not usable"
    BadWorkspaceConfig "bad_workspace_config" 400 "The configuration of workspaces is not usable"
    PathOutside "path_outside" 400 "The path leads outside the sandbox"
    Unauthenticated "unauthenticated" 401 "A token is needed"
    Forbidden "forbidden" 403 "The token's role does not allow this"
    ForeignHost "foreign_host" 403 "The Host header is not ours"
    ForeignOrigin "foreign_origin" 403 "The Origin header is not ours"
    FileForbidden "file_forbidden" 403 "The sandbox's user may not do that to the file"
    UnknownRoute "unknown_route" 404 "There is no such route"
    UnknownSandbox "unknown_sandbox" 404 "There is no such sandbox"
    UnknownProcess "unknown_process" 404 "There is no such process"
    UnknownTemplate "unknown_template" 404 "There is no such template"
    UnknownProvider "unknown_provider" 404 "There is no such provider"
    UnknownSnapshot "unknown_snapshot" 404 "There is no such snapshot"
    UnknownQuarantined "unknown_quarantined" 404 "Nothing of that id is in quarantine"
    UnknownPool "unknown_pool" 404 "There is no such pool"
    UnknownToken "unknown_token" 404 "There is no such token"
    UnknownSession "unknown_session" 404 "There is no such session"
    UnknownApproval "unknown_approval" 404 "There is no such approval"
    UnknownWebhook "unknown_webhook" 404 "There is no such webhook"
    UnknownSecret "unknown_secret" 404 "There is no such secret"
    UnknownRule "unknown_rule" 404 "The sandbox has no such rule"
    UnknownModel "unknown_model" 404 "There is no such model"
    UnknownFile "unknown_file" 404 "There is no such file"
    MethodNotAllowed "method_not_allowed" 405 "The route does not take this method"
    NotAcceptable "not_acceptable" 406 "None of the accepted content types can be sent"
    NameTaken "name_taken" 409 "The name is taken"
    WrongState "wrong_state" 409 "The sandbox's state does not allow this"
    WorkspaceDisabled "workspace_disabled" 409 "The agent has no workspaces"
    ApprovalClosed "approval_closed" 409 "The approval is no longer open"
    ScreenMoved "screen_moved" 409 "The terminal has moved on"
    NotController "not_controller" 409 "The terminal is not controlled by this viewer"
    WorkspaceBound "workspace_bound" 409 "The workspace belongs to the host"
    WrongFileKind "wrong_file_kind" 409 "The file is of another kind"
    DirectoryNotEmpty "directory_not_empty" 409 "The directory is not empty"
    AlreadyRunning "already_running" 409 "It does not wait to be started"
    ProcessOver "process_over" 409 "The process has ended"
    NoStdin "no_stdin" 409 "The process takes no input"
    NoTerminal "no_terminal" 409 "The process has no terminal"
    OutputDropped "output_dropped" 410 "The output was dropped by retention"
    EventsDropped "events_dropped" 410 "The events were dropped by retention"
    SandboxGone "sandbox_gone" 410 "The sandbox is gone"
    SessionEnded "session_ended" 410 "The session has ended"
    TooLarge "too_large" 413 "Too large"
    OffsetBeyond "offset_beyond" 416 "The offset is past the end"
    UnsupportedMedia "unsupported_media" 415 "The content type is not supported"
    CommandNotFound "command_not_found" 422 "There is no such command in the sandbox"
    CommandNotExecutable "command_not_executable" 422 "The command cannot be executed"
    IdempotencyMismatch "idempotency_mismatch" 422 "The Idempotency-Key was used for another request"
    NotEnforceable "not_enforceable" 422 "This host cannot enforce what the sandbox requires"
    Declined "declined" 422 "The sandbox's provider cannot do this"
    TooMany "too_many" 429 "Too many"
    Internal "internal" 500 "Sandbar failed"
    GuestUnreachable "guest_unreachable" 502 "The sandbox does not answer"
    ClusterFailed "cluster_failed" 502 "The cluster did not do its part"
    PortClosed "port_closed" 502 "Nothing answers on the port"
    NotReady "not_ready" 503 "The sandbox was not ready in time"
    ShuttingDown "shutting_down" 503 "The server is shutting down"
    DiskFull "disk_full" 507 "The disk is full"
}

/// By hand: the derive macro does not see names that come out of a macro. `unknown` is never sent.
impl utoipa::PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("What went wrong, for programs. Codes are never renamed; newer servers may have more."))
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .into()
    }
}

impl utoipa::ToSchema for Code {
    fn name() -> Cow<'static, str> {
        "Code".into()
    }
}

/// An RFC 9457 problem document (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, thiserror::Error)]
#[error("{detail} {fix}")]
pub struct Problem {
    /// A URN made of the code.
    #[serde(rename = "type")]
    #[schema(example = "urn:sandbar:problem:name_taken")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub code: Code,
    /// One sentence about this occurrence.
    pub detail: String,
    /// What to do about it.
    pub fix: String,
    /// With `output_dropped` and `events_dropped`: the first offset or sequence number still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_kept: Option<u64>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:sandbar:problem:{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            detail: detail.into(),
            fix: fix.into(),
            first_kept: None,
        }
    }

    pub fn with_first_kept(mut self, first_kept: u64) -> Self {
        self.first_kept = Some(first_kept);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_survive_the_wire() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{} twice", code.as_str());
            let json = serde_json::to_string(code).unwrap_or_default();
            assert_eq!(json, format!("\"{}\"", code.as_str()));
            assert_eq!(serde_json::from_str::<Code>(&json).ok(), Some(*code));
            assert!((400..600).contains(&code.status()));
        }
    }

    #[test]
    fn a_newer_servers_code_is_understood_as_unknown() {
        assert_eq!(serde_json::from_str::<Code>("\"not_yet_invented\"").ok(), Some(Code::Unknown));
    }
}

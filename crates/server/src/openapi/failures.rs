//! Failures that follow from where an operation is and from what it does. Handlers describe only those that are theirs.

use sandbar_api::{Code, Code::*};
use utoipa::openapi::{RefOr, Response, path::Operation};

/// Below a sandbox, yet answered by the server's memory and store: no guest and no provider can fail them.
const REMEMBERED: [&str; 12] = [
    "get_sandbox",
    "list_processes",
    "get_process",
    "read_output",
    "read_transcript",
    "get_recording",
    "get_network",
    "add_rules",
    "remove_rule",
    "grant_secret",
    "revoke_secret",
    "create_router_token",
];

/// What makes a sandbox, or brings one back.
const MAKES: [&str; 8] = [
    "create_sandbox",
    "create_session",
    "restart_session",
    "provide_workspace",
    "fork_sandbox",
    "start_sandbox",
    "adopt_quarantined",
    "create_snapshot",
];

/// What starts a process.
const STARTS: [&str; 4] = ["exec", "start_process", "create_session", "restart_session"];

pub(super) fn state(path: &str, method: &str, operation: &mut Operation) {
    let id = operation.operation_id.clone().unwrap_or_default();
    let id = id.as_str();
    let below = path.strip_prefix("/v1/sandboxes/{sandbox}");
    let groups: [(bool, &[Code]); 11] = [
        (true, &[ForeignHost, ForeignOrigin, Internal]),
        (operation.security.is_none(), &[BadRequest, Unauthenticated, Forbidden, TooMany, ShuttingDown]),
        (takes_json(operation), &[BadJson, TooLarge, UnsupportedMedia]),
        (method != "get", &[DiskFull]),
        (below.is_some(), &[UnknownSandbox]),
        // Deleting a sandbox again is no error.
        (below.is_some() && id != "delete_sandbox", &[SandboxGone]),
        (below.is_some() && !REMEMBERED.contains(&id), &[GuestUnreachable, ClusterFailed]),
        (below.is_some() && !REMEMBERED.contains(&id) && id != "delete_sandbox", &[WrongState]),
        (path.contains("{process}"), &[UnknownProcess]),
        (path.starts_with("/v1/sessions/{session}"), &[UnknownSession]),
        (MAKES.contains(&id), &[NotEnforceable, Declined, TooMany, GuestUnreachable, ClusterFailed, BadTemplate]),
    ];
    for (_, codes) in groups.into_iter().filter(|(holds, _)| *holds) {
        codes.iter().for_each(|code| mention(operation, *code));
    }
    if STARTS.contains(&id) {
        let codes =
            [CommandNotFound, CommandNotExecutable, UnknownFile, FileForbidden, WrongFileKind, NotEnforceable, TooMany];
        codes.into_iter().for_each(|code| mention(operation, code));
    }
}

/// On kagent's routes, whose errors have no codes: those of what stands in front of every route look like the others.
pub(super) fn state_in_other_words(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    let Some(like) = responses.get("401").cloned() else { return };
    for (status, description) in [
        ("403", "The token's role does not allow this, or the Host or Origin header is not ours."),
        ("429", "The token has as many connections as it may have."),
        ("503", "The server is shutting down."),
    ] {
        let mut new = like.clone();
        if let RefOr::T(response) = &mut new {
            response.description = description.to_owned();
        }
        responses.entry(status.to_owned()).or_insert(new);
    }
}

fn takes_json(operation: &Operation) -> bool {
    matches!(&operation.request_body, Some(RefOr::T(body)) if body.content.contains_key("application/json"))
}

fn mention(operation: &mut Operation, code: Code) {
    let entry = operation.responses.responses.entry(code.status().to_string());
    let RefOr::T(response) = entry.or_insert_with(|| RefOr::T(Response::new(""))) else { return };
    let code = format!("`{}`", code.as_str());
    if !response.description.contains(&code) {
        let comma = if response.description.is_empty() { "" } else { ", " };
        response.description = format!("{}{comma}{code}", response.description);
    }
}

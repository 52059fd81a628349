//! Between the API's types and those of the protocol. Nothing is decided here; what cannot be said is refused.

use chrono::{DateTime, Utc};
use prost_types::Timestamp;
use sandbar_api::{
    Code, Control, Entry, EntryKind, Exit, ExitReason, HumanDuration, HumanSize, Limits, NetworkPolicy, OutputChunk,
    Problem, Process, ProcessState, Restart, Sandbox, SandboxState, Session, SessionState, SetBudget, Stream,
    TerminalSize, WorkspaceSource,
};
use sandbar_engine::Hit;
use std::{fmt::Display, str::FromStr};
use tonic::Status;

use super::{proto, status};
use crate::problem::bad_request;

pub(super) mod viewed;

fn time(at: DateTime<Utc>) -> Timestamp {
    Timestamp { seconds: at.timestamp(), nanos: i32::try_from(at.timestamp_subsec_nanos()).unwrap_or_default() }
}

/// To the millisecond, never shorter than asked for.
pub(super) fn duration(given: Option<prost_types::Duration>) -> Result<Option<HumanDuration>, Status> {
    let Some(given) = given else { return Ok(None) };
    let millis = std::time::Duration::try_from(given).ok().map(|given| given.as_nanos().div_ceil(1_000_000));
    let usable = millis.and_then(|millis| format!("{millis}ms").parse().ok());
    usable.map(Some).ok_or_else(|| {
        let detail = format!("A duration of {} s and {} ns is not usable.", given.seconds, given.nanos);
        status::of(Problem::new(Code::BadDuration, detail, "Use one from 0 to 100 years."))
    })
}

/// One of the proto's values. What this version does not know is refused, and not taken for what holds by default.
pub(super) fn known<T: TryFrom<i32>>(value: i32, field: &str) -> Result<T, Status> {
    T::try_from(value).map_err(|_| {
        let detail = format!("`{field}` is {value}, which has no meaning here.");
        status::of(bad_request(detail, "Use one of the values of the server's own proto."))
    })
}

pub(super) fn id<T: FromStr<Err: Display>>(text: Option<String>) -> Result<Option<T>, Status> {
    let parsed = text.map(|text| text.parse::<T>()).transpose();
    parsed.map_err(|error| status::of(bad_request(format!("{error}."), "Give the id, not a name.")))
}

pub(super) fn size(size: proto::TerminalSize) -> Result<TerminalSize, Status> {
    let size = match (u16::try_from(size.cols), u16::try_from(size.rows)) {
        (Ok(cols), Ok(rows)) => Some(TerminalSize { cols, rows }).filter(|size| size.is_usable()),
        _ => None,
    };
    size.ok_or_else(|| status::of(bad_request("The terminal's size is not usable.", "Use 1 to 9999 columns and rows.")))
}

/// Of a request that is about nothing else.
pub(super) fn sized(given: Option<proto::TerminalSize>) -> Result<TerminalSize, Status> {
    size(given.unwrap_or_default())
}

pub(super) fn network(policy: Option<proto::NetworkPolicy>) -> NetworkPolicy {
    let proto::NetworkPolicy { allow, ask, deny } = policy.unwrap_or_default();
    NetworkPolicy { allow, ask, deny }
}

pub(super) fn limits(limits: Option<proto::Limits>) -> Result<Limits, Status> {
    let size = |bytes: Option<u64>| bytes.map(HumanSize);
    let limits = limits.unwrap_or_default();
    Ok(Limits {
        memory: size(limits.memory),
        cpus: limits.cpus,
        processes: limits.processes,
        open_files: limits.open_files,
        tmpfs: size(limits.tmpfs),
        disk: size(limits.disk),
        output: size(limits.output),
        wall_time: duration(limits.wall_time)?,
    })
}

pub(super) fn budget(limits: Option<proto::BudgetLimits>) -> SetBudget {
    let proto::BudgetLimits { tokens, usd, per_minute } = limits.unwrap_or_default();
    SetBudget { tokens, usd, per_minute }
}

pub(super) fn workspace_from(source: Option<proto::WorkspaceSource>) -> WorkspaceSource {
    match source.and_then(|source| source.source) {
        Some(proto::workspace_source::Source::Bind(path)) => WorkspaceSource::Bind { path },
        None => WorkspaceSource::Empty,
    }
}

fn workspace(source: WorkspaceSource) -> proto::WorkspaceSource {
    let source = match source {
        WorkspaceSource::Empty => None,
        WorkspaceSource::Bind { path } => Some(proto::workspace_source::Source::Bind(path)),
    };
    proto::WorkspaceSource { source }
}

pub(super) fn sandbox_state(state: proto::SandboxState) -> Result<SandboxState, Status> {
    Ok(match state {
        proto::SandboxState::Creating => SandboxState::Creating,
        proto::SandboxState::Ready => SandboxState::Ready,
        proto::SandboxState::Paused => SandboxState::Paused,
        proto::SandboxState::Stopping => SandboxState::Stopping,
        proto::SandboxState::Stopped => SandboxState::Stopped,
        proto::SandboxState::Failed => SandboxState::Failed,
        proto::SandboxState::Deleted => SandboxState::Deleted,
        proto::SandboxState::Unspecified => {
            return Err(status::of(bad_request("A state to look for is none.", "Name a state, or leave it out.")));
        }
    })
}

fn state(state: SandboxState) -> proto::SandboxState {
    match state {
        SandboxState::Creating => proto::SandboxState::Creating,
        SandboxState::Ready => proto::SandboxState::Ready,
        SandboxState::Paused => proto::SandboxState::Paused,
        SandboxState::Stopping => proto::SandboxState::Stopping,
        SandboxState::Stopped => proto::SandboxState::Stopped,
        SandboxState::Failed => proto::SandboxState::Failed,
        SandboxState::Deleted => proto::SandboxState::Deleted,
    }
}

pub(super) fn sandbox(sandbox: Sandbox) -> proto::Sandbox {
    proto::Sandbox {
        id: sandbox.id.into(),
        name: sandbox.name,
        session: sandbox.session.into(),
        state: state(sandbox.state).into(),
        reason: sandbox.reason.map(|reason| proto::StateReason { code: reason.code, detail: reason.detail }),
        template: sandbox.template,
        provider: sandbox.provider,
        labels: sandbox.labels,
        env: sandbox.env,
        workspace: Some(workspace(sandbox.workspace)),
        from_snapshot: sandbox.from.map(Into::into),
        created_at: Some(time(sandbox.created_at)),
        changed_at: Some(time(sandbox.changed_at)),
        expires_at: sandbox.expires_at.map(time),
    }
}

pub(super) fn restart(policy: proto::Restart) -> Option<Restart> {
    match policy {
        proto::Restart::Unspecified => None,
        proto::Restart::Never => Some(Restart::Never),
        proto::Restart::OnFailure => Some(Restart::OnFailure),
        proto::Restart::Always => Some(Restart::Always),
    }
}

fn restarts(policy: Option<Restart>) -> proto::Restart {
    match policy {
        None | Some(Restart::Never) => proto::Restart::Never,
        Some(Restart::OnFailure) => proto::Restart::OnFailure,
        Some(Restart::Always) => proto::Restart::Always,
    }
}

fn exit(exit: Exit) -> proto::Exit {
    let reason = match exit.reason {
        ExitReason::Exited => proto::ExitReason::Exited,
        ExitReason::Timeout => proto::ExitReason::Timeout,
        ExitReason::Killed => proto::ExitReason::Killed,
        ExitReason::Stopped => proto::ExitReason::Stopped,
        ExitReason::Oom => proto::ExitReason::Oom,
        ExitReason::PidsLimit => proto::ExitReason::PidsLimit,
        ExitReason::DiskLimit => proto::ExitReason::DiskLimit,
        ExitReason::OutputLimit => proto::ExitReason::OutputLimit,
    };
    proto::Exit { code: exit.code, signal: exit.signal, reason: reason.into() }
}

pub(super) fn process(process: Process) -> proto::Process {
    let state = match process.state {
        ProcessState::Running => proto::ProcessState::Running,
        ProcessState::Exited => proto::ProcessState::Exited,
        ProcessState::Lost => proto::ProcessState::Lost,
    };
    proto::Process {
        id: process.id.into(),
        sandbox: process.sandbox.into(),
        argv: process.argv,
        cwd: process.cwd,
        terminal: process.terminal,
        state: state.into(),
        exit: process.exit.map(exit),
        started_at: Some(time(process.started_at)),
        exited_at: process.exited_at.map(time),
        output_start: process.output.start,
        output_end: process.output.end,
        restart: restarts(process.restart).into(),
        restart_of: process.restart_of.map(Into::into),
        restarts: process.restarts,
    }
}

pub(super) fn only(stream: proto::Stream) -> Option<Stream> {
    match stream {
        proto::Stream::Unspecified => None,
        proto::Stream::Stdout => Some(Stream::Stdout),
        proto::Stream::Stderr => Some(Stream::Stderr),
    }
}

pub(super) fn chunk(chunk: OutputChunk) -> proto::OutputChunk {
    let stream = match chunk.stream {
        Stream::Stdout => proto::Stream::Stdout,
        Stream::Stderr => proto::Stream::Stderr,
    };
    proto::OutputChunk { offset: chunk.offset, stream: stream.into(), data: chunk.data.into() }
}

pub(super) fn control(control: proto::Control) -> Control {
    match control {
        proto::Control::Unspecified | proto::Control::View => Control::View,
        proto::Control::Free => Control::Free,
        proto::Control::Take => Control::Take,
    }
}

fn kind(kind: EntryKind) -> proto::EntryKind {
    match kind {
        EntryKind::File => proto::EntryKind::File,
        EntryKind::Directory => proto::EntryKind::Directory,
        EntryKind::Symlink => proto::EntryKind::Symlink,
        EntryKind::Other => proto::EntryKind::Other,
    }
}

pub(super) fn entry(entry: Entry) -> proto::Entry {
    proto::Entry {
        name: entry.name,
        kind: kind(entry.kind).into(),
        size: entry.size,
        // The engine writes it in octal.
        mode: u32::from_str_radix(&entry.mode, 8).unwrap_or_default(),
        modified_at: Some(time(entry.modified_at)),
        target: entry.target,
    }
}

pub(super) fn found(hit: Hit) -> proto::SearchHit {
    proto::SearchHit {
        path: hit.path,
        kind: kind(hit.kind).into(),
        size: hit.size,
        modified_at: Some(time(hit.modified_at)),
        line: hit.line,
        text: hit.text,
        context: hit.context,
        cut: hit.cut,
    }
}

pub(super) fn session(session: Session) -> proto::Session {
    let state = match session.state {
        SessionState::Active => proto::SessionState::Active,
        SessionState::Idle => proto::SessionState::Idle,
        SessionState::Ended => proto::SessionState::Ended,
    };
    let terminals = session.terminals.into_iter().map(|terminal| proto::SessionTerminal {
        process: terminal.process.into(),
        sandbox: terminal.sandbox.into(),
        argv: terminal.argv,
        started_at: Some(time(terminal.started_at)),
    });
    let restarting = session.restarting.into_iter().map(|waiting| proto::Restarting {
        process: waiting.process.into(),
        sandbox: waiting.sandbox.into(),
        argv: waiting.argv,
        exit: waiting.exit.map(exit),
        runs: waiting.runs,
        due: Some(time(waiting.due)),
    });
    let crash_loops = session.crash_loops.into_iter().map(|dead| proto::CrashLoop {
        process: dead.process.into(),
        restart_of: dead.restart_of.into(),
        sandbox: dead.sandbox.into(),
        argv: dead.argv,
        terminal: dead.terminal,
        exit: dead.exit.map(exit),
        runs: dead.runs,
        since: Some(time(dead.since)),
        at: Some(time(dead.at)),
    });
    proto::Session {
        id: session.id.into(),
        name: session.name,
        owner: session.owner,
        state: state.into(),
        labels: session.labels,
        parent: session.parent.map(Into::into),
        created_at: Some(time(session.created_at)),
        deleted_at: session.deleted_at.map(time),
        sandboxes: session.sandboxes.into_iter().map(Into::into).collect(),
        open_approvals: session.open_approvals,
        budget: Some(proto::SessionBudget {
            tokens_used: session.budget.tokens_used,
            usd_used: session.budget.usd_used,
            tokens: session.budget.limits.tokens,
            usd: session.budget.limits.usd,
            per_minute: session.budget.limits.per_minute,
        }),
        terminals: terminals.collect(),
        restarting: restarting.collect(),
        crash_loops: crash_loops.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_or_refused() {
        let read = |seconds, nanos| duration(Some(prost_types::Duration { seconds, nanos }));
        for (seconds, nanos, millis) in [(0, 0, 0), (1, 0, 1000), (0, 1, 1), (2, 500_000_000, 2500)] {
            let got = read(seconds, nanos).ok().flatten().map(|duration| duration.0.as_millis());
            assert_eq!(got, Some(millis), "{seconds} {nanos}");
        }
        for (seconds, nanos) in [(-1, 0), (0, -1), (i64::MAX, 0), (101 * 365 * 86_400, 0)] {
            assert!(read(seconds, nanos).is_err(), "{seconds} {nanos}");
        }
        assert!(duration(None).is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn sizes_and_ids_that_are_none_are_refused() {
        for (cols, rows, usable) in [(80, 24, true), (0, 24, false), (80, 10_000, false), (u32::MAX, 1, false)] {
            assert_eq!(size(proto::TerminalSize { cols, rows }).is_ok(), usable, "{cols} {rows}");
        }
        assert!(sized(None).is_err());
        assert!(id::<sandbar_api::SessionId>(Some("nobody".to_owned())).is_err());
        assert!(id::<sandbar_api::SessionId>(None).is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn states_there_and_back() {
        for known in SandboxState::ALL {
            assert_eq!(sandbox_state(state(known)).ok(), Some(known));
        }
        assert!(sandbox_state(proto::SandboxState::Unspecified).is_err());
        assert!(known::<proto::SandboxState>(2, "states").is_ok_and(|state| state == proto::SandboxState::Ready));
        assert!(known::<proto::SandboxState>(99, "states").is_err() && known::<proto::Restart>(-1, "restart").is_err());
    }
}

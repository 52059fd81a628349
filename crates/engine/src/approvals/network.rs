//! Approvals of connections: what a person is asked, and what the answers do.

use chrono::TimeDelta;
use sandbar_api::{Approval, ApprovalAnswer, ApprovalKind, ApprovalState, Choice, Code, Problem, Role, SandboxId};
use sandbar_gateway::Question;
use sandbar_policy::{Host, Rule};
use serde_json::{Value, json};

use crate::{clock, gate::approval_rule, handle::Handle, ids};

/// How long a connection waits for a person.
pub(super) const DEADLINE: TimeDelta = TimeDelta::minutes(10);
pub(super) const ONCE: &str = "once";
pub(super) const SANDBOX: &str = "sandbox";
pub(super) const DENY: &str = "deny";
/// Of a path, in a sentence.
const SHOWN: usize = 200;
/// Nobody can judge a longer path.
const LONGEST_PATH: usize = 2048;

/// What makes two questions the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) sandbox: SandboxId,
    host: Host,
    port: u16,
    method: Option<String>,
    path: Option<String>,
}

impl Key {
    pub(super) fn new(sandbox: &SandboxId, question: &Question) -> Self {
        let Question { host, port, method, path, .. } = question.clone();
        Self { sandbox: sandbox.clone(), host, port, method, path }
    }

    /// As it was asked, perhaps by an earlier server.
    pub(super) fn of(approval: &Approval) -> Option<Self> {
        Some(Self::new(approval.sandbox.as_ref()?, &question(approval)?))
    }
}

/// Without the query: it may hold anything, and approvals are told and kept.
pub(super) fn without_query(mut question: Question) -> Question {
    if let Some(path) = &mut question.path
        && let Some(end) = path.find('?')
    {
        path.truncate(end);
    }
    question
}

pub(super) fn ask(handle: &Handle, question: &Question) -> Result<Approval, Problem> {
    if question.path.as_ref().is_some_and(|path| path.len() > LONGEST_PATH) {
        let fix = "Allow the request by a rule.";
        return Err(Problem::new(Code::TooLarge, "the path is too long to ask a person about", fix));
    }
    let (now, sandbox) = (clock::now(), handle.sandbox());
    let target = Rule::exactly(&question.host, question.port).text;
    // Whatever the sandbox wrote there stays on its line.
    let shown = |text: &str| match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    };
    let what = match (&question.method, &question.path) {
        (Some(method), Some(path)) => format!("send {} {} to", shown(method), shown(path)),
        (Some(method), None) => format!("send {} to", shown(method)),
        (None, _) => "connect to".to_owned(),
    };
    let mut choices = vec![Choice::new(ONCE, "Allow the connections that wait")];
    if approval_rule(question).is_some() {
        choices.push(Choice::new(SANDBOX, "Allow for this sandbox"));
    }
    choices.push(Choice::new(DENY, "Deny"));
    let mut context = json!({ "host": question.host.to_string(), "port": question.port, "rule": question.rule });
    for (name, value) in [("method", &question.method), ("path", &question.path)] {
        if let Some(value) = value {
            context[name] = value.as_str().into();
        }
    }
    Ok(Approval {
        id: ids::approval(now)?,
        kind: ApprovalKind::Network,
        state: ApprovalState::Open,
        session: sandbox.session,
        sandbox: Some(sandbox.id),
        question: format!("Allow \"{}\" to {what} {target}?", sandbox.name),
        choices,
        takes_text: false,
        context,
        answerable_by: Role::Operator,
        created_at: now,
        deadline: now + DEADLINE,
        on_deadline: DENY.into(),
        answer: None,
        delivery: None,
        reason: None,
        closed_at: None,
    })
}

fn question(approval: &Approval) -> Option<Question> {
    let context = &approval.context;
    let text = |name: &str| context[name].as_str().map(str::to_owned);
    Some(Question {
        host: Host::parse(context["host"].as_str()?).ok()?,
        port: context["port"].as_u64()?.try_into().ok()?,
        method: text("method"),
        path: text("path"),
        rule: text("rule").unwrap_or_default(),
    })
}

/// The rule that an answer adds to a sandbox, if it does.
pub(super) fn rule(approval: &Approval, choice: &str) -> Option<(SandboxId, Rule)> {
    if choice != SANDBOX {
        return None;
    }
    Some((approval.sandbox.clone()?, approval_rule(&question(approval)?)?))
}

pub(super) fn change(approval: &Approval, answer: &ApprovalAnswer, rule: &Rule) -> Value {
    json!({ "effect": "allow", "rules": [rule.text], "by": answer.by, "approval": approval.id.as_str() })
}

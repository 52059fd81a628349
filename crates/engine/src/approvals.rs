//! Approvals: questions to a person, the one mechanism for everything that asks.
//!
//! The store says what is open and takes the one answer that counts; `waiting` knows who waits in this server for it,
//! `network` what is asked about connections and what the answers to that do; `terminal` is what a program asks that waits for
//! somebody to type, and `typing` types the answers.

mod network;
pub(crate) mod terminal;
mod typing;
mod waiting;

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use sandbar_api::{
    AnswerApproval, Approval, ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalState, Code, Problem, Role,
    approval::MAX_TEXT,
};
use tokio::time;

pub(crate) use typing::resume;
pub(crate) use waiting::Approvals;

use crate::{
    Caller, Engine, Inner, clock, problem,
    registry::Known,
    store::{
        self,
        gate::{ApprovalFilter, Closed, Consequence, RulesAfter},
    },
};

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;
/// The clock that timers use stands still while a laptop sleeps, so the wall clock is asked at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);
/// Until it is asked again what became of an answer.
const FIRST_LOOK: Duration = Duration::from_millis(200);
const NOT_WRITTEN: &str = "the connection to the database was lost; the answer was not written, and may be given again";

#[derive(Debug, Clone, Default)]
pub struct ApprovalQuery {
    /// Empty: all.
    pub states: Vec<ApprovalState>,
    /// By id or name.
    pub sandbox: Option<String>,
    pub limit: Option<u32>,
}

impl Engine {
    /// An agent's caller sees those of its own session.
    pub async fn approvals(&self, caller: &Caller, query: ApprovalQuery) -> Result<Vec<Approval>, Problem> {
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::new(
                Code::BadRequest,
                format!("A list cannot have {limit} approvals."),
                format!("Ask for 1 to {MAX_LIMIT}."),
            ));
        }
        let session = match caller.role {
            Role::Agent => Some(caller.session.clone().ok_or_else(unbound)?),
            Role::Viewer | Role::Operator | Role::Admin => None,
        };
        let sandbox = match (&query.sandbox, &session) {
            (None, _) => None,
            (Some(text), Some(_)) => {
                let own = self.inner.own_sandbox(caller, text).await?;
                Some(own.ok_or_else(|| problem::unknown_sandbox(text))?)
            }
            (Some(text), None) => Some(match self.inner.find(text).await? {
                Known::Live(handle) => handle.id.clone(),
                Known::Gone(gone) => gone.id,
            }),
        };
        let filter = ApprovalFilter { states: query.states, sandbox, session, limit };
        Ok(self.inner.store.approvals(&filter).await?)
    }

    /// Waits up to `wait` for it to be closed, if it is open.
    pub async fn approval(&self, caller: &Caller, id: &str, wait: Duration) -> Result<Approval, Problem> {
        let approval = self.visible(caller, id).await?;
        if approval.state != ApprovalState::Open || wait.is_zero() {
            return Ok(approval);
        }
        if let Some(closed) = self.inner.gates.approvals.closed(&approval.id) {
            tokio::select! {
                () = self.inner.closing.cancelled() => return Err(problem::shutting_down()),
                () = closed.cancelled() => {}
                () = time::sleep(wait) => {}
            }
        }
        self.visible(caller, id).await
    }

    /// Exactly one answer counts. `approval_closed` for every other, `forbidden` for an agent or a role below the one asked.
    pub async fn answer_approval(
        &self,
        caller: &Caller,
        id: &str,
        request: AnswerApproval,
    ) -> Result<Approval, Problem> {
        if caller.role == Role::Agent {
            return Err(Problem::new(
                Code::Forbidden,
                "An agent cannot answer approvals: they are questions to a person.",
                "Wait until a person has answered; `sandbar approvals` shows what is open.",
            ));
        }
        let approval = self.visible(caller, id).await?;
        check(caller, &approval, &request)?;
        let AnswerApproval { choice, text } = request;
        let answer = ApprovalAnswer { choice, text, masked: false, by: caller.owner.clone(), at: clock::now() };
        let inner = self.inner.clone();
        self.inner
            .finish(async move {
                match approval.kind {
                    ApprovalKind::Terminal => typing::answer(inner, approval.id, answer).await,
                    _ => inner.answer(approval, answer).await,
                }
            })
            .await
    }

    async fn visible(&self, caller: &Caller, text: &str) -> Result<Approval, Problem> {
        let id: ApprovalId = text.parse().map_err(|_| unknown(text))?;
        let found = self.inner.store.approval(&id).await?;
        let seen =
            |approval: &Approval| caller.role != Role::Agent || caller.session.as_ref() == Some(&approval.session);
        found.filter(seen).ok_or_else(|| unknown(text))
    }
}

impl Inner {
    async fn answer(&self, approval: Approval, answer: ApprovalAnswer) -> Result<Approval, Problem> {
        let rule = match approval.kind {
            ApprovalKind::Network => network::rule(&approval, &answer.choice),
            _ => None,
        };
        // Held until memory has what the answer changes, so that nobody else's change is lost or loses it.
        let (mut rules, mut lasting) = (None, None);
        if let Some((sandbox, rule)) = rule {
            let handle = self.registry.by_id(&sandbox).ok_or_else(|| problem::gone(sandbox.as_str()))?;
            let alone = handle.rules.alone().await;
            let after = handle.rules.with_approved(&rule)?;
            let change = network::change(&approval, &answer, &rule);
            let (new, secrets) = (after.0.clone(), after.1.clone());
            rules = Some(Consequence::Rules(RulesAfter { sandbox, rules: new, secrets, change }));
            lasting = Some((handle, after, alone));
        }
        let id = approval.id;
        let (choice, by) = (answer.choice.clone(), answer.by.clone());
        let ours = move |found: &Approval, _: Option<&str>| {
            found.answer.as_ref().is_some_and(|answer| (&answer.choice, &answer.by) == (&choice, &by))
        };
        let closed = self.store.answer_approval(&id, answer, rules).await;
        let closed = found_out(self, &id, closed, ours).await.map_err(|error| match error {
            store::Error::Missing(_) => unknown(id.as_str()),
            error => error.into(),
        })?;
        match closed {
            Closed::Now(approval) => {
                if let Some((handle, after, _alone)) = lasting {
                    handle.rules.take(after);
                }
                self.gates.approvals.answered(&*self.store, &approval).await;
                Ok(approval)
            }
            Closed::Before(approval) => {
                self.gates.approvals.ended(&approval);
                Err(over(&approval))
            }
        }
    }
}

/// What became of an answer. Where nobody heard how its commit ended, the store is asked until it says: what counts has to
/// be carried out. `ours` tells the answer, perhaps by the id its keys are staged under.
async fn found_out(
    inner: &Inner,
    id: &ApprovalId,
    closed: store::Result<Closed>,
    ours: impl Fn(&Approval, Option<&str>) -> bool,
) -> store::Result<Closed> {
    let unheard = match closed {
        Err(error) if error.leaves_open() => error,
        closed => return closed,
    };
    let mut retry = FIRST_LOOK;
    loop {
        match inner.store.approval_after_writes(id).await {
            Ok(Some((found, staged))) if ours(&found, staged.as_deref()) => return Ok(Closed::Now(found)),
            Ok(Some((found, _))) if found.state != ApprovalState::Open => return Ok(Closed::Before(found)),
            // It was not written, and will not be.
            Ok(Some(_)) => return Err(store::Error::Database(NOT_WRITTEN.into())),
            Ok(None) => return Err(store::Error::Missing(format!("approval {id}"))),
            Err(error) => tracing::error!(approval = %id, %error, "whether an answer counts is not known yet"),
        }
        tokio::select! {
            () = inner.halt.cancelled() => return Err(unheard),
            () = time::sleep(retry) => retry = (retry * 2).min(RETRY),
        }
    }
}

fn check(caller: &Caller, approval: &Approval, request: &AnswerApproval) -> Result<(), Problem> {
    if caller.role < approval.answerable_by {
        return Err(Problem::new(
            Code::Forbidden,
            format!("A {} may not answer this approval.", caller.role.as_str()),
            format!("It takes the role {} or above.", approval.answerable_by.as_str()),
        ));
    }
    if !approval.choices.iter().any(|choice| choice.id == request.choice) {
        let ids: Vec<_> = approval.choices.iter().map(|choice| format!("`{}`", choice.id)).collect();
        return Err(Problem::new(
            Code::BadAnswer,
            format!("`{}` is none of its choices.", request.choice.escape_debug()),
            format!("Choose one of {}.", ids.join(", ")),
        ));
    }
    match &request.text {
        Some(_) if !approval.takes_text => {
            Err(Problem::new(Code::BadAnswer, "This approval takes no text.", "Answer with a choice alone."))
        }
        Some(text) if text.len() > MAX_TEXT => Err(Problem::new(
            Code::TooLarge,
            format!("The answer's text has {} bytes.", text.len()),
            format!("Use at most {MAX_TEXT} bytes."),
        )),
        _ => Ok(()),
    }
}

fn unknown(text: &str) -> Problem {
    Problem::new(
        Code::UnknownApproval,
        format!("There is no approval `{}`.", text.escape_debug()),
        "`sandbar approvals` shows those that are open.",
    )
}

fn unbound() -> Problem {
    Problem::new(Code::Forbidden, "The agent's token is bound to no session.", "Make it another token.")
}

fn over(approval: &Approval) -> Problem {
    let how = match (&approval.answer, approval.state) {
        (Some(answer), _) => format!("was answered `{}` by {}", answer.choice, answer.by),
        (None, ApprovalState::Withdrawn) => match approval.reason.as_deref() {
            Some(terminal::MOVED_ON) => "was withdrawn, since the terminal has moved on".to_owned(),
            Some(terminal::TYPED_OVER) => "was withdrawn, since somebody typed into the terminal".to_owned(),
            _ => "was withdrawn, since what asked is gone".to_owned(),
        },
        (None, _) => format!("was not answered in time, which counts as `{}`", approval.on_deadline),
    };
    Problem::new(
        Code::ApprovalClosed,
        format!("The approval {} {how}.", approval.id),
        "The first answer stands; if it is asked again, there is a new approval.",
    )
}

/// Ends what nobody answered in time.
pub(crate) async fn expire(inner: Arc<Inner>) {
    while !inner.closing.is_cancelled() {
        let wait = next(&inner).await.unwrap_or_else(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "approvals past their deadline are still open");
            RETRY
        });
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = inner.gates.approvals.nearer() => {}
            () = time::sleep(wait) => {}
        }
    }
}

async fn next(inner: &Inner) -> store::Result<Duration> {
    for approval in inner.store.expire_approvals(Utc::now()).await? {
        inner.gates.approvals.ended(&approval);
    }
    inner.gates.approvals.forget(Utc::now());
    let next = inner.store.next_deadline().await?;
    Ok(next.map_or(LONGEST_SLEEP, |at| (at - Utc::now()).to_std().unwrap_or(Duration::ZERO).min(LONGEST_SLEEP)))
}

//! Sessions: made with a sandbox and perhaps a command in its terminal, or not at all; found by whatever names them;
//! deleted with everything that is theirs. What they used stays, for those above them.

mod own;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use futures_util::future::try_join_all;
use sandbar_api::{
    Approval, Code, CreateSandbox, CreateSession, Problem, Role, SandboxId, SandboxState, Session, SessionBudget,
    SessionId, SessionPage, SessionState, StartProcess, StateReason, TerminalSize, check,
};
use tokio::sync::watch;

use crate::{
    Caller, CreateOutcome, Engine, Inner, budget, clock, create, ids,
    owner::{self, Verb},
    problem, process,
    registry::Known,
    store::{
        IdempotencyKey,
        sessions::{Deletion, SessionFilter, SessionMarks, SessionRow},
    },
};

pub(crate) use own::Sight;

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;
const DEFAULT_TERMINAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };

#[derive(Clone, Debug, Default)]
pub struct SessionQuery {
    pub labels: BTreeMap<String, String>,
    /// Also those that have ended.
    pub ended: bool,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Debug)]
pub struct SessionOutcome {
    pub session: Session,
    /// The same key made it before.
    pub replayed: bool,
}

/// The Idempotency-Keys under which sessions are being made, with their owners.
pub(crate) type Beginnings = watch::Sender<HashSet<(String, String)>>;

/// Held while a session is being made.
struct Alone {
    inner: Arc<Inner>,
    key: (String, String),
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.inner.beginnings.send_modify(|keys| {
            keys.remove(&self.key);
        });
    }
}

impl Engine {
    /// With a sandbox of its own, and the command in a terminal if there is one. What fails leaves nothing behind but a
    /// deleted session. Repeating it with the same key gives the same session.
    pub async fn create_session(
        &self,
        caller: &Caller,
        request: CreateSession,
        key: Option<&str>,
    ) -> Result<SessionOutcome, Problem> {
        check_request(&request)?;
        let key = key.map(|key| create::idempotency_key(caller, key, "session", &request)).transpose()?;
        let (engine, caller) = (self.clone(), caller.clone());
        self.inner.whole(async move { engine.make_session(&caller, request, key).await }).await
    }

    async fn make_session(
        &self,
        caller: &Caller,
        request: CreateSession,
        key: Option<IdempotencyKey>,
    ) -> Result<SessionOutcome, Problem> {
        let _alone = match &key {
            Some(key) => Some(self.inner.alone(key).await),
            None => None,
        };
        let CreateSession {
            name, template, labels, parent, network, secrets, env, ttl, workspace, limits, budget, ..
        } = &request;
        let id = ids::session(clock::now())?;
        let marks = SessionMarks { name: name.clone(), labels: labels.clone() };
        let sandbox = CreateSandbox {
            name: name.clone(),
            template: template.clone(),
            env: env.clone(),
            ttl: *ttl,
            workspace: workspace.clone(),
            parent: parent.clone(),
            network: network.clone(),
            secrets: secrets.clone(),
            limits: limits.clone(),
            budget: budget.clone(),
            ..CreateSandbox::default()
        };
        let CreateOutcome { sandbox, replayed } =
            match self.birth(caller, sandbox, Some((id.clone(), marks)), key).await {
                Ok(born) => born,
                Err(problem) => {
                    self.inner.take_back(&id, &problem).await;
                    return Err(problem);
                }
            };
        let id = sandbox.session.clone();
        // A server that died in between has made a sandbox and started nothing.
        let starts = match replayed {
            true => sandbox.state == SandboxState::Ready && self.inner.store.processes(&sandbox.id).await?.is_empty(),
            false => true,
        };
        if starts
            && let Some(start) = command(request)
            && let Err(problem) = self.start_process(sandbox.id.as_str(), start).await
        {
            self.inner.take_back(&id, &problem).await;
            return Err(problem);
        }
        Ok(SessionOutcome { session: self.inner.shown(&id).await?, replayed })
    }

    /// Oldest first; an agent sees its own.
    pub async fn sessions(&self, caller: &Caller, query: SessionQuery) -> Result<SessionPage, Problem> {
        check::labels(&query.labels)?;
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::new(
                Code::BadRequest,
                format!("A page cannot have {limit} sessions."),
                format!("Ask for 1 to {MAX_LIMIT}."),
            ));
        }
        let after = query.cursor.as_deref().map(cursor).transpose()?;
        let only = match caller.role {
            Role::Agent => Some(caller.session.clone().ok_or_else(not_yours)?),
            Role::Viewer | Role::Operator | Role::Admin => None,
        };
        // One more than asked tells whether there is a next page.
        let filter = SessionFilter { labels: query.labels, ended: query.ended, only, after, limit: limit + 1 };
        let mut rows = self.inner.store.sessions(&filter).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next_cursor = rows.last().filter(|_| more).map(|last| last.id.to_string());
        let mut sessions = Vec::with_capacity(rows.len());
        for row in rows {
            sessions.push(self.inner.show(row).await?);
        }
        Ok(SessionPage { sessions, next_cursor })
    }

    /// By id also one that is deleted, until it is pruned. An agent sees its own, and of others not even whether they
    /// are there.
    pub async fn session(&self, caller: &Caller, of: &str) -> Result<Session, Problem> {
        let row = match caller.role {
            Role::Agent => self.inner.own_session(caller, Sight::Own, of).await?.ok_or_else(not_yours)?,
            Role::Viewer | Role::Operator | Role::Admin => self.inner.session_of(of).await?,
        };
        if row.deleted_at.is_some() && row.id.as_str() != of {
            return Err(problem::session_ended(of));
        }
        self.inner.show(row).await
    }

    /// Which session that is, as [`Self::session`] finds it, and its newest sandbox: where its agents work. Asked for with
    /// each call of a tool, so the store is left alone where memory knows.
    pub async fn session_place(&self, caller: &Caller, of: &str) -> Result<(SessionId, Option<SandboxId>), Problem> {
        let id = of.parse().ok().filter(|id| caller.role != Role::Agent || caller.session.as_ref() == Some(id));
        if let Some(id) = id
            && let Some(sandbox) = self.inner.registry.newest_of(&id)
        {
            self.inner.used(&sandbox).await;
            return Ok((id, Some(sandbox)));
        }
        let session = self.session(caller, of).await?;
        let sandbox = session.sandboxes.into_iter().next_back();
        if let Some(sandbox) = &sandbox {
            self.inner.used(sandbox).await;
        }
        Ok((session.id, sandbox))
    }

    /// Returns when its sandboxes are gone; deleting it again is no error. Sessions below it stay, and what they use
    /// counts for it as before.
    pub async fn delete_session(&self, of: &str) -> Result<(), Problem> {
        let session = self.inner.session_of(of).await?.id;
        let inner = self.inner.clone();
        let why = owner::reason("session_deleted", "Its session was deleted.");
        self.inner.whole(async move { inner.end_session(&session, why).await }).await
    }
}

impl Inner {
    /// By its id or name, or by a sandbox's id or name. A name that something has goes before one that something had.
    pub(crate) async fn session(&self, of: &str) -> Result<SessionRow, Problem> {
        let id = match of.parse::<SessionId>() {
            Ok(id) => id,
            Err(_) => {
                let named = self.store.session_named(of).await?;
                match (named, self.find(of).await) {
                    (Some(named), _) if named.deleted_at.is_none() => return Ok(named),
                    (_, Ok(Known::Live(handle))) => handle.session(),
                    (Some(named), _) => return Ok(named),
                    (None, found) => match found? {
                        Known::Live(handle) => handle.session(),
                        Known::Gone(sandbox) => sandbox.session,
                    },
                }
            }
        };
        self.store.session(&id).await?.ok_or_else(|| problem::unknown_session(of))
    }

    /// Where a session was asked for, what is missing is a session.
    pub(crate) async fn session_of(&self, of: &str) -> Result<SessionRow, Problem> {
        self.session(of).await.map_err(|problem| match problem.code {
            Code::UnknownSandbox => problem::unknown_session(of),
            _ => problem,
        })
    }

    async fn shown(&self, id: &SessionId) -> Result<Session, Problem> {
        let row = self.store.session(id).await?.ok_or_else(|| problem::unknown_session(id.as_str()))?;
        self.show(row).await
    }

    pub(crate) async fn show(&self, row: SessionRow) -> Result<Session, Problem> {
        let belongings = self.store.belongings(&row.id).await?;
        // What is in memory may be ahead of what is written.
        let (tokens_used, micros) = match self.gates.ledger.spent(&row.id) {
            Some(spent) => (spent.used.tokens, spent.used.micros),
            None => self.store.used(&row.id).await?,
        };
        let (restarting, crash_loops) = self.dying(&row.id).await?;
        let (sandboxes, states): (Vec<SandboxId>, Vec<SandboxState>) = belongings.sandboxes.into_iter().unzip();
        let state = match SessionState::of(states) {
            // A conversation waits for its next sandbox.
            SessionState::Ended if row.conversation.is_some() && row.deleted_at.is_none() => SessionState::Idle,
            state => state,
        };
        let (agent, external) = row.conversation.map(|known| (known.agent, known.external)).unzip();
        let (user, external_id) = external.flatten().map(|external| (external.user, external.id)).unzip();
        Ok(Session {
            id: row.id,
            name: row.marks.name,
            owner: row.owner,
            state,
            labels: row.marks.labels,
            parent: row.parent,
            agent,
            user,
            external_id,
            created_at: row.created_at,
            deleted_at: row.deleted_at,
            sandboxes,
            open_approvals: belongings.open_approvals,
            budget: SessionBudget { tokens_used, usd_used: budget::usd(micros), limits: row.limits },
            terminals: belongings.terminals,
            restarting,
            crash_loops,
        })
    }

    /// Waits until nobody else makes a session under this key: a repeat is to find all of it.
    async fn alone(self: &Arc<Self>, key: &IdempotencyKey) -> Alone {
        let key = (key.owner.clone(), key.key.clone());
        let mut keys = self.beginnings.subscribe();
        while !self.beginnings.send_if_modified(|keys| keys.insert(key.clone())) {
            // An error would mean that the sender is gone, which this holds.
            drop(keys.wait_for(|keys| !keys.contains(&key)).await);
        }
        Alone { inner: self.clone(), key }
    }

    /// Whatever came to be of one that failed.
    async fn take_back(&self, id: &SessionId, failed: &Problem) {
        let taken = match self.store.session(id).await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => self.end_session(id, owner::reason("start_failed", failed.detail.clone())).await,
            Err(error) => Err(error.into()),
        };
        if let Err(problem) = taken {
            tracing::error!(session = %id, %problem, "a session that failed is not deleted");
        }
    }

    /// Tells whoever waits for what went with it: its approvals and its tokens.
    pub(crate) fn session_deleted(&self, withdrawn: &[Approval]) {
        withdrawn.iter().for_each(|approval| self.gates.approvals.ended(approval));
        self.revoked.send_modify(|count| *count += 1);
    }

    /// The store deletes it when it is empty, so that a sandbox that joins meanwhile goes too.
    async fn end_session(&self, id: &SessionId, why: StateReason) -> Result<(), Problem> {
        loop {
            match self.store.delete_session(id).await? {
                Deletion::Inhabited(sandboxes) => {
                    try_join_all(sandboxes.iter().map(|sandbox| self.remove(sandbox, why.clone()))).await?;
                }
                Deletion::Now(withdrawn) => {
                    self.session_deleted(&withdrawn);
                    return Ok(());
                }
                Deletion::Before => return Ok(()),
            }
        }
    }

    pub(crate) async fn remove(&self, sandbox: &SandboxId, why: StateReason) -> Result<(), Problem> {
        let Some(handle) = self.registry.by_id(sandbox) else {
            // It has gone this very moment; or nobody is there who could delete it.
            let row = self.store.sandbox(sandbox).await?;
            return match row.is_none_or(|row| row.sandbox.state == SandboxState::Deleted) {
                true => Ok(()),
                false => Err(problem::shutting_down()),
            };
        };
        match handle.ask(|reply| Verb::Delete(why, reply)).await {
            Err(problem) if problem.code == Code::SandboxGone => Ok(()),
            answer => answer,
        }
    }

    /// In a task of its own, which a caller who goes away does not stop halfway.
    pub(crate) async fn whole<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        self.owners.spawn(work).await.map_err(|error| {
            tracing::error!(%error, "a session's verb panicked");
            Problem::new(Code::Internal, "The session's change was not finished.", "Look at the server's log.")
        })?
    }
}

/// What is to run in its terminal.
fn command(request: CreateSession) -> Option<StartProcess> {
    let CreateSession { command, terminal, cwd, restart, .. } = request;
    let terminal = Some(terminal.unwrap_or(DEFAULT_TERMINAL));
    command.map(|argv| StartProcess { argv, cwd, terminal, restart, ..StartProcess::default() })
}

fn check_request(request: &CreateSession) -> Result<(), Problem> {
    if let Some(name) = &request.name {
        check::session_name(name)?;
    }
    check::labels(&request.labels)?;
    let of_command = [
        ("terminal", request.terminal.is_some()),
        ("cwd", request.cwd.is_some()),
        ("restart", request.restart.is_some()),
    ];
    match (&request.command, of_command.into_iter().find(|(_, given)| *given)) {
        (None, Some((field, _))) => {
            return Err(Problem::new(
                Code::BadRequest,
                format!("There is a `{field}`, but no command that it could be for."),
                format!("Give a `command` too, or no `{field}`."),
            ));
        }
        (None, None) => {}
        (Some(argv), _) => check::argv(argv)?,
    }
    if let Some(cwd) = &request.cwd {
        check::path(cwd)?;
    }
    request.terminal.map_or(Ok(()), |size| process::terminal(size).map(drop))
}

fn cursor(text: &str) -> Result<SessionId, Problem> {
    text.parse().map_err(|_| {
        Problem::new(
            Code::BadCursor,
            format!("`{}` is not a cursor.", text.escape_debug()),
            "Pass `next_cursor` of the page before, unchanged, or none for the first page.",
        )
    })
}

pub(crate) fn not_yours() -> Problem {
    Problem::new(
        Code::Forbidden,
        "An agent's token sees its own session only.",
        "Name that session, or use another token.",
    )
}

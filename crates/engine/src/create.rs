//! Creating a sandbox: everything is checked first, then recorded, then made, by a task that a caller who goes away
//! does not stop halfway.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

use chrono::{DateTime, Utc};
use sandbar_api::{
    Code, CreateSandbox, HumanDuration, NetworkPolicy, NetworkRule, Problem, Role, Sandbox, SandboxState, SessionId,
    SetBudget, Snapshot, SnapshotId, Source, Template, WorkspaceSource, check, network, secret,
};
use sandbar_provider::{Made, Mark, Origin, Provider, Spec};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{
    Caller, CreateOutcome, Engine, Inner, clock, ids,
    owner::Owner,
    pool, problem,
    store::{self, Created, IdempotencyKey, NewSandbox, SandboxRow, gate::GateRow, sessions::SessionMarks},
    templates,
};

impl Engine {
    pub async fn create(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        key: Option<&str>,
    ) -> Result<CreateOutcome, Problem> {
        let key = key.map(|key| idempotency_key(caller, key, "", &request)).transpose()?;
        self.birth(caller, request, None, key).await
    }

    /// The session, if it is given, is a new one.
    pub(crate) async fn birth(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        session: Option<(SessionId, SessionMarks)>,
        key: Option<IdempotencyKey>,
    ) -> Result<CreateOutcome, Problem> {
        let begun = Instant::now();
        let (template, from) = self.recipe(&request).await?;
        self.inner.provider(&template.provider)?;
        let template = sized(template, &request)?;
        self.inner.check_gate(&template, &request)?;
        let default = match request.parent {
            Some(_) => SetBudget::default(),
            None => self.inner.gates.loaded().budget.clone(),
        };
        let mut new = plan(caller, request, template, from, key)?;
        if let Some(session) = session {
            (new.row.sandbox.session, new.marks) = session;
        }
        // What a session above spends is limited there.
        new.budget = new.budget.over(&default);
        self.inner.bear(new, begun).await
    }

    /// What it is to be made of: a template, or a snapshot with the template of its origin.
    async fn recipe(&self, request: &CreateSandbox) -> Result<(Template, Option<SnapshotId>), Problem> {
        let Some(from) = &request.from else {
            let name = request.template.as_deref().unwrap_or(templates::DEFAULT);
            return Ok((self.template(name).await?, None));
        };
        let row = self.inner.snapshot(from).await?;
        let Snapshot { id, name, template, .. } = row.snapshot;
        if request.template.as_ref().is_some_and(|asked| *asked != template) {
            return Err(Problem::new(
                Code::BadRequest,
                format!("The snapshot `{name}` is of the template `{template}`."),
                "Name no template: that of the snapshot is used.",
            ));
        }
        if request.workspace != WorkspaceSource::Empty {
            return Err(Problem::new(
                Code::BadRequest,
                format!("The snapshot `{name}` has a workspace of its own."),
                "Bind no directory, or create a sandbox without `from`.",
            ));
        }
        Ok((row.template, Some(id)))
    }
}

impl Inner {
    /// Makes what was planned, in a task of its own.
    pub(crate) async fn bear(self: &Arc<Self>, new: NewSandbox, begun: Instant) -> Result<CreateOutcome, Problem> {
        if self.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        let provider = self.provider(&new.row.template.provider)?;
        let inner = self.clone();
        let made = self.owners.spawn(async move { create(&inner, new, provider, begun).await });
        made.await.map_err(|error| {
            tracing::error!(%error, "creating a sandbox panicked");
            Problem::new(Code::Internal, "Creating the sandbox failed.", "Look at the server's log.")
        })?
    }
}

/// Checks everything that can be checked without changing anything.
pub(crate) fn plan(
    caller: &Caller,
    request: CreateSandbox,
    template: Template,
    from: Option<SnapshotId>,
    key: Option<IdempotencyKey>,
) -> Result<NewSandbox, Problem> {
    if let Some(name) = &request.name {
        check::name(name)?;
    }
    check::labels(&request.labels)?;
    check::env(&request.env)?;
    check_workspace(caller, &request.workspace)?;
    if request.parent.is_some() && request.session.is_some() {
        return Err(Problem::new(
            Code::BadRequest,
            "A sandbox of an existing session brings no parent: a session has the one it was made with.",
            "Name a session or a parent, not both.",
        ));
    }
    if request.session.is_some() && !request.budget.is_empty() {
        return Err(Problem::new(
            Code::BadRequest,
            "A sandbox of an existing session brings no budget: a session has the one that was set for it.",
            "Leave the budget out, and set the session's with `sandbar budget set`.",
        ));
    }
    request.budget.check()?;
    request.network.check()?;
    let rules = own_rules(&request.network)?;
    request.secrets.iter().try_for_each(|name| secret::check_name(name))?;
    let now = clock::now();
    let ttl = request.ttl.or(template.ttl);
    let id = ids::sandbox(now)?;
    let new_session = request.session.is_none();
    let session = request.session.map_or_else(|| ids::session(now), Ok)?;
    let sandbox = Sandbox {
        name: request.name.unwrap_or_else(|| ids::default_name(&id)),
        id,
        session,
        state: SandboxState::Creating,
        reason: None,
        template: template.name.clone(),
        provider: template.provider.clone(),
        labels: request.labels,
        env: request.env,
        workspace: request.workspace,
        from,
        created_at: now,
        changed_at: now,
        expires_at: ttl.map(|ttl| expiry(now, ttl)).transpose()?,
    };
    let budget = if new_session { request.budget.over(&template.budget) } else { SetBudget::default() };
    let gate = GateRow { rules, secrets: request.secrets, certificate: String::new(), key: Vec::new() };
    let (row, owner) = (SandboxRow { sandbox, template, lease: None }, caller.owner.clone());
    let marks = SessionMarks::default();
    Ok(NewSandbox { row, new_session, parent: request.parent, marks, budget, owner, gate, key })
}

/// The template with the limits that the request states.
fn sized(template: Template, request: &CreateSandbox) -> Result<Template, Problem> {
    request.limits.check()?;
    Ok(Template { limits: request.limits.over(&template.limits), ..template })
}

/// As they are stored: canonical, so that one added later is recognised.
fn own_rules(policy: &NetworkPolicy) -> Result<Vec<NetworkRule>, Problem> {
    let rule = |(effect, text)| {
        let rule = network::rule(text)?.text;
        Ok(NetworkRule { effect, rule, source: Source::Sandbox })
    };
    policy.rules().map(rule).collect()
}

fn check_workspace(caller: &Caller, workspace: &WorkspaceSource) -> Result<(), Problem> {
    let WorkspaceSource::Bind { path } = workspace else { return Ok(()) };
    if caller.role < Role::Admin {
        return Err(Problem::new(
            Code::Forbidden,
            "Binding a directory of the host needs the owner's socket or an admin token.",
            "Use an empty workspace and copy the files in, or ask an admin.",
        ));
    }
    let plain = |part: std::path::Component<'_>| part != std::path::Component::ParentDir;
    if !path.starts_with('/') || path.contains('\0') || !Path::new(path).components().all(plain) {
        return Err(Problem::new(
            Code::BadPath,
            format!("`{}` cannot be bound as the workspace.", path.escape_debug()),
            "Give the absolute path of a directory on the server's host, without `..`.",
        ));
    }
    Ok(())
}

/// What else than a sandbox is made says so, or equal bytes could be two requests.
pub(crate) fn idempotency_key(
    caller: &Caller,
    key: &str,
    what: &str,
    request: &impl Serialize,
) -> Result<IdempotencyKey, Problem> {
    if !(1..=255).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Problem::new(
            Code::BadRequest,
            "The Idempotency-Key is not usable.",
            "Use 1 to 255 visible ASCII characters, for example a UUID.",
        ));
    }
    // Fields come in declared order and maps sorted, so equal requests have equal bytes.
    let canonical = serde_json::to_vec(request).map_err(|error| {
        Problem::new(Code::BadRequest, format!("The request cannot be written as JSON: {error}."), "Report it.")
    })?;
    let digest = Sha256::new().chain_update(what).chain_update(canonical).finalize().into();
    Ok(IdempotencyKey { owner: caller.owner.clone(), key: key.to_owned(), digest })
}

/// When something made now and living that long ends.
pub(crate) fn expiry(now: DateTime<Utc>, ttl: HumanDuration) -> Result<DateTime<Utc>, Problem> {
    let after = chrono::TimeDelta::from_std(ttl.0).ok().filter(|after| !after.is_zero());
    after.and_then(|after| now.checked_add_signed(after)).ok_or_else(|| {
        Problem::new(
            Code::BadDuration,
            format!("A ttl of {ttl} cannot be meant."),
            "Give a ttl longer than zero, or none to keep it until it is deleted.",
        )
    })
}

/// The template's, then what is more specific.
pub(crate) fn merge<'a>(env: impl IntoIterator<Item = &'a BTreeMap<String, String>>) -> BTreeMap<String, String> {
    env.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What the provider is told of a sandbox.
pub(crate) fn spec(sandbox: &Sandbox, template: &Template) -> Spec {
    Spec {
        id: sandbox.id.clone(),
        hostname: sandbox.name.clone(),
        root: template.root.clone(),
        workspace: sandbox.workspace.clone(),
        layers: template.requirements(),
        user: template.user,
        limits: template.limits.clone(),
        from: sandbox.from.clone(),
        skills: template.skills.clone(),
        template: template.name.clone(),
        kubernetes: template.kubernetes.clone(),
        origin: None,
    }
}

/// The store has promised to keep it. If that cannot be written down, the next start does it.
pub(crate) async fn mark_kept(inner: &Inner, provider: &dyn Provider, made: Made<'_>, spec_origin: Option<Origin>) {
    let mark = Mark::Kept(spec_origin.unwrap_or_else(|| inner.origin()));
    if let Err(error) = provider.mark(made, &mark).await {
        tracing::warn!(id = %made, %error, "it is not marked as kept; the next start does it");
    }
}

pub(crate) async fn create(
    inner: &Arc<Inner>,
    mut new: NewSandbox,
    provider: Arc<dyn Provider>,
    begun: Instant,
) -> Result<CreateOutcome, Problem> {
    let gate = inner.gates.furnish(&mut new.gate, &new.row.sandbox.session, &new.row.template)?;
    let gate = match pool::claim(inner, &new, begun, gate).await {
        Ok(claimed) => return claimed,
        Err(gate) => gate,
    };
    let _busy = inner.pools.busy();
    let (row, budget) = (new.row.clone(), new.budget.clone());
    let spec = Spec { origin: Some(inner.origin()), ..spec(&row.sandbox, &row.template) };
    // Registered before it is committed, so that a replay of the same key finds the creation in flight.
    let mut owner = Owner::new(inner, row, provider, gate);
    // The kernel makes the sandbox while the disk takes the record. One that the record then refuses is removed again,
    // after a crash by the next start. A repeated key makes nothing, so it is looked up first; and what takes a cluster to
    // make is worth the wait, so that there is nothing on it that no record knows.
    let early = new.key.is_none() && !owner.handle.provider.is_elsewhere();
    let fresh = new.new_session && new.parent.is_none();
    let (recorded, made) = tokio::join!(inner.store.create_sandbox(new), async {
        if early { Some(owner.handle.provider.create(&spec).await) } else { None }
    });
    let refused = match recorded {
        Ok(Created::New(_)) => None,
        Ok(Created::Replayed(row)) => Some(Ok(row)),
        Err(error) => Some(Err(refusal(error))),
    };
    if let Some(refused) = refused {
        inner.registry.remove(&owner.handle);
        if let Err(error) = owner.handle.provider.destroy(&owner.handle.id).await {
            tracing::error!(sandbox = %owner.handle.id, %error, "a sandbox that was refused could not be removed");
        }
        return match refused {
            Ok(row) => replay(inner, row).await,
            Err(problem) => Err(problem),
        };
    }
    // So that nothing has to be looked up when its gate is opened.
    let _born = fresh.then(|| inner.gates.ledger.born(&owner.handle.session(), &budget));
    let made = match made {
        Some(made) => made,
        None => owner.handle.provider.create(&spec).await,
    };
    if made.is_ok() {
        mark_kept(inner, &*owner.handle.provider, Made::Sandbox(&spec.id), spec.origin).await;
    }
    inner.registry.insert_name(&owner.handle);
    inner.expiry.notify_one();
    let made = owner.created(made).await;
    match &made {
        Ok(_) => {
            inner.metrics.creates.inc();
            inner.metrics.create_seconds.observe(begun.elapsed().as_secs_f64());
        }
        Err(_) => drop(inner.metrics.creates_failed.inc()),
    }
    inner.owners.spawn(owner.run());
    made.map(|sandbox| CreateOutcome { sandbox, replayed: false })
}

pub(crate) fn refusal(error: store::Error) -> Problem {
    match error {
        store::Error::Missing(what) => Problem::new(
            Code::BadRequest,
            format!("There is no {what}."),
            "Name a session that exists, or none for a new one.",
        ),
        error => error.into(),
    }
}

/// What the key made before, once it is made.
pub(crate) async fn replay(inner: &Inner, row: SandboxRow) -> Result<CreateOutcome, Problem> {
    let mut sandbox = row.sandbox;
    // Its handle is asked even if the record says `ready`: a claim says so before it can be worked in.
    if let Some(handle) = inner.registry.by_id(&sandbox.id) {
        let mut record = handle.record.subscribe();
        sandbox = tokio::select! {
            made = record.wait_for(|sandbox| sandbox.state != SandboxState::Creating) => {
                made.map(|sandbox| sandbox.clone()).map_err(|_| problem::shutting_down())?
            }
            () = inner.closing.cancelled() => return Err(problem::shutting_down()),
        };
    } else if sandbox.state == SandboxState::Creating {
        sandbox = inner.store.sandbox(&sandbox.id).await?.map_or(sandbox, |row| row.sandbox);
    }
    let never_made =
        |reason: &&sandbar_api::StateReason| ["start_failed", "interrupted"].contains(&reason.code.as_str());
    match sandbox.reason.as_ref().filter(never_made) {
        Some(reason) if sandbox.state == SandboxState::Deleted => Err(Problem::new(
            Code::SandboxGone,
            format!("The sandbox of this Idempotency-Key could not be made: {}.", reason.detail.trim_end_matches('.')),
            "Correct the cause and use a new key.",
        )),
        _ => Ok(CreateOutcome { sandbox, replayed: true }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(role: Role) -> Caller {
        Caller { owner: "socket".into(), role, session: None }
    }

    fn planned(role: Role, request: CreateSandbox) -> Result<NewSandbox, Code> {
        plan(&caller(role), request, Template::default(), None, None).map_err(|problem| problem.code)
    }

    #[test]
    fn what_is_more_specific_wins() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (template, sandbox): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (map(&[("A", "1"), ("B", "1")]), map(&[("B", "2")]));
        assert_eq!(merge([&template, &sandbox]), map(&[("A", "1"), ("B", "2")]));
    }

    #[test]
    fn binding_needs_an_admin_and_a_plain_absolute_path() {
        let bind = |path: &str| CreateSandbox {
            workspace: WorkspaceSource::Bind { path: path.into() },
            ..CreateSandbox::default()
        };
        assert_eq!(planned(Role::Operator, bind("/srv/a")).err(), Some(Code::Forbidden));
        assert!(planned(Role::Admin, bind("/srv/a")).is_ok());
        for path in ["srv", "", "/a\0b", "/srv/../etc"] {
            assert_eq!(planned(Role::Admin, bind(path)).err(), Some(Code::BadPath), "{path:?}");
        }
    }

    #[test]
    fn lifetimes_and_names() {
        let with_ttl = |ttl: &str| CreateSandbox { ttl: ttl.parse().ok(), ..CreateSandbox::default() };
        assert_eq!(planned(Role::Operator, with_ttl("0s")).err(), Some(Code::BadDuration));
        let new = planned(Role::Operator, with_ttl("1h")).unwrap_or_else(|code| panic!("{code:?}"));
        let lifetime = new.row.sandbox.expires_at.map(|at| at - new.row.sandbox.created_at);
        assert_eq!(lifetime, Some(chrono::TimeDelta::hours(1)));
        assert!(new.new_session);
        let named = CreateSandbox { name: Some("No".into()), ..CreateSandbox::default() };
        assert_eq!(planned(Role::Operator, named).err(), Some(Code::BadName));
    }

    #[test]
    fn keys_are_visible_ascii_and_bound_to_the_body() {
        let request = CreateSandbox::default();
        let key = |key: &str, request: &CreateSandbox| {
            idempotency_key(&caller(Role::Operator), key, "", request).map_err(|problem| problem.code)
        };
        for text in ["", "a b", "ü", "a\n", &"k".repeat(256)] {
            assert_eq!(key(text, &request).err(), Some(Code::BadRequest), "{text:?}");
        }
        let other = CreateSandbox { name: Some("a".into()), ..CreateSandbox::default() };
        assert_eq!(key("k", &request), key("k", &request));
        assert_ne!(key("k", &request).map(|key| key.digest), key("k", &other).map(|key| key.digest));
    }
}

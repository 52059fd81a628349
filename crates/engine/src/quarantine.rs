//! What was found and is not known (`reconcile/strays`), as people see it and decide about it.

use std::{sync::Arc, time::Duration};

use chrono::Utc;
use sandbar_api::{
    AdoptQuarantined, Adopted, Code, Problem, ProcessId, QuarantineKind, Quarantined, Sandbox, SandboxId, SandboxState,
    SetBudget, Snapshot, SnapshotId, Template, WorkspaceSource, check,
};
use sandbar_provider::{Made, Mark, Provider, Quarantine, Spec};
use tokio::time::sleep;

use crate::{
    Caller, Engine, Inner, OpenError, clock, create,
    identity::Fit,
    ids, owner, problem,
    reconcile::{self, Circumstances, Found},
    store::{Created, NewSandbox, NewSnapshot, SandboxRow, SnapshotRow, gate::GateRow, sessions::SessionMarks},
};

/// How often the age of what is there is looked at.
const ROUND: Duration = Duration::from_secs(60 * 60);

/// One that a provider has.
struct Kept {
    provider: Arc<dyn Provider>,
    id: MadeId,
    /// Whether its guest is alive.
    running: bool,
    quarantine: Quarantine,
    /// What it was made by, where that was written down.
    spec: Option<Spec>,
}

enum MadeId {
    Sandbox(SandboxId),
    Snapshot(SnapshotId),
}

impl MadeId {
    fn made(&self) -> Made<'_> {
        match self {
            Self::Sandbox(id) => Made::Sandbox(id),
            Self::Snapshot(id) => Made::Snapshot(id),
        }
    }
}

impl Kept {
    fn shown(&self) -> Quarantined {
        Quarantined {
            id: self.id.made().to_string(),
            kind: match self.id {
                MadeId::Sandbox(_) => QuarantineKind::Sandbox,
                MadeId::Snapshot(_) => QuarantineKind::Snapshot,
            },
            provider: Some(self.provider.name().to_owned()),
            since: self.quarantine.since,
            reason: self.quarantine.reason.clone(),
            instance: self.quarantine.origin.as_ref().map(|origin| origin.instance.clone()),
            name: self.spec.as_ref().map(|spec| spec.hostname.clone()),
            template: self.spec.as_ref().map(|spec| spec.template.clone()),
        }
    }
}

impl Engine {
    /// Oldest first.
    pub async fn quarantined(&self) -> Result<Vec<Quarantined>, Problem> {
        self.inner.quarantined().await
    }

    /// It is this server's from now on: a sandbox as it is, running or stopped, in a session of its own; a snapshot to make
    /// sandboxes from.
    pub async fn adopt_quarantined(
        &self,
        caller: &Caller,
        id: &str,
        request: AdoptQuarantined,
    ) -> Result<Adopted, Problem> {
        if self.inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        if let Some(name) = &request.name {
            check::name(name)?;
        }
        if self.inner.quarantined_output(id).await?.is_some() {
            return Err(Problem::new(
                Code::Declined,
                format!("`{id}` is what a process wrote, and the process is not known any more."),
                format!("Read its segments in {}, or remove it.", self.inner.home.join("output").join(id).display()),
            ));
        }
        let kept = self.inner.find_quarantined(id).await?;
        match &kept.id {
            MadeId::Sandbox(id) => adopt_sandbox(&self.inner, caller, id, &kept, request).await.map(Adopted::Sandbox),
            MadeId::Snapshot(id) => {
                adopt_snapshot(&self.inner, caller, id, &kept, request).await.map(Adopted::Snapshot)
            }
        }
    }

    /// Ends it if it runs, and removes its files.
    pub async fn remove_quarantined(&self, id: &str) -> Result<(), Problem> {
        if self.inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        self.inner.remove_quarantined(id).await
    }
}

impl Inner {
    async fn quarantined(&self) -> Result<Vec<Quarantined>, Problem> {
        let output = self.store.quarantined_output().await?.into_iter().map(|(id, quarantine)| Quarantined {
            id: id.to_string(),
            kind: QuarantineKind::Output,
            provider: None,
            since: quarantine.since,
            reason: quarantine.reason,
            instance: None,
            name: None,
            template: None,
        });
        let mut all: Vec<_> = self.kept_by_providers().await?.iter().map(Kept::shown).chain(output).collect();
        all.sort_by(|one, other| (one.since, &one.id).cmp(&(other.since, &other.id)));
        Ok(all)
    }

    async fn kept_by_providers(&self) -> Result<Vec<Kept>, Problem> {
        let mut all = Vec::new();
        for provider in self.providers.values() {
            let sandboxes = provider.list().await.map_err(problem::from_provider)?;
            let sandboxes = sandboxes.into_iter().map(|one| (MadeId::Sandbox(one.id), one.running, one.mark));
            let snapshots = provider.snapshots().await.map_err(problem::from_provider)?;
            let snapshots = snapshots.into_iter().map(|one| (MadeId::Snapshot(one.id), false, one.mark));
            for (id, running, mark) in sandboxes.chain(snapshots) {
                if let Some(Mark::Quarantined(quarantine)) = mark {
                    let spec = provider.spec(id.made()).await.map_err(problem::from_provider)?;
                    all.push(Kept { provider: provider.clone(), id, running, quarantine, spec });
                }
            }
        }
        Ok(all)
    }

    async fn find_quarantined(&self, id: &str) -> Result<Kept, Problem> {
        let found = self.kept_by_providers().await?.into_iter().find(|kept| kept.id.made().to_string() == id);
        found.ok_or_else(|| {
            Problem::new(
                Code::UnknownQuarantined,
                format!("`{}` is not in quarantine.", id.escape_debug()),
                "Take an id of `sandbar quarantine ls`.",
            )
        })
    }

    async fn quarantined_output(&self, id: &str) -> Result<Option<ProcessId>, Problem> {
        let Ok(id) = id.parse::<ProcessId>() else { return Ok(None) };
        Ok(self.store.quarantined_output().await?.into_iter().map(|(process, _)| process).find(|found| *found == id))
    }

    async fn remove_quarantined(&self, id: &str) -> Result<(), Problem> {
        if let Some(process) = self.quarantined_output(id).await? {
            return Ok(self.store.remove_quarantined_output(&process).await?);
        }
        let kept = self.find_quarantined(id).await?;
        // Ours to remove from here on, also for a server that finds half of it.
        let made = kept.id.made();
        kept.provider.mark(made, &Mark::Begun(self.origin())).await.map_err(problem::from_provider)?;
        reconcile::remove(&*kept.provider, made).await.map_err(problem::from_provider)?;
        tracing::info!(%id, "removed from quarantine");
        Ok(())
    }

    /// The template it belongs to, with what cannot be changed about it any more.
    async fn template_of(&self, kept: &Kept, asked: Option<&str>) -> Result<Template, Problem> {
        let id = kept.id.made();
        let written = kept.spec.as_ref().map(|spec| spec.template.as_str());
        let name = asked.or(written).ok_or_else(|| {
            Problem::new(
                Code::BadRequest,
                format!("`{id}` does not say which template it was made from."),
                "Name the template.",
            )
        })?;
        let mut template = self.template(name).await?;
        if template.provider != kept.provider.name() {
            return Err(Problem::new(
                Code::BadRequest,
                format!("`{id}` is of the provider `{}`, the template `{name}` is not.", kept.provider.name()),
                "Name a template of that provider.",
            ));
        }
        if let Some(spec) = &kept.spec {
            template.root = spec.root.clone();
            template.user = spec.user;
            template.limits = spec.limits.clone();
            template.skills = spec.skills.clone();
            template.kubernetes = spec.kubernetes.clone();
        }
        Ok(template)
    }

    /// Its own name if nobody has it.
    async fn name_of(&self, id: &SandboxId, kept: &Kept, asked: Option<String>) -> Result<String, Problem> {
        if let Some(name) = asked {
            return Ok(name);
        }
        let own = kept.spec.as_ref().map(|spec| spec.hostname.clone()).filter(|name| check::name(name).is_ok());
        match own {
            Some(name) if self.store.sandbox_named(&name).await?.is_none() => Ok(name),
            _ => Ok(ids::default_name(id)),
        }
    }
}

/// Recorded first: a server that ends in between finds one that it knows.
async fn adopt_sandbox(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: &SandboxId,
    kept: &Kept,
    request: AdoptQuarantined,
) -> Result<Sandbox, Problem> {
    let template = inner.template_of(kept, request.template.as_deref()).await?;
    let now = clock::now();
    let sandbox = Sandbox {
        id: id.clone(),
        name: inner.name_of(id, kept, request.name).await?,
        session: ids::session(now)?,
        // One that runs is met like one that an earlier server left.
        state: if kept.running { SandboxState::Creating } else { SandboxState::Stopped },
        reason: Some(owner::reason("adopted", "It was in quarantine.")),
        template: template.name.clone(),
        provider: template.provider.clone(),
        labels: Default::default(),
        env: Default::default(),
        workspace: kept.spec.as_ref().map_or(WorkspaceSource::Empty, |spec| spec.workspace.clone()),
        from: None,
        // It was ready before.
        created_at: kept.quarantine.since.min(now - Duration::from_secs(1)),
        changed_at: now,
        expires_at: None,
    };
    let mut gate = GateRow { rules: Vec::new(), secrets: Vec::new(), certificate: String::new(), key: Vec::new() };
    inner.gates.furnish(&mut gate, &sandbox.session, &template)?;
    let new = NewSandbox {
        row: SandboxRow { sandbox, template, lease: None },
        new_session: true,
        parent: None,
        marks: SessionMarks::default(),
        budget: SetBudget::default(),
        owner: caller.owner.clone(),
        gate,
        key: None,
    };
    let (Created::New(row) | Created::Replayed(row)) =
        inner.store.create_sandbox(new).await.map_err(create::refusal)?;
    let mark = Mark::Kept(inner.origin());
    kept.provider.mark(Made::Sandbox(id), &mark).await.map_err(problem::from_provider)?;
    let found = if kept.running { Found::Running } else { Found::Files };
    let circumstances = Circumstances { same_boot: true, half_forked: false, fit: Fit::Same };
    let settled = reconcile::settle(inner, row, found, Vec::new(), circumstances).await;
    settled.map_err(|error| match error {
        OpenError::Store(error) => error.into(),
        error => Problem::new(Code::Internal, format!("{error}."), error.fix()),
    })?;
    let handle = inner.registry.by_id(id).ok_or_else(|| problem::unknown_sandbox(id.as_str()))?;
    tracing::info!(sandbox = %id, "adopted from quarantine");
    Ok(handle.sandbox())
}

async fn adopt_snapshot(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: &SnapshotId,
    kept: &Kept,
    request: AdoptQuarantined,
) -> Result<Snapshot, Problem> {
    let Some(spec) = &kept.spec else {
        return Err(Problem::new(
            Code::Declined,
            format!("`{id}` was taken by an earlier version, which did not write down what it is of."),
            "Put back the database that knows it; or copy its files from the home's `local/layers`.",
        ));
    };
    let template = inner.template_of(kept, request.template.as_deref()).await?;
    let snapshot = Snapshot {
        id: id.clone(),
        name: request.name.unwrap_or_else(|| ids::default_snapshot_name(id)),
        sandbox: spec.id.clone(),
        template: template.name.clone(),
        provider: template.provider.clone(),
        created_at: clock::now(),
        size: 0,
    };
    let row = SnapshotRow { snapshot, template, hidden: false, deleted: false };
    let new = NewSnapshot { row, owner: caller.owner.clone() };
    let row = inner.store.create_snapshot(new).await.map_err(problem::of_snapshot)?;
    let mark = Mark::Kept(inner.origin());
    kept.provider.mark(Made::Snapshot(id), &mark).await.map_err(problem::from_provider)?;
    tracing::info!(snapshot = %id, "adopted from quarantine");
    Ok(row.snapshot)
}

/// Removes what has been there for longer than the operator wants.
pub(crate) async fn expire(inner: Arc<Inner>, age: Duration) {
    loop {
        match inner.quarantined().await {
            Ok(all) => {
                let now = Utc::now();
                for one in all.iter().filter(|one| (now - one.since).to_std().is_ok_and(|old| old > age)) {
                    if let Err(problem) = inner.remove_quarantined(&one.id).await {
                        tracing::warn!(id = one.id, %problem, "what has been in quarantine for long is not removed yet");
                    }
                }
            }
            Err(problem) => tracing::warn!(%problem, "what is in quarantine cannot be listed"),
        }
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = sleep(ROUND) => {}
        }
    }
}

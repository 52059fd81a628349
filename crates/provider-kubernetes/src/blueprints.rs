//! The SandboxTemplates and SandboxWarmPools on the cluster: made when they are first needed, changed when somebody else
//! changed them, removed when nothing stands on them any more.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_sandbox::{AgentSandbox, SandboxWarmPool};
use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry, jiff::Timestamp};
use kube::{Api, ResourceExt as _, api::ListParams};
use sandbar_provider::{Error, Warm};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    Settings, failure,
    objects::{self, Blueprint, MANAGER, TEMPLATE},
};

/// Younger ones may be about to be claimed from.
const SETTLED: Duration = Duration::from_secs(60 * 60);

pub(crate) struct Blueprints {
    cluster: AgentSandbox,
    /// Those that are on the cluster, as far as we know; a claim that finds otherwise tells.
    known: Mutex<HashMap<String, Arc<OnceCell<()>>>>,
}

impl Blueprints {
    pub(crate) fn new(cluster: AgentSandbox) -> Self {
        Self { cluster, known: Mutex::default() }
    }

    /// Costs nothing from the second time on, and is done once however many ask at the same time.
    pub(crate) async fn ensure(&self, blueprint: &Blueprint) -> Result<(), Error> {
        let once = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(blueprint.name.clone()).or_default())
        };
        once.get_or_try_init(|| self.make(blueprint)).await.copied()
    }

    pub(crate) fn forget(&self, name: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    async fn make(&self, blueprint: &Blueprint) -> Result<(), Error> {
        self.make_template(blueprint).await?;
        // Its size is somebody else's word.
        if self.cluster.pools().get_opt(&blueprint.name).await.map_err(failure::told)?.is_none() {
            self.cluster.pools().apply(blueprint.pool(0), MANAGER).await.map_err(failure::told)?;
        }
        Ok(())
    }

    async fn make_template(&self, blueprint: &Blueprint) -> Result<(), Error> {
        let templates = self.cluster.templates();
        let found = templates.get_opt(&blueprint.name).await.map_err(failure::told)?;
        if found.is_none_or(|found| !has_all(&found.spec, &blueprint.template.spec)) {
            templates.apply(blueprint.template.clone(), MANAGER).await.map_err(failure::told)?;
        }
        Ok(())
    }

    /// Sets the size where it is another, and tells how many are ready.
    pub(crate) async fn pool(
        &self,
        blueprint: &Blueprint,
        size: u32,
        settings: &Settings,
        used: &HashSet<String>,
    ) -> Result<Warm, Error> {
        let pools = self.cluster.pools();
        let wanted = blueprint.pool(size);
        let mut found = pools.get_opt(&blueprint.name).await.map_err(failure::told)?;
        if found.as_ref().is_none_or(|found| found.spec.replicas != wanted.spec.replicas) {
            self.forget(&blueprint.name);
            self.make_template(blueprint).await?;
            found = Some(pools.apply(wanted, MANAGER).await.map_err(failure::told)?);
            self.retire(blueprint, settings, used).await?;
        }
        let ready = found.as_ref().and_then(|pool| pool.status.as_ref()).map_or(0, |status| status.ready_replicas);
        let ready = u32::try_from(ready).unwrap_or(0).min(size);
        let reason = if ready < size { self.trouble(&blueprint.name).await } else { None };
        Ok(Warm { ready, reason })
    }

    /// What a template was made into before it was changed. Sandboxes that were claimed from it keep it.
    async fn retire(&self, blueprint: &Blueprint, settings: &Settings, used: &HashSet<String>) -> Result<(), Error> {
        let Some(template) = blueprint.template.labels().get(TEMPLATE) else { return Ok(()) };
        let labels = format!("{},{TEMPLATE}={template}", objects::selector(settings));
        for old in self.cluster.pools().list(Some(&labels)).await.map_err(failure::told)? {
            let name = old.name_any();
            if name == blueprint.name {
                continue;
            }
            if old.spec.replicas != Some(0) {
                self.cluster.pools().scale(&name, 0).await.map_err(failure::told)?;
            }
            if !used.contains(&name) && is_ours(&old.metadata.managed_fields) {
                self.remove(&name).await?;
            }
        }
        Ok(())
    }

    /// Removes what no claim stands on and no pool is kept of. One that is wanted again is made again.
    pub(crate) async fn sweep(&self, settings: &Settings, used: impl Fn() -> HashSet<String>) -> Result<(), Error> {
        let pools = self.cluster.pools().list(Some(&objects::selector(settings))).await.map_err(failure::told)?;
        let now = Timestamp::now();
        for pool in pools {
            let name = pool.name_any();
            if is_left(&pool, now) && !used().contains(&name) {
                self.remove(&name).await?;
            }
        }
        Ok(())
    }

    /// The pool first: without its template it would complain.
    async fn remove(&self, name: &str) -> Result<(), Error> {
        self.forget(name);
        self.cluster.pools().delete(name, None).await.map_err(failure::told)?;
        self.cluster.templates().delete(name, None).await.map_err(failure::told)
    }

    /// The controller tells by an event alone that a pool does not fill up.
    async fn trouble(&self, pool: &str) -> Option<String> {
        let events: Api<Event> = Api::namespaced(self.cluster.client().clone(), self.cluster.namespace());
        let fields = format!("involvedObject.kind=SandboxWarmPool,involvedObject.name={pool}");
        let found = events.list(&ListParams::default().fields(&fields)).await.ok()?;
        let time = |event: &Event| {
            event.last_timestamp.as_ref().map(|time| time.0).or(event.event_time.as_ref().map(|time| time.0))
        };
        let last = found.items.into_iter().max_by_key(time)?;
        (last.reason.as_deref() == Some("WarmPoolNotProgressing")).then_some(last.message).flatten()
    }
}

fn is_left(pool: &SandboxWarmPool, now: Timestamp) -> bool {
    let age = pool.metadata.creation_timestamp.as_ref().map(|made| now.duration_since(made.0));
    let settled = age.is_some_and(|age| age.unsigned_abs() > SETTLED);
    pool.spec.replicas == Some(0) && settled && is_ours(&pool.metadata.managed_fields)
}

/// What an operator applied is the operator's to remove.
fn is_ours(fields: &Option<Vec<ManagedFieldsEntry>>) -> bool {
    let by_hand =
        |entry: &ManagedFieldsEntry| entry.manager.as_deref().is_some_and(|manager| manager.starts_with("kubectl"));
    let ours = |entry: &ManagedFieldsEntry| entry.manager.as_deref() == Some(MANAGER);
    fields.as_ref().is_some_and(|all| all.iter().any(ours) && !all.iter().any(by_hand))
}

/// Whether what is there is at least what we would have it be; an API server adds defaults.
fn has_all<T: Serialize>(found: &T, wanted: &T) -> bool {
    match (serde_json::to_value(found), serde_json::to_value(wanted)) {
        (Ok(found), Ok(wanted)) => holds(&found, &wanted),
        _ => false,
    }
}

fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| match found.get(key) {
                Some(found) => holds(found, wanted),
                // What is empty may be left out.
                None => {
                    wanted.as_array().is_some_and(Vec::is_empty) || wanted.as_object().is_some_and(|map| map.is_empty())
                }
            })
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| holds(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_no_difference_and_changes_are() {
        let wanted = json!({ "a": [{ "x": 1 }], "empty": [], "b": "text" });
        assert!(holds(&json!({ "a": [{ "x": 1, "default": true }], "b": "text", "more": {} }), &wanted));
        for other in [
            json!({ "a": [{ "x": 2 }], "b": "text" }),
            json!({ "a": [{ "x": 1 }, { "x": 9 }], "b": "text" }),
            json!({ "a": [{ "x": 1 }] }),
        ] {
            assert!(!holds(&other, &wanted), "{other}");
        }
    }

    #[test]
    fn only_what_we_made_and_nobody_keeps_is_left_over() {
        let entry =
            |manager: &str| ManagedFieldsEntry { manager: Some(manager.into()), ..ManagedFieldsEntry::default() };
        let pool = |replicas, managers: &[&str]| {
            let mut pool = SandboxWarmPool::default();
            pool.spec.replicas = Some(replicas);
            pool.metadata.creation_timestamp = Some(objects::expiry(Timestamp::UNIX_EPOCH, Duration::ZERO));
            pool.metadata.managed_fields = Some(managers.iter().map(|name| entry(name)).collect());
            pool
        };
        let late = Timestamp::from_second(1_000_000).unwrap_or_default();
        assert!(is_left(&pool(0, &["sandbar", "manager"]), late));
        assert!(!is_left(&pool(0, &["sandbar"]), Timestamp::UNIX_EPOCH), "too young");
        assert!(!is_left(&pool(2, &["sandbar"]), late), "kept");
        assert!(!is_left(&pool(0, &["sandbar", "kubectl-client-side-apply"]), late), "an operator's");
        assert!(!is_left(&pool(0, &["manager"]), late), "somebody else's");
    }
}

//! The objects of one kind in one namespace: read, written, deleted, waited for.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;

use crate::cache::Cache;
use crate::client::{AgentSandbox, answered};
use crate::error::{Error, Result};
use crate::follow::{Change, Follow};
use crate::resources::{Kind, Served, Version, alpha};

/// The objects of one kind in one namespace.
///
/// ```no_run
/// # async fn f(client: agent_sandbox::AgentSandbox) -> agent_sandbox::Result<()> {
/// for pool in client.pools().list(None).await? {
///     println!("{:?}: {:?}", pool.metadata.name, pool.status);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Collection<K: Kind> {
    pub(crate) client: AgentSandbox,
    pub(crate) api: Api<Served<K>>,
}

impl<K: Kind> Collection<K> {
    pub(crate) fn new(client: AgentSandbox) -> Self {
        let api = Api::namespaced_with(client.client().clone(), client.namespace(), &client.version());
        Self { client, api }
    }

    /// The object of this name.
    pub async fn get(&self, name: &str) -> Result<K> {
        Ok(self.answer(self.api.get(name).await)?.object)
    }

    /// The object of this name, if there is one.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>> {
        // Not that of the library, to which a cluster without the CRD has no such object.
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects, or those with these labels (`team=search,tier!=test`).
    pub async fn list(&self, labels: Option<&str>) -> Result<Vec<K>> {
        let params = ListParams { label_selector: labels.map(str::to_owned), ..ListParams::default() };
        Ok(self.answer(self.api.list(&params).await)?.into_iter().map(|one| one.object).collect())
    }

    /// Creates it. [`Error::AlreadyExists`] when the name is taken.
    pub async fn create(&self, object: K) -> Result<K> {
        let served = self.served(object).await?;
        let created = match self.client.version() {
            Version::V1Beta1 => self.api.create(&PostParams::default(), &served).await,
            Version::V1Alpha1 => self.create_strictly(&served).await,
        };
        Ok(self.answer(created)?.object)
    }

    /// Server-side apply: creates it, or makes the fields that it has its own. `manager` names who says so.
    pub async fn apply(&self, object: K, manager: &str) -> Result<K> {
        let mut served = self.served(object).await?;
        served.object.meta_mut().managed_fields = None;
        let name = served.name_any();
        let params = self.strict(PatchParams::apply(manager).force());
        Ok(self.answer(self.api.patch(&name, &params, &Patch::Apply(&served)).await)?.object)
    }

    /// JSON merge patch, in the words of the version that the cluster serves.
    pub async fn patch(&self, name: &str, patch: &Value) -> Result<K> {
        let params = self.strict(PatchParams::default());
        Ok(self.answer(self.api.patch(name, &params, &Patch::Merge(patch)).await)?.object)
    }

    /// Deletes it, in the foreground: it stays until everything that it owns is gone. One that does not exist is no
    /// error; one with another UID than this is [`Error::Conflict`].
    pub async fn delete(&self, name: &str, uid: Option<&str>) -> Result<()> {
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions,
            ..DeleteParams::default()
        };
        match self.answer(self.api.delete(name, &params).await) {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// [`Collection::delete`], and waits until it is gone.
    pub async fn delete_and_wait(&self, name: &str, uid: Option<&str>, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        self.delete(name, uid).await?;
        let mut follow = Follow::one(self.api.clone(), name, None);
        let pin = uid.map(str::to_owned);
        let what = || format!("deletion of {} {name}", K::KIND);
        loop {
            let Ok(change) = tokio::time::timeout_at(deadline, follow.next()).await else {
                return Err(Error::Timeout { what: what(), after: timeout, last: None });
            };
            let other = |one: &Served<K>| pin.is_some() && one.meta().uid != pin;
            match change {
                Change::Listed(objects, _) if objects.iter().all(other) => return Ok(()),
                Change::Applied(one) if other(&one) => return Ok(()),
                Change::Deleted(_) => return Ok(()),
                Change::Lost { error, hopeless: true } => return Err(error),
                _ => {}
            }
        }
    }

    /// An informer for those with these labels.
    pub fn cache(&self, labels: Option<&str>) -> Cache<K> {
        Cache::start(self.api.clone(), labels.map(str::to_owned))
    }

    /// Watches one object until `look` returns something. `from` is a version of it that `look` need not see again.
    pub(crate) async fn watch_one<T>(
        &self,
        target: &Target,
        timeout: Duration,
        what: &str,
        mut look: impl FnMut(&K) -> Option<Result<T>>,
        last: impl Fn(&K) -> Option<&Condition>,
    ) -> Result<T> {
        let deadline = Instant::now() + timeout;
        let mut follow = Follow::one(self.api.clone(), &target.name, target.from.clone());
        let mut seen = None;
        let deleted = || Error::Deleted { kind: K::KIND, name: target.name.clone() };
        loop {
            let Ok(change) = tokio::time::timeout_at(deadline, follow.next()).await else {
                return Err(Error::Timeout { what: format!("{what} of {}", target.name), after: timeout, last: seen });
            };
            let object = match target.find(change)? {
                Found::Nothing => continue,
                Found::Gone => return Err(deleted()),
                Found::Object(object) => object,
            };
            if let Some(result) = look(&object) {
                return result;
            }
            seen = last(&object).cloned().map(Box::new).or(seen);
        }
    }

    pub(crate) fn answer<T>(&self, result: kube::Result<T>) -> Result<T> {
        result.map_err(|error| answered(error, self.api.resource_url()))
    }

    /// Releases that serve `v1alpha1` differ in their fields: one that is unknown there is to be refused, not dropped.
    fn strict(&self, params: PatchParams) -> PatchParams {
        match self.client.version() {
            Version::V1Beta1 => params,
            Version::V1Alpha1 => params.validation_strict(),
        }
    }

    async fn create_strictly(&self, object: &Served<K>) -> kube::Result<Served<K>> {
        let url = format!("{}?fieldValidation=Strict", self.api.resource_url());
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = hyper::Request::post(url).header(hyper::header::CONTENT_TYPE, "application/json").body(body);
        self.client.client().request(request.map_err(kube::Error::HttpError)?).await
    }

    async fn served(&self, object: K) -> Result<Served<K>> {
        let version = self.client.version();
        let mut served = Served { object, version, template: None };
        if version == Version::V1Alpha1 {
            served.template = self.template_of(&served.object).await?;
            let mut value = serde_json::to_value(&served.object).map_err(kube::Error::SerdeError)?;
            K::to_alpha(&mut value, served.template.as_deref())
                .map_err(|field| Error::NotInVersion { field, version })?;
        }
        Ok(served)
    }

    /// An old claim names its template, so the pool is asked for it.
    async fn template_of(&self, object: &K) -> Result<Option<String>> {
        let value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        let Some(pool) = value["spec"]["warmPoolRef"]["name"].as_str() else { return Ok(None) };
        if alpha::shadowed(pool).is_some() {
            return Ok(None);
        }
        match self.client.pools().get_opt(pool).await? {
            Some(pool) => Ok(Some(pool.spec.sandbox_template_ref.name)),
            None => Err(Error::WarmPoolNotFound {
                claim: object.name_any(),
                message: format!("SandboxWarmPool {pool:?} not found"),
            }),
        }
    }
}

/// One object, pinned by its UID so that another one under the same name is not taken for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
    pub(crate) from: Option<String>,
}

pub(crate) enum Found<K> {
    Nothing,
    Object(Box<K>),
    Gone,
}

impl Target {
    /// What a change says about the target; an error when waiting longer cannot help.
    pub(crate) fn find<K: Kind>(&self, change: Change<Served<K>>) -> Result<Found<K>> {
        let ours = |one: &Served<K>| self.uid.is_none() || one.meta().uid == self.uid;
        let found = match change {
            Change::Listed(objects, _) => match objects.into_iter().find(ours) {
                Some(one) => Found::Object(Box::new(one.object)),
                None => Found::Gone,
            },
            Change::Applied(one) if ours(&one) => Found::Object(Box::new(one.object)),
            Change::Applied(_) => Found::Gone,
            Change::Deleted(one) if ours(&one) => Found::Gone,
            Change::Lost { error, hopeless: true } => return Err(error),
            Change::Deleted(_) | Change::Lost { .. } | Change::Resumed => Found::Nothing,
        };
        Ok(found)
    }
}

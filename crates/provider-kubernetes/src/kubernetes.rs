//! The Provider itself: a claim for each sandbox, and one watch from which everything about them is known.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use agent_sandbox::{AgentSandbox, ClaimCache, SandboxClaim, View};
use async_trait::async_trait;
use sandbar_api::{ClusterCheck, ClusterReport, InstanceId, LayerReport, SandboxId, Storage, network::GATE_PORT};
use sandbar_provider::{
    Error, Found, Gate, Guest, HostReport, Made, Mark, Provider, Spec, Warm, identity::Identity, relay::relay,
};
use tokio::{task::AbortHandle, time::timeout};

use crate::{
    Settings,
    blueprints::Blueprints,
    check, failure, inspect, keep,
    life::{self, Life, Place},
    objects::{self, Blueprint},
    open, ownership, probe,
    reach::{Met, Way},
    settle::{self, Asked},
};

/// How long a verb waits for a view that is not current.
const BLIND: Duration = Duration::from_secs(20);
pub(crate) const NAME: &str = "kubernetes";

/// Makes sandboxes on a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Kubernetes {
    pub(crate) shared: Arc<Shared>,
    _keep: Arc<Keep>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// Whose claims these are; unknown to those who serve no store.
    pub(crate) store: OnceLock<InstanceId>,
    pub(crate) identity: Identity,
    pub(crate) cluster: AgentSandbox,
    pub(crate) claims: ClaimCache,
    pub(crate) blueprints: Blueprints,
    pub(crate) way: Way,
    /// What is known to listen in the cluster, and must be out of a sandbox's reach.
    pub(crate) targets: Vec<String>,
    /// The guests that were met, until their sandboxes are stopped.
    pub(crate) met: Mutex<HashMap<SandboxId, Met>>,
    /// Blueprints and nodes whose sandboxes were seen to reach nothing.
    closed: Mutex<HashSet<(String, String)>>,
}

/// The work that goes on while anybody holds the provider.
struct Keep(AbortHandle);

impl Drop for Keep {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubernetes {
    /// Opens the provider, which from now on follows its claims and keeps them from expiring.
    pub async fn open(settings: Settings, identity: Identity) -> Result<Self, Error> {
        let open::Opened { cluster, way, targets } = open::open(&settings).await?;
        let claims = cluster.claims().cache(Some(&objects::selector(&settings)));
        let shared = Arc::new(Shared {
            blueprints: Blueprints::new(cluster.clone()),
            settings,
            store: OnceLock::new(),
            identity,
            cluster,
            claims,
            way,
            targets,
            met: Mutex::default(),
            closed: Mutex::default(),
        });
        let task = tokio::spawn(keep::keep(Arc::clone(&shared)));
        Ok(Self { shared, _keep: Arc::new(Keep(task.abort_handle())) })
    }

    /// The claim of a sandbox that is there; `Unknown` otherwise.
    pub(crate) async fn claim(&self, id: &SandboxId) -> Result<Arc<SandboxClaim>, Error> {
        self.shared.seeing().await?;
        let claim = self.shared.claims.get(id.as_str()).filter(|claim| life::of(claim) != Life::Going);
        claim.ok_or_else(|| Error::Unknown(id.clone()))
    }

    /// Its place, if its guest may be there.
    async fn place(&self, id: &SandboxId) -> Result<Place, Error> {
        // Neither a node that is slow to answer nor an API server that is away takes a guest from us that was met.
        let met = self.shared.met().get(id).map(|met| met.place.clone());
        if let (Some(place), Some(claim)) = (met, self.shared.claims.get(id.as_str()))
            && !life::is_over(Some(&claim), &place)
        {
            return Ok(place);
        }
        let claim = self.claim(id).await?;
        if let Some(place) = life::whereabouts(&claim) {
            return Ok(place);
        }
        match life::of(&claim) {
            Life::Coming { message, .. } | Life::Failed { message, .. } => {
                Err(failure::not_running(id, format!("it is not running: {message}")))
            }
            Life::Ready(_) | Life::Suspended { .. } | Life::Going => Err(failure::not_running(id, "it is not running")),
        }
    }
}

impl Shared {
    pub(crate) fn met(&self) -> MutexGuard<'_, HashMap<SandboxId, Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self, node: &(String, String)) -> bool {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).contains(node)
    }

    pub(crate) fn closed(&self, node: (String, String)) {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }

    /// Returns when what is known is current. Never is told what was not observed.
    pub(crate) async fn seeing(&self) -> Result<(), Error> {
        if timeout(BLIND, self.claims.current()).await.is_ok() {
            return Ok(());
        }
        Err(match self.claims.view() {
            View::Disconnected(error) => failure::blind(&error.to_string()),
            _ => failure::blind("the API server does not answer"),
        })
    }
}

#[async_trait]
impl Provider for Kubernetes {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn probe(&self) -> HostReport {
        probe::probe(&self.shared).await
    }

    async fn check(&self, asked: &ClusterCheck) -> Option<ClusterReport> {
        Some(check::apart(self.shared.settings.clone(), asked.clone()).await)
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        let blueprint = Blueprint::of(spec, &self.shared.settings)?;
        if self.shared.claims.get(spec.id.as_str()).is_some_and(|claim| life::of(&claim) != Life::Going) {
            return self.start(spec).await;
        }
        if let Asked::Found(claim) = settle::ask(self, spec, &blueprint).await? {
            return settle::start(self, spec, &blueprint, &claim).await;
        }
        let made = settle::usable(self, spec, &blueprint, None).await;
        if made.is_err()
            && let Err(error) = self.destroy(&spec.id).await
        {
            // The engine does not know it, so that its next look at what there is removes it.
            tracing::warn!(sandbox = %spec.id, %error, "what is left of a sandbox could not be removed yet");
        }
        made
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        let blueprint = Blueprint::of(spec, &self.shared.settings)?;
        let claim = self.claim(&spec.id).await?;
        settle::start(self, spec, &blueprint, &claim).await
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn keeps_pools(&self) -> bool {
        true
    }

    async fn pool(&self, spec: &Spec, size: u32) -> Result<Warm, Error> {
        let blueprint = Blueprint::of(spec, &self.shared.settings)?;
        self.shared.seeing().await?;
        let used = self.shared.claims.list().iter().map(|claim| claim.spec.warm_pool_ref.name.clone()).collect();
        self.shared.blueprints.pool(&blueprint, size, &self.shared.settings, &used).await
    }

    async fn inspect(&self, spec: &Spec) -> Result<Vec<LayerReport>, Error> {
        let place = self.place(&spec.id).await?;
        let guest = self.connect(&spec.id).await?;
        inspect::inspect(self, spec, &place, &guest).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), Error> {
        let claim = self.claim(id).await?;
        if life::storage(&claim) == Storage::Ephemeral {
            return Err(Error::Declined { provider: NAME, verb: "stop, without losing the files of," });
        }
        settle::stop(self, id, &claim).await
    }

    /// Its deletion ends it, and is the one request that this takes.
    async fn end(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    fn keeps_files(&self, spec: &Spec) -> bool {
        spec.kubernetes.storage == Storage::Persistent
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        self.shared.met().remove(id);
        settle::destroy(self, id).await
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        self.shared.seeing().await?;
        let found = self.shared.claims.list().into_iter().filter_map(|claim| {
            let id = claim.metadata.name.as_deref()?.parse().ok()?;
            let running = life::whereabouts(&claim).is_some();
            (life::of(&claim) != Life::Going).then(|| Found { id, running, mark: ownership::of(&claim) })
        });
        Ok(found.collect())
    }

    fn serve(&self, instance: &InstanceId) {
        // Told once; a second store would be a second server.
        drop(self.shared.store.set(instance.clone()));
    }

    async fn mark(&self, made: Made<'_>, mark: &Mark) -> Result<(), Error> {
        match made {
            Made::Sandbox(id) => {
                let claim = self.claim(id).await?;
                ownership::mark(self, id, &claim, mark).await
            }
            Made::Snapshot(_) => Ok(()),
        }
    }

    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error> {
        let place = self.place(id).await?;
        Ok(self.meet_again(id, &place).await?.guest)
    }

    async fn gate(&self, id: &SandboxId) -> Result<Gate, Error> {
        let place = self.place(id).await?;
        let met = self.meet_again(id, &place).await?;
        let guest = self.shared.connect_gate(&met).await.map_err(|error| error.of(id))?;
        Ok(Gate::Relay(relay(guest, GATE_PORT)))
    }

    async fn gone(&self, id: &SandboxId) -> Result<(), Error> {
        let met = self.shared.met().get(id).map(|met| (met.place.clone(), met.replaced.clone()));
        let (place, replaced) = match met {
            Some((place, replaced)) => (place, Some(replaced)),
            None => match self.claim(id).await.map(|claim| life::place(&claim)) {
                Ok(Some(place)) => (place, None),
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        let over = self.shared.claims.wait(id.as_str(), |claim| life::is_over(claim, &place).then_some(()));
        let replaced = async {
            match replaced {
                Some(replaced) => replaced.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over => {}
            () = replaced => {}
        }
        Ok(())
    }
}

//! A provider whose guests follow a script instead of running commands: enough of the protocol to show what the engine
//! does with a guest that answers, dies, or outlives the engine. What real guests do is shown with real ones.

mod asking;
pub(super) mod dial;
mod guest;
pub(super) mod kernel;
mod runtimes;
mod search;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use sandbar_api::{LayerReport, SandboxId, SnapshotId};
use sandbar_guest::protocol::guest_server::GuestServer;
use sandbar_provider::{
    Counters, Error, Found, FoundSnapshot, Gate, Guest as Client, HostReport, Made, Mark, Provider, Spec, Warm,
};
use tokio::{net::UnixListener, sync::watch};

pub(super) use asking::Fault;
pub(super) use guest::{Script, exit, forget};
use kernel::Kernel;

pub(super) struct Scripted {
    name: &'static str,
    root: PathBuf,
    pub(super) kernel: Kernel,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    /// What the next `create` or `start` fails with.
    pub(super) broken: Mutex<Option<Error>>,
    /// What the next `destroy` does besides, such as making room.
    pub(super) destroys: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// How long a `create` takes, in milliseconds: long enough for others to come in between.
    pub(super) pace: AtomicU64,
    /// Whether a `create` waits until this is false.
    pub(super) held: watch::Sender<bool>,
    /// Creates that have not ended.
    pub(super) creating: AtomicU64,
    pub(super) connections: AtomicU64,
    /// What was bound, in order.
    pub(super) bound: Mutex<Vec<Spec>>,
    /// What the next `bind` fails with.
    pub(super) unbindable: Mutex<Option<Error>>,
    pub(super) own_pools: OwnPools,
    /// Whether files go with the guest.
    pub(super) forgetful: AtomicBool,
    /// Whether nothing can be removed for now.
    pub(super) stuck: AtomicBool,
    /// By id, of sandboxes and snapshots.
    pub(super) marks: Mutex<HashMap<String, Mark>>,
    specs: Mutex<HashMap<String, Spec>>,
    /// What the next gates are; without one, sandboxes have none.
    pub(super) gates: Mutex<Vec<Gate>>,
}

/// Of a provider that keeps its pools itself.
#[derive(Default)]
pub(super) struct OwnPools {
    pub(super) on: AtomicBool,
    /// Template and size, in the order they were told.
    pub(super) told: Mutex<Vec<(String, u32)>>,
    /// How often it was told something, in vain too.
    pub(super) asked: AtomicU32,
    pub(super) ready: AtomicU32,
    pub(super) broken: AtomicBool,
    /// The size that takes until this is something else.
    pub(super) held: watch::Sender<Option<u32>>,
}

pub(super) struct Sandbox {
    pub(super) guest: Script,
    running: watch::Sender<bool>,
}

impl Scripted {
    pub(super) fn new(root: PathBuf) -> Arc<Self> {
        Self::called("local", root)
    }

    pub(super) fn called(name: &'static str, root: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            name,
            root,
            kernel: Kernel::default(),
            sandboxes: Mutex::default(),
            broken: Mutex::default(),
            destroys: Mutex::default(),
            pace: AtomicU64::new(20),
            held: watch::Sender::new(false),
            creating: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            bound: Mutex::default(),
            unbindable: Mutex::default(),
            own_pools: OwnPools::default(),
            forgetful: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            marks: Mutex::default(),
            specs: Mutex::default(),
            gates: Mutex::default(),
        })
    }

    pub(super) fn get(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        lock(&self.sandboxes).get(id).cloned()
    }

    /// Each, and whether it runs.
    pub(super) fn all(&self) -> Vec<(SandboxId, bool)> {
        let one = |(id, sandbox): (&SandboxId, &Arc<Sandbox>)| (id.clone(), *sandbox.running.borrow());
        lock(&self.sandboxes).iter().map(one).collect()
    }

    /// What it was asked to make.
    pub(super) fn spec_of(&self, id: &SandboxId) -> Option<Spec> {
        lock(&self.specs).get(id.as_str()).cloned()
    }

    pub(super) fn mark_of(&self, id: &str) -> Option<Mark> {
        lock(&self.marks).get(id).cloned()
    }

    fn begin(&self, id: String, spec: Spec) {
        if let Some(origin) = spec.origin.clone() {
            lock(&self.marks).insert(id.clone(), Mark::Begun(origin));
        }
        lock(&self.specs).insert(id, spec);
    }

    fn forget(&self, id: &str) {
        lock(&self.marks).remove(id);
        lock(&self.specs).remove(id);
    }

    /// The guest dies by itself.
    pub(super) fn die(&self, id: &SandboxId) {
        if let Some(sandbox) = self.get(id) {
            sandbox.running.send_replace(false);
        }
    }

    /// The guest runs on, but nobody reaches it any more.
    pub(super) fn cut_off(&self, id: &SandboxId) -> std::io::Result<()> {
        std::fs::remove_file(self.root.join(id.as_str()))
    }

    /// Listens until `running` turns false, on a thread of its own, so that its connections die with it.
    fn launch(&self, id: &SandboxId) -> std::io::Result<()> {
        self.kernel.launches(id);
        let path = self.root.join(id.as_str());
        drop(std::fs::remove_file(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let (running, mut end) = watch::channel(true);
        let guest = Script::of(id);
        let sandbox = Arc::new(Sandbox { guest: guest.clone(), running });
        lock(&self.sandboxes).insert(id.clone(), sandbox);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener)?;
                tokio::select! {
                    _ = end.wait_for(|running| !*running) => {}
                    served = serve(listener, guest) => served?,
                }
                std::io::Result::Ok(())
            })
        });
        Ok(())
    }
}

async fn serve(listener: UnixListener, guest: Script) -> std::io::Result<()> {
    loop {
        let stream = TokioIo::new(listener.accept().await?.0);
        let service = TowerToHyperService::new(GuestServer::new(guest.clone()));
        tokio::spawn(async move {
            auto::Builder::new(TokioExecutor::new()).http2_only().serve_connection(stream, service).await
        });
    }
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn probe(&self) -> HostReport {
        HostReport { provider: "local".into(), findings: vec![] }
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        self.creating.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.pace.load(Ordering::Relaxed))).await;
        drop(self.held.subscribe().wait_for(|held| !*held).await);
        self.creating.fetch_sub(1, Ordering::SeqCst);
        if let Some(error) = lock(&self.broken).take() {
            return Err(error);
        }
        self.kernel.may_launch()?;
        self.kernel.creates(spec)?;
        self.begin(spec.id.to_string(), spec.clone());
        self.launch(&spec.id).map_err(Error::io("start the script"))
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        self.get(&spec.id).ok_or_else(|| Error::Unknown(spec.id.clone()))?;
        if let Some(error) = lock(&self.broken).take() {
            return Err(error);
        }
        self.kernel.may_launch()?;
        self.launch(&spec.id).map_err(Error::io("start the script"))
    }

    async fn bind(&self, spec: &Spec) -> Result<(), Error> {
        if let Some(error) = lock(&self.unbindable).take() {
            return Err(error);
        }
        lock(&self.bound).push(spec.clone());
        Ok(())
    }

    fn keeps_pools(&self) -> bool {
        self.own_pools.on.load(Ordering::SeqCst)
    }

    async fn pool(&self, spec: &Spec, size: u32) -> Result<Warm, Error> {
        self.own_pools.asked.fetch_add(1, Ordering::SeqCst);
        if self.own_pools.broken.load(Ordering::SeqCst) {
            return Err(Error::Io { action: "reach the cluster".into(), source: std::io::ErrorKind::TimedOut.into() });
        }
        let mut held = self.own_pools.held.subscribe();
        drop(held.wait_for(|held| *held != Some(size)).await);
        lock(&self.own_pools.told).push((spec.template.clone(), size));
        Ok(Warm { ready: self.own_pools.ready.load(Ordering::SeqCst).min(size), reason: Some("slowly".into()) })
    }

    fn keeps_files(&self, _spec: &Spec) -> bool {
        !self.forgetful.load(Ordering::SeqCst)
    }

    async fn inspect(&self, spec: &Spec) -> Result<Vec<LayerReport>, Error> {
        let (layer, evidence) = (sandbar_api::Layer::Seccomp, format!("Seccomp: 2 in {}", spec.hostname));
        let requirement = spec.requirement(layer);
        Ok(vec![LayerReport { layer, requirement, in_force: true, evidence, fix: None }])
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), Error> {
        self.kernel.freeze(id)
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), Error> {
        self.kernel.thaw(id)
    }

    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, Error> {
        let sandbox = self.get(id).ok_or_else(|| Error::Unknown(id.clone()))?;
        let running = *sandbox.running.borrow();
        if running && sandbox.guest.changes() > 0 {
            let (what, cause) = ("it".to_owned(), "its files are being changed".to_owned());
            return Err(Error::BadSpec { what, cause, fix: "Wait for the end of that.".into() });
        }
        let size = self.kernel.snapshot(id, running, snapshot)?;
        let spec = lock(&self.specs).get(id.as_str()).cloned();
        if let Some(mut spec) = spec {
            spec.origin = self.mark_of(id.as_str()).as_ref().and_then(Mark::origin).cloned();
            self.begin(snapshot.to_string(), spec);
        }
        Ok(size)
    }

    async fn discard(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        self.kernel.discard(snapshot)?;
        self.forget(snapshot.as_str());
        Ok(())
    }

    async fn snapshots(&self) -> Result<Vec<FoundSnapshot>, Error> {
        let found = |id: SnapshotId| FoundSnapshot { mark: self.mark_of(id.as_str()), id };
        Ok(self.kernel.snapshots().into_iter().map(found).collect())
    }

    async fn mark(&self, made: Made<'_>, mark: &Mark) -> Result<(), Error> {
        if let Made::Sandbox(id) = made {
            self.get(id).ok_or_else(|| Error::Unknown(id.clone()))?;
        }
        lock(&self.marks).insert(made.to_string(), mark.clone());
        Ok(())
    }

    async fn spec(&self, made: Made<'_>) -> Result<Option<Spec>, Error> {
        Ok(lock(&self.specs).get(&made.to_string()).cloned())
    }

    async fn counters(&self, id: &SandboxId) -> Result<Counters, Error> {
        Ok(self.kernel.counters(id))
    }

    async fn refused_fork(&self, id: &SandboxId) -> Result<(), Error> {
        self.kernel.refused(id).notified().await;
        Ok(())
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), Error> {
        self.die(id);
        self.kernel.set_still(id, false);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        if self.stuck.load(Ordering::SeqCst) {
            return Err(Error::Cluster { cause: "it does not answer".into(), fix: "Wait.".into() });
        }
        self.stop(id).await?;
        lock(&self.sandboxes).remove(id);
        self.forget(id.as_str());
        if let Some(also) = lock(&self.destroys).take() {
            also();
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        let found = |(id, sandbox): (&SandboxId, &Arc<Sandbox>)| Found {
            id: id.clone(),
            running: *sandbox.running.borrow(),
            mark: self.mark_of(id.as_str()),
        };
        Ok(lock(&self.sandboxes).iter().map(found).collect())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Client, Error> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.kernel.shyness()).await;
        let address = format!("unix://{}", self.root.join(id.as_str()).display());
        let unreachable =
            |error: tonic::transport::Error| Error::Unreachable { id: id.clone(), cause: error.to_string() };
        let endpoint = tonic::transport::Endpoint::from_shared(address).map_err(unreachable)?;
        Ok(Client::new(endpoint.connect().await.map_err(unreachable)?))
    }

    async fn gate(&self, _: &SandboxId) -> Result<Gate, Error> {
        lock(&self.gates).pop().ok_or(Error::Declined { provider: self.name, verb: "open a gate for" })
    }

    async fn gone(&self, id: &SandboxId) -> Result<(), Error> {
        let sandbox = self.get(id).ok_or_else(|| Error::Unknown(id.clone()))?;
        drop(sandbox.running.subscribe().wait_for(|running| !*running).await);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

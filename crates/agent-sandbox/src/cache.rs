//! An informer: one list and one watch for all who want to know about the objects of a selector.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Resource, ResourceExt};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;

use crate::error::Error;
use crate::follow::{Change, Follow};
use crate::resources::{Kind, Sandbox, SandboxClaim, SandboxWarmPool, Served};

/// Changes that a slow reader may lag behind before it is told to look at everything.
const BACKLOG: usize = 1024;

/// All claims of a selector, see [`Cache`].
pub type ClaimCache = Cache<SandboxClaim>;
/// All sandboxes of a selector, see [`Cache`].
pub type SandboxCache = Cache<Sandbox>;
/// All pools of a selector, see [`Cache`].
pub type PoolCache = Cache<SandboxWarmPool>;

/// The objects of one kind, namespace and label selector, kept current by one watch however many wait.
///
/// It resumes after a dropped stream, lists again after 410, and comes back with growing delays after an outage.
/// Clones share the watch, which ends with the last of them.
///
/// ```no_run
/// # async fn f(client: agent_sandbox::AgentSandbox) -> agent_sandbox::Result<()> {
/// use agent_sandbox::{ClaimBuilder, ClaimState};
///
/// let claims = client.claims().cache(Some("team=search"));
/// let claimed = client.claim(ClaimBuilder::generated("python").label("team", "search")).await?;
/// claims.remember(claimed.claim.clone());
/// let address = claims
///     .wait(&claimed.name, |claim| match claim.map(|claim| claim.state()) {
///         None => Some(Err("deleted".to_owned())),
///         Some(ClaimState::Ready(sandbox)) => Some(Ok(sandbox.pod_ips.clone())),
///         Some(ClaimState::Failed(error)) => Some(Err(error.to_string())),
///         Some(ClaimState::Pending(_)) => None,
///     })
///     .await;
/// # let _ = address; Ok(()) }
/// ```
pub struct Cache<K: Kind> {
    shared: Arc<Shared<K>>,
    _watch: Arc<Watch>,
}

impl<K: Kind> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), _watch: self._watch.clone() }
    }
}

/// How current a [`Cache`] is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum View {
    /// Nothing has been listed yet.
    Starting,
    /// What it has is what there is.
    Current,
    /// What it has is what there was; it keeps trying.
    Disconnected(Arc<Error>),
}

impl View {
    /// Whether it is [`View::Current`].
    pub fn is_current(&self) -> bool {
        matches!(self, Self::Current)
    }
}

/// What a reader of [`Cache::changes`] should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The object of this name is new, different or gone.
    Object(String),
    /// Anything may have changed.
    Everything,
}

/// What happens in a [`Cache`], as it happens.
pub struct Changes(broadcast::Receiver<Changed>);

impl Changes {
    /// The next change; `None` once the cache is gone.
    pub async fn next(&mut self) -> Option<Changed> {
        match self.0.recv().await {
            Ok(changed) => Some(changed),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Changed::Everything),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    view: watch::Sender<View>,
    changes: broadcast::Sender<Changed>,
}

struct State<K> {
    objects: HashMap<String, Arc<K>>,
    /// Created by us and not yet seen by the watch: absence in a list older than them proves nothing.
    expected: HashMap<String, Arc<K>>,
    waiters: HashMap<String, Arc<Notify>>,
    listed: bool,
}

impl<K: Kind> Cache<K> {
    pub(crate) fn start(api: kube::Api<Served<K>>, labels: Option<String>) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                objects: HashMap::new(),
                expected: HashMap::new(),
                waiters: HashMap::new(),
                listed: false,
            }),
            view: watch::Sender::new(View::Starting),
            changes: broadcast::Sender::new(BACKLOG),
        });
        let task = tokio::spawn(keep(shared.clone(), Follow::labels(api, labels)));
        Self { shared, _watch: Arc::new(Watch(task.abort_handle())) }
    }

    /// The object of this name, as last heard.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.shared.lock().objects.get(name).cloned()
    }

    /// All objects, as last heard.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.lock().objects.values().cloned().collect()
    }

    /// How current that is.
    pub fn view(&self) -> View {
        self.shared.view.borrow().clone()
    }

    /// Tells whenever [`Cache::view`] changes.
    pub fn views(&self) -> watch::Receiver<View> {
        self.shared.view.subscribe()
    }

    /// Everything that changes from now on.
    pub fn changes(&self) -> Changes {
        Changes(self.shared.changes.subscribe())
    }

    /// Waits until everything has been listed.
    pub async fn current(&self) {
        let mut views = self.views();
        // The sender lives as long as `self`.
        let _ = views.wait_for(View::is_current).await;
    }

    /// Takes in an object that was just created, so that [`Cache::wait`] does not take it for deleted before the watch
    /// has brought it.
    pub fn remember(&self, object: K) {
        let name = object.name_any();
        let mut state = self.shared.lock();
        if state.objects.get(&name).is_some_and(|known| !newer(&object, known)) {
            return;
        }
        let object = lean(object);
        state.objects.insert(name.clone(), object.clone());
        state.expected.insert(name.clone(), object);
        self.shared.tell(state, Some(name));
    }

    /// Waits until `look` returns something for the object of this name. It is called with what is known now, then
    /// whenever that changes; with `None` only when there is no such object, not when nothing is known yet.
    pub async fn wait<T>(&self, name: &str, mut look: impl FnMut(Option<&K>) -> Option<T>) -> T {
        let waiter = Waiter::new(&self.shared, name);
        loop {
            // Before looking, so that nothing which happens meanwhile is missed.
            let notified = waiter.notify.notified();
            let (object, known) = {
                let state = self.shared.lock();
                let object = state.objects.get(name).cloned();
                let known = state.listed || object.is_some();
                (object, known)
            };
            if known && let Some(found) = look(object.as_deref()) {
                return found;
            }
            notified.await;
        }
    }
}

/// A place in the list of those to be woken, given up when the wait ends or is dropped.
struct Waiter<'a, K> {
    shared: &'a Shared<K>,
    name: &'a str,
    notify: Arc<Notify>,
}

impl<'a, K> Waiter<'a, K> {
    fn new(shared: &'a Shared<K>, name: &'a str) -> Self {
        let notify = shared.lock().waiters.entry(name.to_owned()).or_default().clone();
        Self { shared, name, notify }
    }
}

impl<K> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        // Ours and the map's: nobody else waits for this name.
        if Arc::strong_count(&self.notify) == 2 {
            state.waiters.remove(self.name);
        }
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // Every change is made whole under the lock, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, state: MutexGuard<'_, State<K>>, name: Option<String>) {
        match &name {
            Some(name) => state.waiters.get(name).into_iter().for_each(|notify| notify.notify_waiters()),
            None => state.waiters.values().for_each(|notify| notify.notify_waiters()),
        }
        drop(state);
        // An error says that nobody listens.
        let _ = self.changes.send(name.map_or(Changed::Everything, Changed::Object));
    }
}

async fn keep<K: Kind>(shared: Arc<Shared<K>>, mut follow: Follow<Served<K>>) {
    loop {
        match follow.next().await {
            Change::Listed(objects, version) => {
                let mut state = shared.lock();
                state.objects = objects.into_iter().map(|one| (one.name_any(), lean(one.object))).collect();
                let State { objects, expected, .. } = &mut *state;
                expected.retain(|name, object| {
                    let ahead = number(object.meta().resource_version.as_deref()) > number(Some(&version));
                    if ahead {
                        objects.insert(name.clone(), object.clone());
                    }
                    ahead
                });
                state.listed = true;
                shared.view.send_replace(View::Current);
                shared.tell(state, None);
            }
            Change::Applied(one) => {
                let name = one.name_any();
                let mut state = shared.lock();
                state.expected.remove(&name);
                // What was remembered may be ahead of the watch: an older event must not undo it.
                if !state.objects.get(&name).is_some_and(|known| newer(&**known, &one.object)) {
                    state.objects.insert(name.clone(), lean(one.object));
                }
                shared.tell(state, Some(name));
            }
            Change::Deleted(one) => {
                let name = one.name_any();
                let mut state = shared.lock();
                // An object that was made again under the same name is another one.
                if state.objects.get(&name).is_some_and(|known| known.meta().uid == one.object.meta().uid) {
                    state.objects.remove(&name);
                    state.expected.remove(&name);
                }
                shared.tell(state, Some(name));
            }
            Change::Lost { error, .. } => {
                tracing::warn!(kind = K::KIND, %error, "the watch is broken, trying again");
                shared.view.send_replace(View::Disconnected(Arc::new(error)));
            }
            Change::Resumed => {
                shared.view.send_replace(View::Current);
            }
        }
    }
}

/// Who wrote which field is most of an object's size and of no use to those who wait.
fn lean<K: Resource>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    Arc::new(object)
}

/// Whether `one` is a later version than `other`; unknown versions are not.
fn newer<K: Resource>(one: &K, other: &K) -> bool {
    number(one.meta().resource_version.as_deref()) > number(other.meta().resource_version.as_deref())
}

/// Resource versions are decimal numbers that grow, for custom resources by contract.
fn number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

//! List and watch as one endless story: resumes where a stream broke, starts again where history was dropped.
//!
//! What waits for one object and what keeps a cache of many both read from here, so that a 410, a cut line and a
//! restarting apiserver are handled once.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::client::answered;
use crate::error::Error;

/// The apiserver ends a watch after this long, so that connections are spread again.
const WATCH: Duration = Duration::from_secs(290);
/// The apiserver says something (a bookmark) about every minute; after this silence the connection is dead.
const SILENCE: Duration = Duration::from_secs(130);
/// A stream that lived this long is not a failure when it ends.
const HEALTHY: Duration = Duration::from_secs(1);
/// An apiserver that has just started may refuse for a moment what it permitted before.
const STARTING: Duration = Duration::from_secs(5);
/// And is asked this often meanwhile, however long it or we stood still.
const REFUSALS: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// What happened to the objects that are followed.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// These are all there are, as of this resource version; whatever was known before is void.
    Listed(Vec<K>, String),
    /// One is new or different.
    Applied(K),
    /// One is gone.
    Deleted(K),
    /// The view is not current any more; the next call tries again, which may be hopeless.
    Lost { error: Error, hopeless: bool },
    /// The view is current again, nothing was missed.
    Resumed,
}

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

/// The objects of one selector, followed.
pub(crate) struct Follow<K> {
    api: Api<K>,
    labels: Option<String>,
    fields: Option<String>,
    /// The place in history to go on from; without one everything is listed anew.
    from: Option<String>,
    events: Option<(Events<K>, Instant)>,
    failures: u32,
    not_before: Instant,
    lost: bool,
    /// Whether the apiserver ever did what it was asked, since when it refuses to, and how often it has.
    served: bool,
    refused: Option<(Instant, u32)>,
}

impl<K> Follow<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    pub(crate) fn labels(api: Api<K>, labels: Option<String>) -> Self {
        Self::new(api, labels, None, None)
    }

    /// One object, from a resource version of it when one is known.
    pub(crate) fn one(api: Api<K>, name: &str, from: Option<String>) -> Self {
        Self::new(api, None, Some(format!("metadata.name={name}")), from)
    }

    fn new(api: Api<K>, labels: Option<String>, fields: Option<String>, from: Option<String>) -> Self {
        let not_before = Instant::now();
        Self {
            api,
            labels,
            fields,
            from,
            events: None,
            failures: 0,
            not_before,
            lost: false,
            served: false,
            refused: None,
        }
    }

    /// The next thing that happened. May be dropped and called again without missing anything.
    pub(crate) async fn next(&mut self) -> Change<K> {
        loop {
            let Some((events, since)) = &mut self.events else {
                tokio::time::sleep_until(self.not_before).await;
                match self.connect().await {
                    Some(change) => return change,
                    None => continue,
                }
            };
            let since = *since;
            match tokio::time::timeout(SILENCE, events.next()).await {
                Ok(Some(Ok(event))) => {
                    if let Some(change) = self.event(event) {
                        return change;
                    }
                }
                Ok(Some(Err(error))) => {
                    self.broken(since);
                    let error = Error::from(error);
                    if error.is_gone() {
                        self.from = None;
                    } else {
                        return self.lose(error);
                    }
                }
                Ok(None) | Err(_) => self.broken(since),
            }
        }
    }

    /// Lists when there is no place to go on from, else opens the stream.
    async fn connect(&mut self) -> Option<Change<K>> {
        let result = match self.from.clone() {
            None => self.list().await.map(Some),
            Some(from) => self.watch(&from).await.map(|()| std::mem::take(&mut self.lost).then_some(Change::Resumed)),
        };
        match result {
            Ok(change) => change,
            Err(error) if error.is_gone() => {
                self.from = None;
                None
            }
            Err(error) => {
                self.delay();
                Some(self.lose(error))
            }
        }
    }

    async fn list(&mut self) -> Result<Change<K>, Error> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        };
        let list = self.api.list(&params).await.map_err(|error| answered(error, self.api.resource_url()))?;
        self.served();
        let version = list.metadata.resource_version.unwrap_or_default();
        self.from = Some(version.clone());
        self.lost = false;
        Ok(Change::Listed(list.items, version))
    }

    async fn watch(&mut self, from: &str) -> Result<(), Error> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: Some(u32::try_from(WATCH.as_secs()).unwrap_or(u32::MAX)),
            bookmarks: true,
            ..WatchParams::default()
        };
        let events = self.api.watch(&params, from).await.map_err(|error| answered(error, self.api.resource_url()))?;
        self.served();
        self.events = Some((events.boxed(), Instant::now()));
        Ok(())
    }

    fn event(&mut self, event: WatchEvent<K>) -> Option<Change<K>> {
        let change = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.from = object.resource_version().or(self.from.take());
                Some(Change::Applied(object))
            }
            WatchEvent::Deleted(object) => {
                self.from = object.resource_version().or(self.from.take());
                Some(Change::Deleted(object))
            }
            WatchEvent::Bookmark(bookmark) => {
                self.from = Some(bookmark.metadata.resource_version);
                None
            }
            WatchEvent::Error(status) => {
                self.events = None;
                let error = Error::from(kube::Error::Api(status));
                if error.is_gone() {
                    self.from = None;
                    return None;
                }
                self.delay();
                return Some(self.lose(error));
            }
        };
        self.failures = 0;
        change
    }

    fn served(&mut self) {
        self.served = true;
        self.refused = None;
    }

    fn lose(&mut self, error: Error) -> Change<K> {
        self.lost = true;
        let hopeless = match error {
            Error::Forbidden { .. } | Error::Unauthorized { .. } if self.served => {
                let (since, times) = self.refused.get_or_insert_with(|| (Instant::now(), 0));
                *times = times.saturating_add(1);
                since.elapsed() > STARTING && *times >= REFUSALS
            }
            _ => !error.is_transient(),
        };
        Change::Lost { error, hopeless }
    }

    fn broken(&mut self, since: Instant) {
        self.events = None;
        if since.elapsed() < HEALTHY {
            self.delay();
        }
    }

    /// Doubles, with a random part so that many clients of one apiserver do not come back together.
    fn delay(&mut self) {
        let base = FIRST_DELAY.saturating_mul(1 << self.failures.min(10)).min(LONGEST_DELAY);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + base.mul_f64(0.5 + f64::from(nanos % 1000) / 1000.0);
    }
}

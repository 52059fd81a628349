//! A gate with a scripted warden that keeps books by the real arithmetic, in front of a scripted upstream.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use sandbar_gateway::{
    Answer, Authority, Fact, Gateway, Grant, Held, Question, Refused, Reservation, Reserve, Secret, Settings,
    Settlement, Warden,
    llm::{CapField, Catalogue, Format, Model, Upstream as Configured},
};
use sandbar_policy::{Account, Amount, Host, Limits, Placement, Policy, Price};
use tokio_util::sync::CancellationToken;

use crate::llm::upstream::Upstream;

/// The name the upstream is known by; only the gateway's settings say where it is.
pub(crate) const NAME: &str = "vendor.test";
pub(crate) const KEY: &str = "sk-the-real-key";

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) limits: Option<Limits>,
    pub(crate) account: Account,
    pub(crate) settled: Vec<(Reservation, Settlement)>,
    pub(crate) model: Option<String>,
    pub(crate) closed: bool,
    /// Comes into force between a question for the budget and the reservation that follows.
    pub(crate) coming: Option<Limits>,
    /// Where keys go, if not where the vendors have them.
    pub(crate) placement: Option<Placement>,
    pub(crate) facts: Vec<Fact>,
    next: u64,
    held: BTreeMap<String, Amount>,
}

pub(crate) struct Clerk {
    books: Mutex<Books>,
    catalogue: Mutex<Arc<Catalogue>>,
    started: Instant,
}

impl Clerk {
    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

#[async_trait]
impl Warden for Clerk {
    fn name(&self) -> String {
        "sbx-test".into()
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::default()
    }

    fn grants(&self) -> Arc<[Grant]> {
        Arc::from([])
    }

    fn reveal(&self, _: &str) -> Option<Secret> {
        None
    }

    async fn ask(&self, _: Question) -> Answer {
        Answer::Deny("nobody is here".into())
    }

    fn record(&self, fact: Fact) {
        self.books().facts.push(fact);
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn upstream_secret(&self, name: &str) -> Option<(Secret, Placement)> {
        let (header, format) = match name {
            "openai" => ("Authorization", "Bearer {}"),
            "anthropic" => ("X-Api-Key", "{}"),
            _ => return None,
        };
        let usual = || Placement::Header { name: header.into(), format: format.into() };
        Some((Secret::new(KEY.into()), self.books().placement.clone().unwrap_or_else(usual)))
    }

    fn model(&self) -> Option<String> {
        self.books().model.clone()
    }

    fn budget(&self) -> Held {
        let mut books = self.books();
        let held = match &books.limits {
            Some(limits) => Held::Budget { left: books.account.left(limits), priced: limits.micros.is_some() },
            None => Held::Counted,
        };
        books.limits = books.coming.take().or(books.limits);
        held
    }

    async fn reserve(&self, call: Reserve) -> Result<Reservation, Refused> {
        let (now, mut books) = (self.now(), self.books());
        if books.closed {
            return Err(Refused::Unavailable("the disk is full".into()));
        }
        if books.limits.is_some() && !call.budgeted {
            return Err(Refused::Changed);
        }
        let limits = books.limits.unwrap_or_default();
        let admitted = books.account.admit(&limits, call.bound, now);
        admitted.map_err(|short| Refused::Short { session: "ses-1".into(), short })?;
        books.account.hold(call.bound);
        books.next += 1;
        let id = books.next.to_string();
        books.held.insert(id.clone(), call.bound);
        Ok(Reservation { id, held: call.bound })
    }

    fn settle(&self, reservation: Reservation, end: Settlement) {
        let (now, mut books) = (self.now(), self.books());
        let held = books.held.remove(&reservation.id).expect("a reservation is settled once");
        assert_eq!(held, reservation.held);
        match (end.usage, end.free) {
            (Some(usage), _) => {
                let tokens = usage.input + usage.output;
                let price = PRICE.of(usage.input, usage.cached_input, usage.cache_write, usage.output);
                books.account.settle(held, Amount { tokens, micros: price }, now);
            }
            (None, true) => books.account.release(held),
            (None, false) => books.account.settle(held, held, now),
        }
        books.settled.push((reservation, end));
    }
}

pub(crate) const PRICE: Price =
    Price { input: 1_000_000, output: 4_000_000, cached_input: 100_000, cache_write: 1_250_000 };

pub(crate) struct World {
    pub(crate) upstream: Upstream,
    pub(crate) clerk: Arc<Clerk>,
    pub(crate) gate: SocketAddr,
    stop: CancellationToken,
}

impl World {
    pub(crate) async fn new(limits: Option<Limits>) -> Self {
        Self::with(limits, true, Settings::default()).await
    }

    pub(crate) async fn with(limits: Option<Limits>, tls: bool, mut settings: Settings) -> Self {
        let upstream = Upstream::start(tls.then_some(NAME)).await.expect("an upstream");
        settings.hosts.insert(NAME.into(), vec![upstream.address.ip()]);
        settings.extra_roots = upstream.certificate.clone().unwrap_or_default().into_bytes();
        let books = Mutex::new(Books { limits, ..Books::default() });
        let catalogue = Mutex::new(Arc::new(catalogue(upstream.address.port(), tls)));
        let clerk = Arc::new(Clerk { books, catalogue, started: Instant::now() });
        let stop = CancellationToken::new();
        let gate = gate(settings, &clerk, &stop).await;
        Self { upstream, clerk, gate, stop }
    }

    /// The same books behind another gateway, whose upstreams are at this port.
    pub(crate) async fn another_gate(&self, settings: Settings, port: u16) -> SocketAddr {
        *self.clerk.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalogue(port, true));
        gate(settings, &self.clerk, &self.stop).await
    }

    /// The gate closes; calls under way go on.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// All that was reserved is settled, within a bound.
    pub(crate) async fn at_rest(&self) {
        for _ in 0..3000 {
            if self.clerk.books().held.is_empty() {
                assert_eq!(self.clerk.books().account.reserved, Amount::default());
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("still reserved: {:?}", self.clerk.books().held);
    }

    /// How the last call ended.
    pub(crate) async fn last(&self) -> (Reservation, Settlement) {
        self.at_rest().await;
        self.clerk.books().settled.last().cloned().expect("a settled call")
    }

    pub(crate) fn used(&self) -> u64 {
        self.clerk.books().account.used.tokens
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn gate(settings: Settings, clerk: &Arc<Clerk>, stop: &CancellationToken) -> SocketAddr {
    let gateway = Gateway::new(settings).expect("a gateway");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    let (warden, stop) = (Arc::clone(clerk) as Arc<dyn Warden>, stop.clone());
    let authority = Arc::new(Authority::generate("sbx-1").expect("an authority"));
    tokio::spawn(async move { gateway.serve(listener, warden, authority, stop).await });
    address
}

fn catalogue(port: u16, tls: bool) -> Catalogue {
    let upstream = |format, path: &str, any_model| Configured {
        format,
        tls,
        host: Host::Name(NAME.into()),
        port,
        path: path.into(),
        secret: tls.then(|| "key".into()),
        any_model,
        cap: CapField::MaxTokens,
    };
    let model = |upstream: &str, vendor_name: Option<&str>, price: Option<Price>| Model {
        upstream: upstream.into(),
        vendor_name: vendor_name.map(str::to_owned),
        price,
        max_output: Some(100),
        image_tokens: 1000,
    };
    let mut catalogue = Catalogue::default();
    catalogue.upstreams.insert("openai".into(), upstream(Format::OpenAi, "/v1", false));
    catalogue.upstreams.insert("anthropic".into(), upstream(Format::Anthropic, "", true));
    catalogue.models.insert("gpt".into(), model("openai", None, Some(PRICE)));
    catalogue.models.insert("gpt-dated".into(), model("openai", Some("gpt-2026-11-01"), Some(PRICE)));
    catalogue.models.insert("gpt-unpriced".into(), model("openai", None, None));
    catalogue.models.insert("claude".into(), model("anthropic", None, Some(PRICE)));
    catalogue.aliases.insert("fast".into(), "gpt-dated".into());
    catalogue
}

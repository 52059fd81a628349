//! A gateway for one sandbox with a scripted warden, and what tests look at.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use sandbar_gateway::{
    Answer, Authority, Entrance, Fact, Gateway, Grant, Held, Outcome, Question, Refused, Reservation, Reserve, Secret,
    Settings, Settlement, Warden, llm::Catalogue,
};
use sandbar_policy::{Effect, Host, Placement, Policy, Rule, Sets, Source};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// For what has to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Where clients of a carried gate believe it to be.
pub(crate) const INSIDE: u16 = 7228;
/// What is on its way to or from a carried client.
const PIPE: usize = 16 * 1024;

pub(crate) type Asked = (Question, oneshot::Sender<Answer>);

pub(crate) struct Script {
    policy: RwLock<Arc<Policy>>,
    grants: RwLock<Arc<[Grant]>>,
    secrets: Mutex<HashMap<String, String>>,
    asked: mpsc::UnboundedSender<Asked>,
    facts: Mutex<Vec<Fact>>,
    pub(crate) revealed: AtomicU64,
}

#[async_trait]
impl Warden for Script {
    fn name(&self) -> String {
        "sbx-test".into()
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().expect("lock"))
    }
    fn grants(&self) -> Arc<[Grant]> {
        Arc::clone(&self.grants.read().expect("lock"))
    }
    fn reveal(&self, name: &str) -> Option<Secret> {
        self.revealed.fetch_add(1, Ordering::Relaxed);
        self.secrets.lock().expect("lock").get(name).cloned().map(Secret::new)
    }
    async fn ask(&self, question: Question) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.asked.send((question, answer)).expect("the test listens");
        answered.await.unwrap_or(Answer::Deny("nobody answered in time".into()))
    }
    fn record(&self, fact: Fact) {
        self.facts.lock().expect("lock").push(fact);
    }
    fn catalogue(&self) -> Arc<Catalogue> {
        Arc::new(Catalogue::default())
    }
    fn upstream_secret(&self, _: &str) -> Option<(Secret, Placement)> {
        None
    }
    fn model(&self) -> Option<String> {
        None
    }
    fn budget(&self) -> Held {
        Held::Counted
    }
    async fn reserve(&self, _: Reserve) -> Result<Reservation, Refused> {
        Err(Refused::Unavailable("there is no budget here".into()))
    }
    fn settle(&self, _: Reservation, _: Settlement) {}
}

impl Script {
    pub(crate) fn rules(&self, rules: &[(Effect, &str)]) {
        *self.policy.write().expect("lock") = Arc::new(compile(rules));
    }

    pub(crate) fn grant(&self, name: &str, placeholder: &str, hosts: &[&str], placement: &str) {
        let grant = Grant {
            name: name.into(),
            placeholder: placeholder.into(),
            hosts: hosts.iter().map(|host| Host::parse(host).expect("a host")).collect(),
            placement: placement.parse().expect("a placement"),
        };
        let mut grants = self.grants.write().expect("lock");
        *grants = grants.iter().cloned().chain([grant]).collect();
    }

    pub(crate) fn secret(&self, name: &str, value: Option<&str>) {
        let mut secrets = self.secrets.lock().expect("lock");
        match value {
            Some(value) => secrets.insert(name.into(), value.into()),
            None => secrets.remove(name),
        };
    }

    pub(crate) fn facts(&self) -> Vec<Fact> {
        self.facts.lock().expect("lock").clone()
    }

    /// The first fact that fits, waited for.
    pub(crate) async fn fact(&self, what: &str, fits: impl Fn(&Fact) -> bool) -> Fact {
        poll(what, || self.facts().into_iter().find(|fact| fits(fact))).await
    }

    pub(crate) async fn denied(&self, what: &str) -> String {
        let fact = self.fact(what, |fact| matches!(&fact.outcome, Outcome::Denied(text) if text.contains(what))).await;
        let Outcome::Denied(text) = fact.outcome else { unreachable!() };
        text
    }
}

fn compile(rules: &[(Effect, &str)]) -> Policy {
    let rules: Vec<(Effect, Rule)> =
        rules.iter().map(|(effect, text)| (*effect, Rule::parse(text).expect("a rule"))).collect();
    Policy::compile(rules.iter().map(|(effect, rule)| (*effect, rule, Source::Sandbox)), &Sets::new())
        .expect("a policy")
}

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) warden: Arc<Script>,
    pub(crate) proxy: SocketAddr,
    pub(crate) authority: Arc<Authority>,
    pub(crate) asked: tokio::sync::Mutex<mpsc::UnboundedReceiver<Asked>>,
    pub(crate) stop: CancellationToken,
    _stop: DropGuard,
}

/// Every name of `example.test` leads to loopback, and the tests' authority is trusted.
pub(crate) fn settings() -> Settings {
    let names = ["a", "b", "c", "secret", "other"].map(|name| format!("{name}.example.test"));
    Settings {
        hosts: names.into_iter().map(|name| (name, vec![IpAddr::V4(Ipv4Addr::LOCALHOST)])).collect(),
        private: vec!["127.0.0.0/8".parse().expect("a range")],
        extra_roots: crate::egress::server::authority().pem().into_bytes(),
        head_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        ..Settings::default()
    }
}

impl World {
    pub(crate) async fn new(rules: &[(Effect, &str)]) -> Self {
        Self::with(rules, settings()).await
    }

    pub(crate) async fn with(rules: &[(Effect, &str)], settings: Settings) -> Self {
        Self::behind(rules, Gateway::new(settings).expect("a gateway")).await
    }

    /// One of the gates of this gateway.
    pub(crate) async fn behind(rules: &[(Effect, &str)], gateway: Gateway) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let proxy = listener.local_addr().expect("its address");
        Self::at(rules, gateway, listener, proxy)
    }

    /// One whose connections are carried to it: what is accepted at the address goes through a pipe.
    pub(crate) async fn carried(rules: &[(Effect, &str)], gateway: Gateway) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let proxy = listener.local_addr().expect("its address");
        let connections = futures_util::stream::unfold(listener, |listener| async {
            let (mut client, _) = listener.accept().await.expect("a connection");
            let (mut ours, theirs) = tokio::io::duplex(PIPE);
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut ours).await });
            Some((theirs, listener))
        });
        Self::at(rules, gateway, Entrance::carried(INSIDE, connections), proxy)
    }

    fn at(rules: &[(Effect, &str)], gateway: Gateway, entrance: impl Into<Entrance>, proxy: SocketAddr) -> Self {
        let (asked, questions) = mpsc::unbounded_channel();
        let warden = Arc::new(Script {
            policy: RwLock::new(Arc::new(compile(rules))),
            grants: RwLock::new(Arc::new([])),
            secrets: Mutex::default(),
            asked,
            facts: Mutex::default(),
            revealed: AtomicU64::new(0),
        });
        let authority = Arc::new(Authority::generate("sbx-test").expect("an authority"));
        let stop = CancellationToken::new();
        let (serving, told, entrance) = (gateway.clone(), stop.clone(), entrance.into());
        let (as_warden, as_authority) = (Arc::clone(&warden), Arc::clone(&authority));
        tokio::spawn(async move { serving.serve(entrance, as_warden, as_authority, told).await });
        let asked = tokio::sync::Mutex::new(questions);
        Self { gateway, warden, proxy, authority, asked, _stop: stop.clone().drop_guard(), stop }
    }

    pub(crate) async fn question(&self) -> Asked {
        let mut asked = self.asked.lock().await;
        tokio::time::timeout(PATIENCE, asked.recv()).await.expect("a question").expect("a question")
    }
}

/// Asks again and again, for half a minute.
pub(crate) async fn poll<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never seen: {what}");
}

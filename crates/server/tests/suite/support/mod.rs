//! A real server over real guests without isolation: each guest is the test program started again.

use std::{
    collections::HashMap,
    fs,
    os::{fd::AsFd as _, unix::net::UnixListener},
    path::PathBuf,
    process::{Child, Command},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode, header, response::Parts},
};
use hyper_util::rt::TokioIo;
use sandbar_api::{Process, SandboxId};
use sandbar_engine::{Config, Engine};
use sandbar_provider::{Error, Found, Guest, HostReport, Provider, Spec};
use sandbar_server::{Options, Server};
use sandbar_test_harness::Test;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::{Event, Level, Metadata, Subscriber, field::Field, span};

/// Tests that each have a server of their own: `on!(Bench, "room"; name => function, …)`.
macro_rules! on {
    ($subject:ty, $room:literal; $($name:ident => $test:expr),+ $(,)?) => {
        vec![$(crate::support::test(
            concat!($room, "::", stringify!($name)),
            async { $test(&<$subject>::new().await).await },
        )),+]
    };
}
pub(crate) use on;

pub(crate) fn test(name: &str, body: impl Future<Output = ()> + 'static) -> Test {
    Test::new(name, || {
        tokio::runtime::Runtime::new()?.block_on(body);
        Ok(())
    })
}

/// How the program is told to be the guest; its listener is then standard input.
const GUEST: &str = "SANDBAR_TEST_GUEST";

/// Does not return in a program that was started as the guest.
pub(crate) fn be_the_guest_if_told() {
    let Some(sandbox_id) = std::env::var_os(GUEST) else { return };
    // A test that fails must leave nothing running.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    sandbar_guest::run(sandbar_guest::Setup {
        sandbox_id: Some(sandbox_id.into_string().unwrap()),
        version: "test".to_owned(),
        entrance: Some(sandbar_guest::Entrance::Unix(std::io::stdin().as_fd().try_clone_to_owned().unwrap())),
        uid,
        gid,
        home: "/".to_owned(),
        user: "test".to_owned(),
        env: [].into(),
        confine: Box::new(|| Ok(())),
        group: None,
        oom: None,
        gate: None,
        trust: None,
        runtimes: None,
        ends: false,
    });
}

pub(crate) struct Bare {
    root: PathBuf,
    /// Whoever holds it alone holds up every `create`.
    pub(crate) gate: tokio::sync::RwLock<()>,
    /// Whether the next `create` fails.
    pub(crate) broken: AtomicBool,
    pub(crate) guests: Mutex<HashMap<SandboxId, Child>>,
    pub(crate) started: AtomicUsize,
    pub(crate) probed: AtomicUsize,
}

impl Bare {
    fn end(&self, id: &SandboxId) {
        if let Some(mut child) = self.guests.lock().unwrap().remove(id) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[async_trait]
impl Provider for Bare {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> HostReport {
        self.probed.fetch_add(1, Ordering::SeqCst);
        HostReport { provider: "local".to_owned(), findings: Vec::new() }
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        drop(self.gate.read().await);
        if self.broken.swap(false, Ordering::SeqCst) {
            let (layer, cause, fix) = ("seccomp", "a cause".to_owned(), "a fix".to_owned());
            return Err(Error::NotEnforceable { layer, cause, fix });
        }
        self.start(spec).await
    }

    async fn inspect(&self, _: &Spec) -> Result<Vec<sandbar_api::LayerReport>, Error> {
        Ok(vec![])
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        let id = &spec.id;
        self.started.fetch_add(1, Ordering::SeqCst);
        let path = self.root.join(id.as_str());
        // Of an earlier run.
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        let listener = UnixListener::bind(path).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command.env(GUEST, id.as_str()).stdin(std::os::fd::OwnedFd::from(listener)).spawn().unwrap();
        self.guests.lock().unwrap().insert(id.clone(), child);
        Ok(())
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), Error> {
        self.end(id);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        self.end(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        Ok(self.guests.lock().unwrap().keys().map(|id| Found { id: id.clone(), running: true, mark: None }).collect())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error> {
        let address = format!("unix://{}", self.root.join(id.as_str()).display());
        let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
        Ok(Guest::new(endpoint.connect().await.unwrap()))
    }

    async fn gone(&self, _: &SandboxId) -> Result<(), Error> {
        std::future::pending().await
    }
}

static BROKE_OFF: AtomicBool = AtomicBool::new(false);

/// Whether a server of this program ended while requests were still under way.
pub(crate) fn broke_off() -> bool {
    BROKE_OFF.load(Ordering::SeqCst)
}

/// Listens for the server to say so: how long it took tells little on a busy machine.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::WARN && metadata.target() == "sandbar_server::serve"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn std::fmt::Debug| {
            BROKE_OFF.fetch_or(format!("{value:?}").contains("broken off"), Ordering::SeqCst);
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

pub(crate) struct Bench {
    pub(crate) directory: TempDir,
    pub(crate) provider: Arc<Bare>,
    pub(crate) engine: Engine,
    pub(crate) socket: PathBuf,
    pub(crate) closing: CancellationToken,
    pub(crate) serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Bench {
    /// With a sandbox called `box`, whose files are the host's.
    pub(crate) async fn new() -> Self {
        tracing::subscriber::set_global_default(Log).unwrap();
        let directory = sandbar_test_harness::scratch().unwrap();
        let home = directory.path().join("home");
        let provider = Arc::new(Bare {
            root: directory.path().to_owned(),
            gate: tokio::sync::RwLock::default(),
            broken: AtomicBool::new(false),
            guests: Mutex::default(),
            started: AtomicUsize::default(),
            probed: AtomicUsize::default(),
        });
        let engine = Engine::open(Config {
            home: home.clone(),
            providers: vec![provider.clone()],
            asks: true,
            ..Config::default()
        })
        .await
        .unwrap();
        fs::write(home.join("templates/small.toml"), "max_file = 100000\n").unwrap();
        fs::create_dir(directory.path().join("files")).unwrap();
        let socket = home.join("sandbar.sock");
        let options = Options {
            tcp: None,
            tls: None,
            socket: socket.clone(),
            version: "test",
            preview_domain: None,
            shared: false,
        };
        let server = Server::bind(engine.clone(), options).await.unwrap();
        let closing = CancellationToken::new();
        let serving = tokio::spawn(server.serve(closing.clone()));
        let bench = Self { directory, provider, engine, socket, closing, serving };
        for (name, template) in [("box", "default"), ("small", "small")] {
            let made = bench.post("/v1/sandboxes", &json!({"name": name, "template": template})).await;
            assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
            assert!(made.headers[header::LOCATION].to_str().unwrap().starts_with("/v1/sandboxes/sbx-"));
        }
        bench
    }

    pub(crate) fn at(&self, name: &str) -> String {
        format!("/v1/sandboxes/box/files{}/files/{name}", self.directory.path().display())
    }

    pub(crate) async fn begin(&self, request: Request<Body>) -> (Parts, Body) {
        self.tried(request).await.unwrap()
    }

    pub(crate) async fn tried(&self, request: Request<Body>) -> hyper::Result<(Parts, Body)> {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok((head, Body::new(body)))
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let (head, body) = self.begin(request(method, path, headers, body)).await;
        let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        crate::stated::check(method, path, head.status.as_u16(), &body);
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn start(&self, body: Value) -> Process {
        let answer = self.post("/v1/sandboxes/box/processes", &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// As it is when it has ended.
    pub(crate) async fn ended(&self, process: &str) -> Process {
        let path = format!("/v1/sandboxes/box/processes/{process}");
        self.get(&format!("{path}/output?follow=true")).await;
        serde_json::from_slice(&self.get(&path).await.body).unwrap()
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body.into()).unwrap()
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn code(&self) -> String {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        value["code"].as_str().map_or_else(|| self.status.to_string(), str::to_owned)
    }
}

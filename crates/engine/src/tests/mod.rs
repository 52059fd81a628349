//! The engine over scripted guests: lives of sandboxes, lives of processes, and what a restart finds.

mod approvals;
mod asking;
mod attach;
mod budgets;
mod cluster;
mod disaster;
pub(crate) mod disk;
mod elsewhere;
mod forks;
mod full;
mod gates;
mod idle;
mod ledger;
mod life;
mod limits;
mod lives;
mod network;
mod pause;
mod pools;
mod ports;
mod processes;
mod refusals;
mod restart;
mod restarts;
mod runtimes;
mod script;
mod search;
mod secrets;
mod sessions;
mod sizes;
mod snapshots;
mod terminals;
mod transfers;
mod webhooks;
mod workspaces;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sandbar_api::{Code, CreateSandbox, ExecRequest, Problem, Role, Sandbox, SandboxState, StartProcess};

use crate::{Caller, Config, Engine};
use script::Scripted;

type Tested = Result<(), Box<dyn std::error::Error>>;

struct Bed {
    engine: Engine,
    provider: Arc<Scripted>,
    home: PathBuf,
    _place: Option<tempfile::TempDir>,
}

impl Bed {
    async fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let place = sandbar_test_harness::scratch()?;
        let home = place.path().to_owned();
        Ok(Self { _place: Some(place), ..Self::at(home).await? })
    }

    /// Whose provider calls itself that.
    async fn of(provider: &'static str) -> Result<Self, Box<dyn std::error::Error>> {
        let place = sandbar_test_harness::scratch()?;
        let home = place.path().to_owned();
        let provider = Scripted::called(provider, home.clone());
        let engine = Self::open(&home, &provider).await?;
        Ok(Self { engine, provider, home, _place: Some(place) })
    }

    /// In a home that somebody else removes.
    async fn at(home: PathBuf) -> Result<Self, Box<dyn std::error::Error>> {
        let provider = Scripted::new(home.clone());
        let engine = Self::open(&home, &provider).await?;
        Ok(Self { engine, provider, home, _place: None })
    }

    async fn open(home: &Path, provider: &Arc<Scripted>) -> Result<Engine, crate::OpenError> {
        let config =
            Config { home: home.to_owned(), providers: vec![provider.clone()], asks: true, ..Config::default() };
        let at = elsewhere::store_at(home).await.map_err(crate::OpenError::Store)?;
        Engine::open_on(config, at).await
    }

    /// The server ends and another one starts.
    async fn restart(&mut self) -> Tested {
        self.engine.shutdown().await;
        self.engine = Self::open(&self.home, &self.provider).await?;
        Ok(())
    }

    async fn create(&self, name: &str) -> Result<Sandbox, sandbar_api::Problem> {
        let request = CreateSandbox { name: Some(name.into()), ..CreateSandbox::default() };
        Ok(self.engine.create(&owner(), request, None).await?.sandbox)
    }
}

impl Bed {
    /// Of a template that says this.
    async fn create_of(&self, name: &str, template: &str) -> Result<Sandbox, Box<dyn std::error::Error>> {
        std::fs::write(self.home.join("templates/tested.toml"), template)?;
        let (name, template) = (Some(name.to_owned()), Some("tested".to_owned()));
        let request = CreateSandbox { name, template, ..CreateSandbox::default() };
        Ok(self.engine.create(&owner(), request, None).await?.sandbox)
    }

    async fn state(&self, name: &str) -> Option<SandboxState> {
        Some(self.engine.get(name).await.ok()?.state)
    }

    /// Waits until the sandbox is in that state.
    async fn until(&self, name: &str, state: SandboxState) -> Result<Sandbox, String> {
        soon(|| async { self.engine.get(name).await.ok().filter(|sandbox| sandbox.state == state) }).await
    }
}

fn code<T>(result: Result<T, Problem>) -> Option<Code> {
    result.err().map(|problem| problem.code)
}

fn owner() -> Caller {
    Caller { owner: "socket".into(), role: Role::Admin, session: None }
}

fn command(argv: &[&str]) -> StartProcess {
    StartProcess { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..StartProcess::default() }
}

fn exec(argv: &[&str], stdin: Option<&str>, max_output: u64) -> ExecRequest {
    ExecRequest {
        argv: command(argv).argv,
        env: [].into(),
        cwd: None,
        timeout: None,
        stdin: stdin.map(str::to_owned),
        max_output,
    }
}

/// Waits for what must happen soon; what never happens fails the test.
async fn soon<T, F: Future<Output = Option<T>>>(mut look: impl FnMut() -> F) -> Result<T, String> {
    for _ in 0..30_000 {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("it did not happen within 300 s".into())
}

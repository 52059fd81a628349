//! The promise that nothing is lost: sandboxes are made, used and deleted while the server is killed with SIGKILL at
//! random moments, again and again. Afterwards every answer that was given must still be true.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use sandbar_api::{CreateSandbox, ExecRequest, ProcessState, SandboxState, StartProcess};
use sandbar_client::{Client, OutputItem, Patience, SandboxQuery};
use sandbar_test_harness::endurance;

use crate::support::{Dice, Outcome, Server, expect_clean, expect_counted, expect_gapless, until};

/// An answer of one kind may be long in coming.
const MOST_ROUNDS: u32 = 500;
const WORKERS: u64 = 3;

/// What callers were told, and may therefore rely on.
#[derive(Default)]
struct Told {
    created: BTreeSet<String>,
    /// A delete was asked for: whether it came through is known only if it was answered.
    deleting: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Process → (sandbox, what it writes).
    started: BTreeMap<String, (String, String)>,
}

impl Told {
    fn answers(&self) -> usize {
        self.created.len() + self.deleted.len() + self.started.len()
    }

    fn shows_something(&self) -> bool {
        self.created.len() > 10 && !self.deleted.is_empty() && self.started.len() > 10
    }
}

fn locked(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_server_is_killed() -> Outcome {
    let seed = u64::from(std::process::id()) + 0x9e37_79b9_7f4a_7c15;
    eprintln!("seed {seed:#x}");
    let mut dice = Dice(seed);
    let mut server = Server::start()?;
    // The server is away more often than not; whoever asks seldom would never find it.
    let quick = |ms| Duration::from_millis(ms);
    let client = server.client()?.with_patience(Patience {
        first: quick(2),
        longest: quick(20),
        total: Duration::from_secs(600),
    });

    // One process writes through all the rounds; another viewer follows it through all the restarts.
    let steady = client.create(&CreateSandbox { name: Some("steady".into()), ..Default::default() }, None).await?;
    let script =
        "i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); [ $((i % 64)) = 0 ] && sleep 0.01; done; echo end";
    let counter = client.start_process("steady", &shell(script)).await?;
    let viewer = tokio::spawn(follow(client.clone(), counter.id.to_string()));

    let told = Arc::new(Mutex::new(Told::default()));
    let over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            tokio::spawn(work(server.impatient(), told.clone(), over.clone(), Dice(seed ^ (number + 1) << 32)))
        })
        .collect();
    let (least, mut rounds) = (endurance(20, 100), 0..MOST_ROUNDS);
    while rounds.next().is_some_and(|round| round < least || !locked(&told).shows_something()) {
        // In answers and not in milliseconds, so that a slow machine shows as much as a fast one; then a moment in the
        // middle of the next ones. With no answer at all it dies while it starts.
        let enough = locked(&told).answers() + dice.roll(5) as usize;
        until("answers", async || Ok(locked(&told).answers() >= enough)).await?;
        tokio::time::sleep(Duration::from_micros(dice.roll(40_000))).await;
        server.kill()?;
        server.restart()?;
    }
    over.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await??;
    }
    let stop = ExecRequest { argv: ["touch", "/tmp/stop"].map(String::from).into(), ..exec() };
    client.exec("steady", &stop).await?;

    expect_counted(&viewer.await??)?;
    expect_told(&client, &told).await?;
    assert!(expect_gapless(&client).await? >= 100, "hardly any events");

    let left: Vec<_> = client.sandboxes(SandboxQuery::default()).collect::<Vec<_>>().await;
    for sandbox in left {
        client.delete(sandbox?.id.as_str()).await?;
    }
    assert_eq!(client.sandbox(steady.sandbox.id.as_str()).await?.state, SandboxState::Deleted);
    let files = std::fs::read_dir(server.home.path().join("local"))?.flatten().map(|entry| entry.file_name());
    let files: Vec<_> = files.filter(|name| name.to_string_lossy().starts_with("sbx-")).collect();
    assert!(files.is_empty(), "files of sandboxes were left: {files:?}");
    let output = std::fs::read_dir(server.home.path().join("output"))?.flatten().map(|entry| entry.file_name());
    let output: Vec<_> = output.filter(|name| name.to_string_lossy().starts_with("prc-")).collect();
    assert!(output.is_empty(), "output was left: {output:?}");
    server.kill()?;
    expect_clean(server.home.path())
}

fn exec() -> ExecRequest {
    ExecRequest {
        argv: vec![],
        env: BTreeMap::new(),
        cwd: None,
        timeout: None,
        stdin: None,
        max_output: sandbar_api::process::default_output_cap(),
    }
}

fn shell(script: &str) -> StartProcess {
    StartProcess { argv: ["sh", "-c", script].map(String::from).into(), ..Default::default() }
}

/// An answer or a broken connection must come: a call that hangs is a failure.
async fn timeout<T>(what: &str, call: impl Future<Output = T>) -> Outcome<T> {
    tokio::time::timeout(Duration::from_secs(300), call).await.map_err(|_| format!("a call to {what} hangs").into())
}

/// Creates, starts, execs and deletes until told to stop; a dead server is no failure, a wrong answer is.
async fn work(client: Outcome<Client>, told: Arc<Mutex<Told>>, over: Arc<AtomicBool>, mut dice: Dice) -> Outcome {
    let client = client?;
    let mut mine: Vec<String> = vec![];
    let mut number = 0u64;
    let told = || locked(&told);
    while !over.load(Ordering::SeqCst) {
        number += 1;
        let pick = (!mine.is_empty()).then(|| mine[dice.roll(mine.len() as u64) as usize].clone());
        match (dice.roll(4), pick) {
            (0, Some(id)) if mine.len() > 2 => {
                mine.retain(|known| known != &id);
                told().deleting.insert(id.clone());
                if timeout("delete", client.delete(&id)).await?.is_ok() {
                    told().deleted.insert(id);
                }
            }
            (1, Some(id)) => {
                let text = format!("{id} {number}\n");
                let script = format!("printf '%s' '{text}'");
                if let Ok(process) = timeout("start", client.start_process(&id, &shell(&script))).await? {
                    told().started.insert(process.id.to_string(), (id, text));
                }
            }
            (2, Some(id)) => {
                let word = format!("word-{number}");
                let request = ExecRequest { argv: vec!["echo".into(), word.clone()], ..exec() };
                if let Ok(result) = timeout("exec", client.exec(&id, &request)).await? {
                    assert_eq!(result.stdout, format!("{word}\n"), "an exec was answered wrongly");
                }
            }
            _ if mine.len() < 6 => {
                if let Ok(created) = timeout("create", client.create(&CreateSandbox::default(), None)).await? {
                    let id = created.sandbox.id.to_string();
                    told().created.insert(id.clone());
                    mine.push(id);
                }
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn follow(client: Client, process: String) -> Outcome<Vec<u8>> {
    let mut seen = Vec::new();
    let mut output = std::pin::pin!(client.output("steady", &process, Some(0), true));
    while let Some(item) = output.next().await {
        match item? {
            OutputItem::Chunk(chunk) => {
                assert_eq!(chunk.offset, seen.len() as u64, "a byte is missing or came twice");
                seen.extend(chunk.data);
            }
            OutputItem::Exit(_) => break,
        }
    }
    Ok(seen)
}

async fn expect_told(client: &Client, told: &Mutex<Told>) -> Outcome {
    let told = std::mem::take(&mut *locked(told));
    eprintln!("{} created, {} deleted, {} processes", told.created.len(), told.deleted.len(), told.started.len());
    assert!(told.shows_something(), "the rounds did too little to show anything");
    let Told { created, deleting, deleted, started } = told;
    for id in created.difference(&deleting) {
        assert_eq!(client.sandbox(id).await?.state, SandboxState::Ready, "{id} was lost");
        let request = ExecRequest { argv: vec!["echo".into(), "alive".into()], ..exec() };
        assert_eq!(client.exec(id, &request).await?.stdout, "alive\n");
    }
    for id in &deleted {
        assert_eq!(client.sandbox(id).await?.state, SandboxState::Deleted, "{id} came back");
    }
    for (process, (sandbox, text)) in started.iter().filter(|(_, (sandbox, _))| !deleting.contains(sandbox)) {
        let mut written = Vec::new();
        let mut output = std::pin::pin!(client.output(sandbox, process, Some(0), true));
        while let Some(item) = output.next().await {
            match item? {
                OutputItem::Chunk(chunk) => written.extend(chunk.data),
                OutputItem::Exit(process) => {
                    assert_eq!(process.state, ProcessState::Exited);
                    assert_eq!(process.exit.map(|exit| exit.code), Some(0));
                    break;
                }
            }
        }
        assert_eq!(String::from_utf8_lossy(&written), *text, "output of {process}");
    }
    Ok(())
}

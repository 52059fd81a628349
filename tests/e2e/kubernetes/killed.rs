//! The promise that nothing is lost or doubled, on a cluster: sandboxes are made, used and deleted while the server is
//! killed with SIGKILL at random moments.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use sandbar_api::{CreateSandbox, ExecRequest, SandboxState, StartProcess};
use sandbar_client::{Client, OutputItem, Patience, SandboxQuery};
use tokio::time::{sleep, timeout};

use crate::{
    kubernetes::place::Place,
    support::{Dice, Outcome, expect_counted, expect_gapless, until},
};

const MOST_ROUNDS: u32 = 100;
const HANGS: Duration = Duration::from_secs(300);
const TEMPLATE: &str = "brief";

/// What callers were told, and may therefore rely on: the id of each name.
#[derive(Default)]
struct Told {
    created: BTreeMap<String, String>,
    deleting: BTreeSet<String>,
    deleted: BTreeSet<String>,
    answered: u32,
}

impl Told {
    /// How much callers were told so far.
    fn count(&self) -> usize {
        self.created.len() + self.deleted.len() + self.answered as usize
    }

    fn shows_something(&self) -> bool {
        self.created.len() > 4 && !self.deleted.is_empty() && self.answered > 4
    }
}

fn locked(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exec(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::new(),
        cwd: None,
        timeout: None,
        stdin: None,
        max_output: sandbar_api::process::default_output_cap(),
    }
}

/// Creates, execs and deletes until told to stop. A dead server is no failure, a wrong answer is. With a key a create is
/// asked again until it is answered, whichever server does it.
async fn work(
    client: Client,
    name: &str,
    keyed: bool,
    told: Arc<Mutex<Told>>,
    over: Arc<AtomicBool>,
    mut dice: Dice,
) -> Outcome {
    let mut mine: Vec<String> = vec![];
    let mut number = 0;
    while !over.load(Ordering::SeqCst) {
        number += 1;
        let pick = (!mine.is_empty()).then(|| mine[dice.roll(mine.len() as u64) as usize].clone());
        match (dice.roll(3), pick) {
            (0, Some(id)) if mine.len() > 1 => {
                mine.retain(|known| known != &id);
                locked(&told).deleting.insert(id.clone());
                if timeout(HANGS, client.delete(&id)).await?.is_ok() {
                    locked(&told).deleted.insert(id);
                }
            }
            (1, Some(id)) => {
                let word = format!("word-{number}");
                if let Ok(result) = timeout(HANGS, client.exec(&id, &exec(&["echo", &word]))).await? {
                    assert_eq!(result.stdout, format!("{word}\n"), "an exec was answered wrongly");
                    locked(&told).answered += 1;
                }
            }
            _ if mine.len() < 3 => {
                let name = format!("{name}-{number}");
                let request =
                    CreateSandbox { name: Some(name.clone()), template: Some(TEMPLATE.into()), ..Default::default() };
                let key = keyed.then_some(name.as_str());
                if let Ok(created) = timeout(HANGS, client.create(&request, key)).await? {
                    let id = created.sandbox.id.to_string();
                    let before = locked(&told).created.insert(name, id.clone());
                    assert_eq!(before, None);
                    mine.push(id);
                }
            }
            _ => {}
        }
        sleep(Duration::from_millis(20)).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_when_the_server_is_killed() -> Outcome {
    let name = "nothing_is_lost_or_doubled_when_the_server_is_killed";
    let brief = (TEMPLATE, "[kubernetes]\nstorage = \"ephemeral\"\n");
    let Some(mut place) = Place::open(name, &[brief])? else { return Ok(()) };
    let seed = u64::from(std::process::id()) + 0x9e37_79b9_7f4a_7c15;
    eprintln!("seed {seed:#x}");
    let mut dice = Dice(seed);
    let patience = Patience { first: Duration::from_millis(5), longest: Duration::from_millis(50), total: HANGS };
    let client = place.server.client()?.with_patience(patience);
    place.sandbar(&["pool", "set", TEMPLATE, "1"])?;
    place.sandbar(&["create", "--name", "steady"])?;
    let script =
        "i=0; while [ ! -e /tmp/stop ]; do echo $i; i=$((i+1)); [ $((i % 64)) = 0 ] && sleep 0.02; done; echo end";
    let counter = StartProcess { argv: ["sh", "-c", script].map(String::from).into(), ..Default::default() };
    let counter = client.start_process("steady", &counter).await?;
    let viewer = tokio::spawn(follow(client.clone(), counter.id.to_string()));

    let (told, over) = (Arc::new(Mutex::new(Told::default())), Arc::new(AtomicBool::new(false)));
    let impatient = place.server.impatient()?;
    let (own, theirs) = (Dice(seed ^ 1 << 32), Dice(seed ^ 2 << 32));
    let workers = [
        tokio::spawn(work(client.clone(), "keyed", true, told.clone(), over.clone(), own)),
        tokio::spawn(work(impatient, "plain", false, told.clone(), over.clone(), theirs)),
    ];
    let (least, mut rounds) = (sandbar_test_harness::endurance(6, 15), 0..MOST_ROUNDS);
    while let Some(round) = rounds.next().filter(|round| *round < least || !locked(&told).shows_something()) {
        let before = locked(&told).count();
        sleep(Duration::from_millis(300 + dice.roll(4000))).await;
        // On a busy machine a server hardly answers before it is killed again. Later rounds wait for an answer.
        if round >= least {
            until("a caller is answered", async || Ok(locked(&told).count() > before)).await?;
        }
        place.server.kill()?;
        place.server.restart()?;
    }
    over.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await??;
    }
    client.exec("steady", &exec(&["touch", "/tmp/stop"])).await?;
    expect_counted(&timeout(HANGS, viewer).await???)?;
    expect_told(&client, &place, &told).await?;
    expect_gapless(&client).await?;

    place.sandbar(&["pool", "set", TEMPLATE, "0"])?;
    let left: Vec<_> = client.sandboxes(SandboxQuery::default()).collect::<Vec<_>>().await;
    for sandbox in left {
        client.delete(sandbox?.id.as_str()).await?;
    }
    place.expect_nothing_left()
}

async fn expect_told(client: &Client, place: &Place, told: &Mutex<Told>) -> Outcome {
    let told = std::mem::take(&mut *locked(told));
    assert!(told.shows_something(), "the rounds did too little to show anything");
    let Told { created, deleting, deleted, answered } = told;
    eprintln!("{} created, {} deleted, {answered} answers", created.len(), deleted.len());
    let (mut known, mut claims) = (BTreeSet::new(), BTreeSet::new());
    let agreed = until("claims and sandboxes agree", async || {
        known.clear();
        let mut sandboxes = std::pin::pin!(client.sandboxes(SandboxQuery::default()));
        while let Some(sandbox) = sandboxes.next().await {
            let sandbox = sandbox?;
            assert_ne!(sandbox.state, SandboxState::Failed, "{sandbox:?}");
            known.insert(sandbox.id.to_string());
        }
        let names = place.namespace()?.names("sandboxclaims")?;
        claims = names.iter().filter_map(|name| name.rsplit('/').next().map(str::to_owned)).collect();
        Ok(known == claims)
    });
    agreed.await.map_err(|error| format!("{error}: known {known:?}, claims {claims:?}"))?;
    for (name, id) in created.iter().filter(|(_, id)| !deleting.contains(*id)) {
        let sandbox = client.sandbox(name).await?;
        assert_eq!((sandbox.id.as_str(), sandbox.state), (id.as_str(), SandboxState::Ready), "{name} was lost");
        assert_eq!(client.exec(id, &exec(&["echo", "alive"])).await?.stdout, "alive\n");
    }
    for id in &deleted {
        assert_eq!(client.sandbox(id).await?.state, SandboxState::Deleted, "{id} came back");
    }
    // Each claim has one Sandbox, and each Sandbox that is nobody's waits in the pool.
    let path = "jsonpath={range .items[*]}{.metadata.labels.agents\\.x-k8s\\.io/claim-uid}{\"\\n\"}{end}";
    let owners = place.kubectl(&["get", "sandboxes", "-o", path])?;
    let owners: Vec<&str> = owners.lines().filter(|line| !line.is_empty()).collect();
    let distinct: BTreeSet<&str> = owners.iter().copied().collect();
    assert_eq!((owners.len(), distinct.len()), (claims.len(), claims.len()), "{owners:?}");
    Ok(())
}

//! Claims many sandboxes and tells how long each took to be ready: `cargo run --example claims -- POOL COUNT [each|turns]`
//!
//! All at once, and one watch serves them all; with `each`, every claim is waited for by a watch of its own, as separate
//! programs would, and with `turns` so too, one after another.

use std::{
    error::Error,
    io::Write as _,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use agent_sandbox::{AgentSandbox, ClaimBuilder, ClaimCache, ClaimState, Claimed};
use tokio::task::JoinSet;

const RUN: &str = "agent-sandbox-example/run";
const PATIENCE: Duration = Duration::from_secs(300);
/// Between turns, so that the pool fills up again.
const PAUSE: Duration = Duration::from_millis(500);
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Took {
    claimed: Claimed,
    /// Since 1970, to be compared with what others saw.
    began: Duration,
    posted: Duration,
    ready: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let pool = arguments.next().ok_or("name a SandboxWarmPool")?;
    let count: usize = arguments.next().ok_or("say how many")?.parse()?;
    let (each, turns) = match arguments.next().as_deref() {
        None => (false, false),
        Some("each") => (true, false),
        Some("turns") => (true, true),
        Some(other) => return Err(format!("there is no way called {other}: each or turns").into()),
    };

    let cluster = AgentSandbox::try_default().await?;
    let run = std::process::id().to_string();
    let cache = cluster.claims().cache(Some(&format!("{RUN}={run}")));
    cache.current().await;

    let (mut waiting, mut all) = (JoinSet::new(), Vec::new());
    for _ in 0..count {
        let builder = ClaimBuilder::generated(pool.as_str()).label(RUN, run.as_str()).shutdown_after(PATIENCE * 2);
        waiting.spawn(claim(cluster.clone(), (!each).then(|| cache.clone()), builder));
        if turns {
            all.extend(waiting.join_next().await);
            tokio::time::sleep(PAUSE).await;
        }
    }
    while let Some(took) = waiting.join_next().await {
        all.push(took);
    }
    let all = all.into_iter().map(|took| took?).collect::<Outcome<Vec<_>>>();
    // Whatever failed, none is left.
    let mut gone = JoinSet::new();
    for claim in cluster.claims().list(Some(&format!("{RUN}={run}"))).await? {
        let (cluster, name) = (cluster.clone(), claim.metadata.name.unwrap_or_default());
        gone.spawn(async move { cluster.claims().delete(&name, None).await });
    }
    gone.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    print(&all?)
}

async fn claim(cluster: AgentSandbox, cache: Option<ClaimCache>, builder: ClaimBuilder) -> Outcome<Took> {
    let (began, start) = (SystemTime::now().duration_since(UNIX_EPOCH)?, Instant::now());
    let claimed = cluster.claim(builder).await?;
    let posted = start.elapsed();
    match cache {
        None => {
            cluster.wait_ready(&claimed, PATIENCE).await?;
        }
        Some(cache) => {
            cache.remember(claimed.claim.clone());
            let ready = cache.wait(&claimed.name, |claim| match claim.map(|claim| claim.state()) {
                None => Some(Err("it was deleted".to_owned())),
                Some(ClaimState::Ready(_)) => Some(Ok(())),
                Some(ClaimState::Failed(error)) => Some(Err(error.to_string())),
                Some(ClaimState::Pending(_)) => None,
            });
            tokio::time::timeout(PATIENCE, ready).await??;
        }
    }
    Ok(Took { claimed, began, posted, ready: start.elapsed() })
}

fn print(all: &[Took]) -> Outcome<()> {
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    let mut sorted: Vec<_> = all.iter().map(|took| took.ready).collect();
    sorted.sort_unstable();
    let at = |share: usize| sorted.get(sorted.len() * share / 100).map_or(0.0, |ready| milliseconds(*ready));
    let claims: Vec<_> = all
        .iter()
        .map(|took| {
            serde_json::json!({
                "name": took.claimed.name, "began": took.began.as_secs_f64(),
                "posted_ms": milliseconds(took.posted), "ready_ms": milliseconds(took.ready),
            })
        })
        .collect();
    let told = serde_json::json!({ "p50": at(50), "p90": at(90), "p99": at(99), "claims": claims });
    writeln!(std::io::stdout(), "{told}")?;
    Ok(())
}

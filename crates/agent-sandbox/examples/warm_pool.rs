//! Keeps sandboxes of an image warm, and claims one: `cargo run --example warm_pool -- IMAGE`

use std::{error::Error, io::Write as _, time::Duration};

use agent_sandbox::{AgentSandbox, ClaimBuilder, PoolBuilder, TemplateBuilder};

const NAME: &str = "example";
const MANAGER: &str = "agent-sandbox-example";
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args().nth(1).ok_or("name an image")?;
    let mut out = std::io::stdout();

    let cluster = AgentSandbox::try_default().await?;
    cluster.templates().apply(TemplateBuilder::image(NAME, image).restricted().build()?, MANAGER).await?;
    cluster.pools().apply(PoolBuilder::new(NAME, NAME).replicas(2).build()?, MANAGER).await?;
    cluster.pools().wait_ready_replicas(NAME, 2, PATIENCE).await?;
    writeln!(out, "2 sandboxes wait in pool {NAME}")?;

    let started = std::time::Instant::now();
    let claimed = cluster.claim(ClaimBuilder::generated(NAME).shutdown_after(Duration::from_secs(600))).await?;
    let ready = cluster.wait_ready(&claimed, PATIENCE).await?;
    writeln!(out, "{} is {} after {:?}", claimed.name, ready.sandbox_name, started.elapsed())?;

    cluster.claims().delete(&claimed.name, Some(&claimed.uid)).await?;
    cluster.pools().delete(NAME, None).await?;
    cluster.templates().delete(NAME, None).await?;
    Ok(())
}

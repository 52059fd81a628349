//! Shows what becomes of the claims of a namespace, by one watch: `cargo run --example watch -- [LABELS]`

use std::{error::Error, io::Write as _};

use agent_sandbox::{AgentSandbox, Changed, ClaimState};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let labels = std::env::args().nth(1);
    let cluster = AgentSandbox::try_default().await?;
    let claims = cluster.claims().cache(labels.as_deref());
    let mut changes = claims.changes();
    claims.current().await;
    let mut out = std::io::stdout();
    writeln!(out, "{} claims in {}", claims.list().len(), cluster.namespace())?;
    while let Some(changed) = changes.next().await {
        let Changed::Object(name) = changed else {
            writeln!(out, "{} claims", claims.list().len())?;
            continue;
        };
        match claims.get(&name).as_ref().map(|claim| claim.state()) {
            None => writeln!(out, "{name} is gone")?,
            Some(ClaimState::Ready(sandbox)) => writeln!(out, "{name} is ready: {}", sandbox.name)?,
            Some(ClaimState::Failed(error)) => writeln!(out, "{name} has failed: {error}")?,
            Some(_) => writeln!(out, "{name} is being made")?,
        }
    }
    Ok(())
}

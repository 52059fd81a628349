//! Claims a sandbox from a warm pool, runs a command in it and gives it back: `cargo run --example claim_and_run -- POOL COMMAND…`

use std::{error::Error, io::Write as _, time::Duration};

use agent_sandbox::{AgentSandbox, ClaimBuilder, Exec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let pool = arguments.next().ok_or("name a SandboxWarmPool")?;
    let command: Vec<_> = arguments.collect();

    let cluster = AgentSandbox::try_default().await?;
    // Whatever happens to this program, the claim is gone in an hour.
    let claimed =
        cluster.claim(ClaimBuilder::generated(pool.as_str()).shutdown_after(Duration::from_secs(3600))).await?;
    let done = async {
        let ready = cluster.wait_ready(&claimed, Duration::from_secs(120)).await?;
        let output = cluster.exec(&ready.sandbox_name, Exec::new(command).timeout(Duration::from_secs(600))).await?;
        std::io::stdout().write_all(&output.stdout)?;
        std::io::stderr().write_all(&output.stderr)?;
        Ok::<_, Box<dyn Error>>(output.code)
    };
    let code = done.await;
    cluster.claims().delete(&claimed.name, Some(&claimed.uid)).await?;
    std::process::exit(code?);
}

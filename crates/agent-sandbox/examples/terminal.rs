//! A shell of a sandbox in this terminal: `cargo run --example terminal -- SANDBOX [COLUMNS ROWS]`
//!
//! The terminal here stays as it is, so a line goes out when it is complete; `stty raw -echo` before makes it immediate.

use std::error::Error;

use agent_sandbox::{AgentSandbox, Exec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let sandbox = arguments.next().ok_or("name a sandbox")?;
    let columns = arguments.next().map_or(Ok(80), |columns| columns.parse())?;
    let rows = arguments.next().map_or(Ok(24), |rows| rows.parse())?;

    let cluster = AgentSandbox::try_default().await?;
    let shell = Exec::new(["/bin/sh"]).terminal(columns, rows).kill_on_drop();
    let mut running = cluster.exec_stream(sandbox, shell).await?;
    let (mut stdin, mut stdout) =
        running.stdin.take().zip(running.stdout.take()).ok_or("a terminal has input and output")?;
    let keys = tokio::spawn(async move { tokio::io::copy(&mut tokio::io::stdin(), &mut stdin).await });
    tokio::io::copy(&mut stdout, &mut tokio::io::stdout()).await?;
    keys.abort();
    std::process::exit(running.wait().await?.code);
}

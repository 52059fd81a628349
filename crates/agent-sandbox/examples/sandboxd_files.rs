//! Files and a command by sandboxd, through the API server: `cargo run --example sandboxd_files -- SANDBOX`

use std::{error::Error, io::Write as _};

use agent_sandbox::{
    AgentSandbox,
    runtime::{Command, Connection, Event, Sandboxd},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let sandbox = std::env::args().nth(1).ok_or("name a sandbox whose image runs sandboxd")?;
    let cluster = AgentSandbox::try_default().await?;
    let sandboxd = Sandboxd::new(Connection::port_forward(&cluster, sandbox))?;
    let mut out = std::io::stdout();

    sandboxd.write("example/numbers.txt", "3\n1\n2\n").await?;
    for entry in sandboxd.list("example").await? {
        writeln!(out, "{:>8} {}", entry.size, entry.name)?;
    }
    let mut process = sandboxd.start(Command::shell("sort numbers.txt").directory("example")).await?;
    while let Some(event) = process.next().await? {
        match event {
            Event::Stdout(bytes) => out.write_all(&bytes)?,
            Event::Stderr(bytes) => std::io::stderr().write_all(&bytes)?,
            Event::Exit(code) => writeln!(out, "exit code {code}")?,
        }
    }
    sandboxd.delete_all("example").await?;
    Ok(())
}

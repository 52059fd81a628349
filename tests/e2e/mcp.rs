//! A session's tools end to end: a real server and sandbox, and the official client of MCP with an agent's token, in the
//! eras of the protocol that clients speak.

use std::{fs, process::Command};

use sandbar_api::SandboxState;
use serde_json::Value;

use crate::support::{Outcome, Server, done, installed, program, until};

fn session(server: &Server, name: &str) -> Outcome<String> {
    done(&mut server.command(&["create", "--name", name]))?;
    let shown: Value = serde_json::from_str(&done(&mut server.command(&["--json", "session", "show", name]))?)?;
    Ok(shown["id"].as_str().ok_or("no id")?.to_owned())
}

fn agent(server: &Server, session: &str) -> Outcome<String> {
    let create = ["--json", "token", "create", "--name", "agent", "--role", "agent", "--session", session];
    let made: Value = serde_json::from_str(&done(&mut server.command(&create))?)?;
    Ok(made["secret"].as_str().ok_or("no secret")?.to_owned())
}

#[test]
fn the_official_client_works_in_every_era() -> Outcome {
    let Some(package) = installed("the_official_client_works_in_every_era", "mcp") else { return Ok(()) };
    let server = Server::start()?;
    let (own, other) = (session(&server, "own")?, session(&server, "other")?);
    let token = agent(&server, &own)?;
    let url = |session: &str| -> Outcome<String> { Ok(format!("{}/v1/sessions/{session}/mcp", server.base()?)) };
    for era in ["legacy", "2026-07-28", "auto"] {
        let mut client = Command::new("/usr/bin/python3");
        client.args([
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/mcp/client.py"),
            &url(&own)?,
            &url(&other)?,
            &token,
            era,
        ]);
        let said = done(client.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1"))?;
        assert!(said.ends_with("done\n"), "{era}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn what_idleness_stopped_a_tool_brings_back() -> Outcome {
    let server = Server::start_furnished(program(), |home| {
        fs::create_dir(home.join("templates"))?;
        Ok(fs::write(home.join("templates/nap.toml"), "[idle]\nstop_after = \"1s\"\n")?)
    })?;
    done(&mut server.command(&["create", "--name", "nap", "--template", "nap"]))?;
    let client = server.client()?;
    until("a stopped sandbox", async || Ok(client.sandbox("nap").await?.state == SandboxState::Stopped)).await?;
    let url = format!("{}/v1/sessions/nap/mcp", server.base()?);
    let answer = crate::support::tool(&url, &format!("Bearer {}", agent(&server, "nap")?), "echo awake").await?;
    assert!(answer.contains(r#""stdout":"awake\n""#), "{answer}");
    Ok(())
}

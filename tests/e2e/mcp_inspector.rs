//! The command line of the official MCP inspector, over HTTP and over standard input and output.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::support::{Outcome, Server, done, installed};

/// Where `make test-needs` put it, with the Node.js that it needs.
struct Inspector {
    node: PathBuf,
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Inspector {
    fn find(test: &str) -> Outcome<Option<Self>> {
        let Some(packages) = installed(test, "inspector") else { return Ok(None) };
        let programs = packages.join("node_modules/.bin");
        Ok(Some(Self {
            node: programs.join("node"),
            program: programs.join("mcp-inspector"),
            home: tempfile::tempdir()?,
        }))
    }

    fn ask(&self, era: &str, target: &[&str], more: &[&str]) -> Outcome<Value> {
        let mut command = Command::new(&self.node);
        // Its own options may stand before what it starts, never after.
        command
            .arg(&self.program)
            .args(["--cli", "--protocol-era", era, "--format", "json", "-q"])
            .args(more)
            .args(target);
        command.env("HOME", self.home.path()).env_remove("SANDBAR_HOME");
        let said = done(&mut command)?;
        Ok(serde_json::from_str(&said).map_err(|error| format!("{said}: {error}"))?)
    }

    fn works(&self, era: &str, target: &[&str], options: &[&str]) -> Outcome {
        let with = |more: &[&'static str]| -> Vec<String> {
            options.iter().chain(more).map(|word| (*word).to_owned()).collect()
        };
        let ask = |more: Vec<String>| self.ask(era, target, &more.iter().map(String::as_str).collect::<Vec<_>>());
        let listed = ask(with(&["--method", "tools/list"]))?.to_string();
        for tool in ["exec", "read_file", "write_file", "list_dir"] {
            assert!(listed.contains(&format!("\"name\":\"{tool}\"")), "{era}: {listed}");
        }
        let call = [
            "--method",
            "tools/call",
            "--tool-name",
            "exec",
            "--tool-args-json",
            r#"{"command":"echo $((6*7)); exit 3"}"#,
        ];
        let ran = ask(with(&call))?;
        let ran = ran.get("result").unwrap_or(&ran);
        assert_eq!(ran["structuredContent"]["stdout"], "42\n", "{era}: {ran}");
        assert_eq!(ran["structuredContent"]["exit_code"], 3, "{era}: {ran}");
        Ok(())
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn the_inspector_works_over_http_and_over_stdio_in_both_eras() -> Outcome {
    let Some(inspector) = Inspector::find("the_inspector_works_over_http_and_over_stdio_in_both_eras")? else {
        return Ok(());
    };
    let server = Server::start()?;
    done(&mut server.command(&["create", "--name", "own"]))?;
    let create = ["--json", "token", "create", "--name", "agent", "--role", "agent", "--session", "own"];
    let token: Value = serde_json::from_str(&done(&mut server.command(&create))?)?;
    let header = format!("Authorization: Bearer {}", token["secret"].as_str().ok_or("no secret")?);
    let url = format!("{}/v1/sessions/own/mcp", server.base()?);
    let (program, home) = (path(&crate::support::program()), path(server.home.path()));
    for era in ["legacy", "modern"] {
        inspector.works(era, &[&url], &["--transport", "http", "--header", &header])?;
        inspector.works(era, &[&program, "mcp", "own", "--home", &home], &[])?;
    }
    Ok(())
}

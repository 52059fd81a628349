//! The clients of agent-sandbox, as they are released, drive a sandbox of ours: the Python package through the router and at
//! sandboxd's ports, and a client made from the process service's own file.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::support::{Outcome, Server, done, installed, program};

const TEMPLATE: &str = "[runtimes.sandboxd]\n[runtimes.legacy]\n";

fn server() -> Outcome<Server> {
    let server = Server::start_furnished(program(), |home| {
        fs::create_dir(home.join("templates"))?;
        Ok(fs::write(home.join("templates/runtime.toml"), TEMPLATE)?)
    })?;
    done(&mut server.command(&["create", "--name", "web", "--template", "runtime"]))?;
    Ok(server)
}

fn run(packages: &Path, script: &str, arguments: &[&str]) -> Outcome {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/agent_sandbox/");
    let mut client = Command::new("/usr/bin/python3");
    client.arg(format!("{place}{script}")).args(arguments);
    client.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = done(&mut client)?;
    assert!(said.ends_with("done\n"), "{script} {arguments:?}: {said}");
    Ok(())
}

/// `sandbar forward` of one port, ended when dropped.
struct Forward {
    process: Child,
    port: String,
}

impl Forward {
    fn to(server: &Server, port: u16) -> Outcome<Self> {
        let mut forward = server.command(&["--json", "forward", "web", &format!("{port}:0")]);
        let process = forward.stdout(Stdio::piped()).spawn()?;
        let mut forward = Self { process, port: String::new() };
        let mut line = String::new();
        BufReader::new(forward.process.stdout.as_mut().ok_or("no stdout")?).read_line(&mut line)?;
        let told: Value = serde_json::from_str(&line)?;
        let local = told["local"].as_str().and_then(|local| local.rsplit(':').next());
        forward.port = local.ok_or("no port")?.to_owned();
        Ok(forward)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _waited = self.process.wait();
    }
}

#[test]
fn the_python_package_through_the_router() -> Outcome {
    let Some(packages) = installed("the_python_package_through_the_router", "agent-sandbox") else { return Ok(()) };
    let server = server()?;
    done(&mut server.command(&["create", "--name", "other"]))?;
    let told = |arguments: &[&str], field: &str| -> Outcome<String> {
        let told: Value = serde_json::from_str(&done(&mut server.command(arguments))?)?;
        Ok(told[field].as_str().ok_or("no token")?.to_owned())
    };
    let scoped = told(&["--json", "token", "router", "web", "--ttl", "1h"], "token")?;
    let operator = told(&["--json", "token", "create", "--name", "sdk", "--role", "operator"], "secret")?;
    run(&packages, "sdk.py", &["legacy", &format!("{}/router", server.base()?), &scoped, &operator, "web"])
}

#[test]
fn the_python_package_at_sandboxds_ports() -> Outcome {
    let Some(packages) = installed("the_python_package_at_sandboxds_ports", "agent-sandbox") else { return Ok(()) };
    let server = server()?;
    let (rest, grpc) = (Forward::to(&server, 8080)?, Forward::to(&server, 9090)?);
    done(&mut server.command(&["exec", "web", "--", "mkdir", "data"]))?;
    run(&packages, "sdk.py", &["sandboxd", &rest.port, &grpc.port, "web"])
}

#[test]
fn a_generated_client_of_the_process_service() -> Outcome {
    let Some(packages) = installed("a_generated_client_of_the_process_service", "agent-sandbox") else { return Ok(()) };
    let server = server()?;
    let grpc = Forward::to(&server, 9090)?;
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/proto/process.proto");
    run(&packages, "process.py", &[proto, &format!("127.0.0.1:{}", grpc.port)])
}

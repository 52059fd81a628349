//! The gRPC API end to end: a real server and sandbox, and a Python client generated from the proto as anybody would.

use std::process::Command;

use serde_json::Value;

use crate::support::{Outcome, Server, done, installed};

#[test]
fn a_generated_python_client_works() -> Outcome {
    let Some(packages) = installed("a_generated_python_client_works", "agent-sandbox") else { return Ok(()) };
    let stubs = tempfile::tempdir()?;
    let python = || {
        let mut python = Command::new("/usr/bin/python3");
        let path = std::env::join_paths([packages.as_path(), stubs.path()]);
        path.map(|path| python.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1"))?;
        Ok::<_, std::env::JoinPathsError>(python)
    };
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/proto");
    let out = stubs.path().display();
    done(python()?.args(["-m", "grpc_tools.protoc", "-I", proto]).args([
        format!("--python_out={out}"),
        format!("--grpc_python_out={out}"),
        "sandbar/v1/sandbar.proto".to_owned(),
    ]))?;
    let server = Server::start()?;
    let create = ["--json", "token", "create", "--name", "grpc", "--role", "operator"];
    let token: Value = serde_json::from_str(&done(&mut server.command(&create))?)?;
    let base = server.base()?;
    let address = base.strip_prefix("http://").ok_or("no address")?;
    let socket = format!("unix://{}", server.socket().display());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/client.py");
    let secret = token["secret"].as_str().ok_or("no secret")?;
    let said = done(python()?.args([script, address, &socket, secret]))?;
    assert!(said.ends_with("done\n"), "{said}");
    Ok(())
}

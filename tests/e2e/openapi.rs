//! `openapi.json` as strangers read it: a validator, two generators, and the clients that they make, against a real server.

use std::process::Command;

use serde_json::Value;

use crate::support::{Outcome, Server, done, installed};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi.json");
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/openapi");

fn admin(server: &Server) -> Outcome<(String, String)> {
    let create = ["--json", "token", "create", "--name", "openapi", "--role", "admin"];
    let token: Value = serde_json::from_str(&done(&mut server.command(&create))?)?;
    Ok((server.base()?, token["secret"].as_str().ok_or("no secret")?.to_owned()))
}

#[test]
fn a_generated_python_client_works_and_schemas_refuse_what_the_server_refuses() -> Outcome {
    let test = "a_generated_python_client_works_and_schemas_refuse_what_the_server_refuses";
    let Some(packages) = installed(test, "openapi") else { return Ok(()) };
    let made = tempfile::tempdir()?;
    let python = || {
        let mut python = Command::new("/usr/bin/python3");
        let path = std::env::join_paths([packages.as_path(), made.path()]);
        path.map(|path| python.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1"))?;
        python.env("NO_COLOR", "1").env("COLUMNS", "200");
        Ok::<_, std::env::JoinPathsError>(python)
    };
    done(python()?.args(["-m", "openapi_spec_validator", DOCUMENT]))?;
    let said = done(
        python()?
            .args(["-m", "openapi_python_client", "generate", "--meta", "none", "--path", DOCUMENT, "--config"])
            .args([&format!("{HERE}/python.yml"), "--output-path"])
            .arg(made.path().join("sandbar_client")),
    )?;
    // What it cannot read it leaves out.
    assert!(!said.contains("WARNING"), "{said}");
    let server = Server::start()?;
    let (base, secret) = admin(&server)?;
    let said = done(python()?.args([&format!("{HERE}/client.py"), &base, &secret, DOCUMENT]))?;
    assert!(said.ends_with("done\n"), "{said}");
    Ok(())
}

#[test]
fn a_generated_typescript_client_compiles_and_works() -> Outcome {
    let Some(packages) = installed("a_generated_typescript_client_compiles_and_works", "openapi-typescript") else {
        return Ok(());
    };
    let made = tempfile::tempdir()?;
    let modules = packages.join("node_modules");
    std::os::unix::fs::symlink(&modules, made.path().join("node_modules"))?;
    std::fs::copy(format!("{HERE}/client.ts"), made.path().join("client.ts"))?;
    let node = |program: &str| {
        let mut node = Command::new("node");
        node.arg(modules.join(program)).current_dir(made.path()).env("HOME", made.path()).env("NO_COLOR", "1");
        node
    };
    done(node("openapi-typescript/bin/cli.js").args([DOCUMENT, "-o", "sandbar.d.ts"]))?;
    let options = ["--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "node16", "--skipLibCheck"];
    done(node("typescript/lib/tsc.js").args(options).arg("client.ts"))?;
    let server = Server::start()?;
    let (base, secret) = admin(&server)?;
    let said = done(Command::new("node").arg(made.path().join("client.js")).args([&base, &secret]))?;
    assert!(said.ends_with("done\n"), "{said}");
    Ok(())
}

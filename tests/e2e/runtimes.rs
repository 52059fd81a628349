//! Sandboxes that serve the runtimes of agent-sandbox, reached with programs people use.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use crate::support::{Outcome, Server, done};

const TEMPLATE: &str = "[env]\nSANDBOX_COLOUR = \"blue\"\n[runtimes.sandboxd]\n[runtimes.legacy]\n";

/// `sandbar forward`, ended when dropped.
struct Forward(Child, String);

impl Forward {
    fn start(server: &Server, port: &str) -> Outcome<Self> {
        let mut process = server.command(&["forward", "a", port]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
        let address = line.split_whitespace().nth(1).ok_or_else(|| format!("no address in {line:?}"))?.to_owned();
        Ok(Self(process, format!("http://{address}")))
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _dead = self.0.wait();
    }
}

fn curl(arguments: &[&str]) -> Outcome<String> {
    done(Command::new("curl").args(["-sS", "--noproxy", "*", "-m", "30"]).args(arguments))
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

#[test]
fn a_sandbox_serves_what_its_template_names() -> Outcome {
    if !is_there("curl") {
        sandbar_test_harness::missing("a_sandbox_serves_what_its_template_names", "curl");
        return Ok(());
    }
    let server = Server::start()?;
    std::fs::write(server.home.path().join("templates/served.toml"), TEMPLATE)?;
    done(&mut server.command(&["create", "--name", "a", "--template", "served"]))?;

    let legacy = Forward::start(&server, "8888")?;
    let told = curl(&[&format!("{}/", legacy.1)])?;
    assert_eq!(told, r#"{"message":"Sandbox Runtime is active.","status":"ok"}"#);
    let body = r#"{"command":"sh -c 'echo $SANDBOX_COLOUR; id -u; pwd'"}"#;
    let told = curl(&["-H", "Content-Type: application/json", "-d", body, &format!("{}/execute", legacy.1)])?;
    assert!(told.contains(r#""exit_code":0"#) && told.contains("blue") && told.contains("/workspace"), "{told}");

    let rest = Forward::start(&server, "8080")?;
    let files = format!("{}/v1/files", rest.1);
    let status = |arguments: &[&str]| curl(&[&["-o", "/dev/null", "-w", "%{http_code}"], arguments].concat());
    assert_eq!(status(&["-X", "PUT", "--data-binary", "from outside", &format!("{files}/d/f")])?, "204");
    // The same files as everybody else's: written there, read here.
    assert_eq!(done(&mut server.command(&["exec", "a", "--", "cat", "/workspace/d/f"]))?, "from outside");
    assert_eq!(curl(&["-r", "5-", &format!("{files}/d%2Ff")])?, "outside");
    assert_eq!(status(&["--path-as-is", &format!("{files}/%2E%2E/etc/passwd")])?, "403");
    done(&mut server.command(&["exec", "a", "--", "ln", "-s", "/etc/passwd", "/workspace/out"]))?;
    assert_eq!(status(&[&format!("{files}/out")])?, "403");
    assert!(curl(&[&format!("{}/v1/metadata", rest.1)])?.contains(r#""SANDBOX_COLOUR":"blue""#));

    // What runs through them is of the sandbox: behind its fence, and gone with it.
    let body = r#"{"command":"sh -c 'sleep 1000 > /dev/null 2>&1 & cat /proc/self/status'"}"#;
    let told = curl(&["-d", body, &format!("{}/execute", legacy.1)])?;
    assert!(told.contains("NoNewPrivs:\\t1"), "{told}");
    done(&mut server.command(&["stop", "a"]))?;
    done(&mut server.command(&["start", "a"]))?;
    let legacy = Forward::start(&server, "8888")?;
    assert!(curl(&[&format!("{}/exists/d%2Ff", legacy.1)])?.contains(r#""exists":true"#));
    Ok(())
}

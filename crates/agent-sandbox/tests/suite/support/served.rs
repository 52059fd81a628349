//! A sandbox that serves both runtimes, of a server in a home of its own.

use std::{
    cell::RefCell,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Ended when dropped, after what depends on it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

pub(crate) struct Served {
    /// The server's address.
    pub(crate) base: String,
    program: PathBuf,
    forwards: RefCell<Vec<Ended>>,
    server: Option<Ended>,
    home: tempfile::TempDir,
}

/// The one that was named, else the one that cargo built beside this test.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("SANDBAR_PROGRAM").map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("sandbar"));
    named.or_else(beside).filter(|program| program.exists())
}

impl Served {
    /// A sandbox `web`; `sandboxd` is added to the settings of that runtime. None where there is no program, which is said.
    pub(crate) fn start(test: &str, sandboxd: &str) -> Outcome<Option<Self>> {
        let Some(program) = program() else {
            sandbar_test_harness::not_run(test, "SANDBAR_PROGRAM names no program that serves sandboxes");
            return Ok(None);
        };
        let home = tempfile::tempdir()?;
        std::fs::create_dir(home.path().join("templates"))?;
        let template = format!("[runtimes.sandboxd]\n{sandboxd}[runtimes.legacy]\n");
        std::fs::write(home.path().join("templates/runtime.toml"), template)?;
        let log = std::fs::File::create(home.path().join("log"))?;
        let mut up = Command::new(&program);
        up.args(["up", "--listen", "127.0.0.1:0"]).env("SANDBAR_HOME", home.path());
        let mut server = Ended(up.stdout(Stdio::piped()).stderr(log).spawn()?);
        let stdout = server.0.stdout.take().ok_or("no stdout")?;
        let mut base = None;
        // How to sign in is the last line, printed when the server answers.
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            match line.split_whitespace().next() {
                Some("listening") => base = line.split_whitespace().nth(1).map(str::to_owned),
                Some("sign") => break,
                _ => {}
            }
        }
        let log = std::fs::read_to_string(home.path().join("log"))?;
        let base = base.ok_or_else(|| format!("the server ended: {log}"))?;
        let served = Self { base, program, forwards: RefCell::default(), server: Some(server), home };
        served.run(&["create", "--name", "web", "--template", "runtime"])?;
        Ok(Some(served))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("SANDBAR_HOME", self.home.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome<String> {
        let output = self.command(arguments).output()?;
        if !output.status.success() {
            return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(crate) fn router_token(&self) -> Outcome<String> {
        let told: Value = serde_json::from_str(&self.run(&["--json", "token", "router", "web", "--ttl", "1h"])?)?;
        Ok(told["token"].as_str().ok_or("no token")?.to_owned())
    }

    /// A local address that leads to a port of the sandbox.
    pub(crate) fn forward(&self, port: u16) -> Outcome<String> {
        let mut forward = self.command(&["--json", "forward", "web", &format!("{port}:0")]);
        let mut process = Ended(forward.stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(process.0.stdout.as_mut().ok_or("no stdout")?).read_line(&mut line)?;
        self.forwards.borrow_mut().push(process);
        let told: Value = serde_json::from_str(&line)?;
        Ok(format!("http://{}", told["local"].as_str().ok_or("no address")?))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _removed = self.run(&["rm", "web"]);
        self.forwards.borrow_mut().clear();
        self.server = None;
    }
}

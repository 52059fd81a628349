//! A real server whose gate knows the tests' names and roots, and the sandboxes behind it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    gate::roots::Roots,
    support::{Outcome, Server, done, program, text},
};

/// Names that lead to this host.
const NAMES: [&str; 9] =
    ["web.test", "other.test", "git.test", "pypi.test", "npm.test", "cargo.test", "go.test", "apt.test", "llm.test"];

/// What was said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

pub(crate) struct House {
    pub(crate) server: Server,
    pub(crate) roots: Roots,
    /// For what a test makes: a home is nobody's workspace.
    place: tempfile::TempDir,
}

impl House {
    pub(crate) fn open() -> Outcome<Self> {
        Self::with(Roots::new()?, &[], "")
    }

    /// Whose log tells everything there is to tell, that of the libraries too.
    pub(crate) fn talkative() -> Outcome<Self> {
        let place = tempfile::tempdir()?;
        let loud = place.path().join("sandbar");
        fs::write(&loud, format!("#!/bin/sh\nSANDBAR_LOG=trace,h2=trace exec {} \"$@\"\n", program().display()))?;
        fs::set_permissions(&loud, fs::Permissions::from_mode(0o755))?;
        Self::by(loud, place, Roots::new()?, &[], "")
    }

    /// With more names, and more in `gateway.toml`.
    pub(crate) fn with(roots: Roots, names: &[(&str, String)], more: &str) -> Outcome<Self> {
        Self::by(program(), tempfile::tempdir()?, roots, names, more)
    }

    fn by(
        program: PathBuf,
        place: tempfile::TempDir,
        roots: Roots,
        names: &[(&str, String)],
        more: &str,
    ) -> Outcome<Self> {
        let mut config =
            "[network]\nprivate = [\"127.0.0.0/8\"]\nroots = \"test-ca.pem\"\n\n[network.hosts]\n".to_owned();
        for name in NAMES.iter().filter(|name| names.iter().all(|(other, _)| other != *name)) {
            config += &format!("\"{name}\" = [\"127.0.0.1\"]\n");
        }
        for (name, address) in names {
            config += &format!("\"{name}\" = [\"{address}\"]\n");
        }
        config += more;
        let pem = roots.pem.clone();
        let server = Server::start_furnished(program, |home| {
            fs::write(home.join("test-ca.pem"), pem)?;
            Ok(fs::write(home.join("gateway.toml"), config)?)
        })?;
        Ok(Self { server, roots, place })
    }

    pub(crate) fn sandbar(&self, arguments: &[&str]) -> Outcome<String> {
        done(&mut self.server.command(arguments))
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Outcome<Value> {
        let arguments: Vec<_> = ["--json"].iter().chain(arguments).copied().collect();
        Ok(serde_json::from_str(&self.sandbar(&arguments)?)?)
    }

    /// Whatever comes of it.
    pub(crate) fn tried(&self, arguments: &[&str]) -> Outcome<Said> {
        Ok(self.server.command(arguments).output()?.into())
    }

    /// What this host may be unable to enforce: then that is said, by name.
    pub(crate) fn if_enforceable(&self, test: &str, arguments: &[&str]) -> Outcome<bool> {
        let said = self.tried(arguments)?;
        match said.code {
            Some(0) => Ok(true),
            Some(7) => {
                sandbar_test_harness::not_run(test, &format!("{}: {}", arguments.join(" "), said.err.trim()));
                Ok(false)
            }
            _ => Err(format!("{arguments:?}: {said:?}").into()),
        }
    }

    /// A sandbox that may talk to these places, with the tests' root in its workspace for what is only tunnelled.
    pub(crate) fn create(&self, name: &str, allow: &[&str], more: &[&str]) -> Outcome {
        let mut arguments = vec!["create", "--name", name];
        arguments.extend(allow.iter().flat_map(|rule| ["--allow", rule]));
        arguments.extend(more);
        self.sandbar(&arguments)?;
        let pem = self.server.home.path().join("test-ca.pem");
        let place = format!("{name}:/workspace/ca.pem");
        self.sandbar(&["cp", pem.to_str().ok_or("path")?, &place])?;
        Ok(())
    }

    /// A script in a sandbox, whatever comes of it.
    pub(crate) fn inside(&self, name: &str, script: &str) -> Outcome<Said> {
        self.tried(&["exec", "--timeout", "60s", name, "--", "sh", "-c", script])
    }

    /// A script in a sandbox that has to succeed.
    pub(crate) fn well(&self, name: &str, script: &str) -> Outcome<String> {
        let said = self.inside(name, script)?;
        if said.code != Some(0) {
            return Err(format!("{script}: {said:?}\n{}", self.log(name)).into());
        }
        Ok(said.out)
    }

    /// What the gate noted, for failures.
    fn log(&self, name: &str) -> String {
        self.tried(&["net", "log", name]).map_or_else(|error| error.to_string(), |said| said.out + &said.err)
    }

    /// A script that goes on while the test does something else.
    pub(crate) fn begin(&self, name: &str, script: &str) -> Outcome<Running> {
        self.begin_with(name, script, "sh")
    }

    /// With an argument, its `$0`.
    pub(crate) fn begin_with(&self, name: &str, script: &str, argument: &str) -> Outcome<Running> {
        self.follow(&["exec", "-i", "--timeout", "60s", name, "--", "sh", "-c", script, argument])
    }

    /// A verb that goes on while the test does something else.
    pub(crate) fn follow(&self, arguments: &[&str]) -> Outcome<Running> {
        let mut command = self.server.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Running { child, lines })
    }

    /// The value goes in by standard input.
    pub(crate) fn secret(&self, name: &str, host: &str, place: &str, value: &str) -> Outcome {
        let mut command = self.server.command(&["secret", "set", name, "--host", host, "--as", place]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().ok_or("no stdin")?.write_all(value.as_bytes())?;
        let said = Said::from(child.wait_with_output()?);
        if said.code != Some(0) {
            return Err(format!("the secret was not set: {said:?}").into());
        }
        Ok(())
    }

    /// The only open approval, once there is one.
    pub(crate) fn asked(&self) -> Outcome<Value> {
        let mut found = Value::Null;
        until("there is a question", || {
            let listed = self.json(&["approvals"])?;
            found = listed["approvals"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|one| one["state"] == "open")
                .cloned()
                .unwrap_or_default();
            Ok(!found.is_null())
        })?;
        Ok(found)
    }

    /// A directory that goes when the house does.
    pub(crate) fn directory(&self, name: &str) -> Outcome<PathBuf> {
        let directory = self.place.path().join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }
}

pub(crate) struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    /// The next line it writes.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Gives it a line to read.
    pub(crate) fn tell(&mut self, line: &str) -> Outcome {
        let stdin = self.child.stdin.as_mut().ok_or("no stdin")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// There is nothing more to read for it.
    pub(crate) fn hush(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn is_over(&mut self) -> Outcome<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// It goes on for ever otherwise.
    pub(crate) fn stop(mut self) -> Outcome {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// What else it says, and how it ends.
    pub(crate) fn end(mut self) -> Outcome<Said> {
        self.hush();
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut rest)?;
        let output = self.child.wait_with_output()?;
        Ok(Said { out: rest, ..output.into() })
    }
}

/// Waits for a condition, with a deadline: what is awaited is checked, not hoped for.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether sandboxes find this program of the host: they have `/usr`. Says so by name where not.
pub(crate) fn has(test: &str, program: &str) -> bool {
    let found = ["/usr/local/go/bin", "/usr/local/bin", "/usr/bin", "/usr/sbin"]
        .iter()
        .any(|directory| PathBuf::from(directory).join(program).exists());
    if !found {
        sandbar_test_harness::not_run(test, &format!("there is no {program} below /usr"));
    }
    found
}

/// Where `make test-needs` put the Python packages, if it did.
pub(crate) fn python_packages(test: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let found = cache.map(|cache| cache.join("sandbar-tests/python")).filter(|place| place.join("openai").is_dir());
    if found.is_none() {
        sandbar_test_harness::missing(test, "the Python packages");
    }
    found
}

/// A program of the host, outside any sandbox, which has to succeed.
pub(crate) fn host(program: &str, arguments: &[&str]) -> Outcome<String> {
    done(Command::new(program).args(arguments))
}

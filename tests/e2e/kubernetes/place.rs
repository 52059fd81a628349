//! A server with sandboxes on the cluster, asked as a person asks it; and turns, because some tests take parts of the
//! cluster away from everybody.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{
    Outcome, Server,
    cluster::{Cluster, Namespace},
    done, text,
};

static TURNS: RwLock<()> = RwLock::new(());
const POLL: Duration = Duration::from_millis(100);
/// What a claim has of its own; templates and empty pools stay for the next.
const OWNED: &str = "sandboxclaims,sandboxes,pods,persistentvolumeclaims";

/// Held by a test while it uses the cluster.
pub(crate) enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Turn {
    pub(crate) fn shared() -> Self {
        Self::Shared { _guard: TURNS.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Nobody else is there meanwhile.
    pub(crate) fn alone() -> Self {
        Self::Alone { _guard: TURNS.write().unwrap_or_else(PoisonError::into_inner) }
    }
}

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

pub(crate) struct Place {
    pub(crate) server: Server,
    // After the server, whose namespace goes in this turn.
    _turn: Turn,
}

impl Place {
    /// A server with these templates, that reaches pods by their address.
    pub(crate) fn open(test: &str, templates: &[(&str, &str)]) -> Outcome<Option<Self>> {
        Self::with(test, Turn::shared, "reach = \"pod_ip\"", |home| write(home, templates))
    }

    pub(crate) fn with(
        test: &str,
        turn: impl FnOnce() -> Turn,
        more: &str,
        furnish: impl FnOnce(&Path) -> Outcome,
    ) -> Outcome<Option<Self>> {
        let Some(cluster) = Cluster::or_not_run(test) else { return Ok(None) };
        let turn = turn();
        Ok(Some(Self { server: Server::start_on(&cluster, more, furnish)?, _turn: turn }))
    }

    pub(crate) fn namespace(&self) -> Outcome<&Namespace> {
        Ok(self.server.namespace.as_ref().ok_or("the server is on no cluster")?)
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Outcome<String> {
        done(&mut self.namespace()?.kubectl(arguments))
    }

    /// Makes what a document describes.
    pub(crate) fn apply(&self, document: &Value) -> Outcome {
        apply(&mut self.namespace()?.kubectl(&["apply", "-f", "-"]), document)
    }

    pub(crate) fn sandbar(&self, arguments: &[&str]) -> Outcome<String> {
        done(&mut self.server.command(arguments))
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.sandbar(&[&["--json"], arguments].concat())?)?)
    }

    /// Whatever comes of it.
    pub(crate) fn tried(&self, arguments: &[&str]) -> Outcome<Said> {
        Ok(self.server.command(arguments).output()?.into())
    }

    /// It must fail with this exit code and this kind of problem, say these words about it, and what to do.
    pub(crate) fn refused(&self, arguments: &[&str], exit: i32, code: &str, words: &[&str]) -> Outcome {
        let said = self.tried(&[&["--json"], arguments].concat())?;
        let told: Value = serde_json::from_str(&said.err).map_err(|_| format!("{arguments:?}: {said:?}"))?;
        assert_eq!((said.code, told["problem"]["code"].as_str()), (Some(exit), Some(code)), "{arguments:?}: {told}");
        for word in words {
            assert!(told.to_string().contains(word), "{arguments:?}: no {word:?} in {told}");
        }
        assert!(told["problem"]["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{arguments:?}: no fix: {told}");
        Ok(())
    }

    /// A script in a sandbox that has to succeed.
    pub(crate) fn inside(&self, sandbox: &str, script: &str) -> Outcome<String> {
        self.sandbar(&["exec", "--timeout", "60s", sandbox, "--", "sh", "-c", script])
    }

    pub(crate) fn sandbox(&self, name: &str) -> Outcome<Value> {
        let all = self.json(&["ls"])?;
        let mut all = all["sandboxes"].as_array().into_iter().flatten();
        Ok(all.find(|one| one["name"] == name).cloned().ok_or_else(|| format!("there is no {name}"))?)
    }

    pub(crate) fn id(&self, name: &str) -> Outcome<String> {
        Ok(self.sandbox(name)?["id"].as_str().ok_or("no id")?.to_owned())
    }

    /// Of the pod that a sandbox has now, which on the warm path is not called like the claim.
    pub(crate) fn pod(&self, name: &str) -> Outcome<String> {
        self.kubectl(&["get", "sandboxclaim", &self.id(name)?, "-o", "jsonpath={.status.sandbox.name}"])
    }

    /// Of the one sandbox there is, also while no server answers.
    pub(crate) fn id_of_only_claim(&self) -> Outcome<String> {
        self.kubectl(&["get", "sandboxclaims", "-o", "jsonpath={.items[0].metadata.name}"])
    }

    /// What tells a pod from the one that has its name later.
    pub(crate) fn uid(&self, pod: &str) -> Outcome<String> {
        self.kubectl(&["get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"])
    }

    pub(crate) fn until_state(&self, name: &str, state: &str) -> Outcome<Value> {
        let mut seen = Value::Null;
        let reached = until(&format!("{name} is {state}"), || {
            seen = self.sandbox(name)?;
            Ok(seen["state"] == state)
        });
        reached.map_err(|error| format!("{error}: {seen}"))?;
        Ok(seen)
    }

    /// Nothing that a claim owns is left in the namespace.
    pub(crate) fn expect_nothing_left(&self) -> Outcome {
        let mut left = vec![];
        let gone = until("nothing is left", || {
            left = self.namespace()?.names(OWNED)?;
            Ok(left.is_empty())
        });
        Ok(gone.map_err(|error| format!("{error}: {left:?}"))?)
    }
}

/// Waits for a condition, with a deadline: what is awaited is checked, not hoped for.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("waited in vain: {what}").into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

pub(crate) fn write(home: &Path, templates: &[(&str, &str)]) -> Outcome {
    for (name, content) in templates {
        fs::write(home.join(format!("templates/{name}.toml")), content)?;
    }
    Ok(())
}

pub(crate) fn apply(command: &mut Command, document: &Value) -> Outcome {
    use std::{io::Write as _, process::Stdio};
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no stdin")?.write_all(document.to_string().as_bytes())?;
    let said = Said::from(child.wait_with_output()?);
    if said.code != Some(0) {
        return Err(format!("{document}: {said:?}").into());
    }
    Ok(())
}

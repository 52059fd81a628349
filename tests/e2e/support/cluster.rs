//! A cluster to test on, if there is one: named by `SANDBAR_CLUSTER`, as `make test-kubernetes` does.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{Outcome, done, program, text};

/// `sandbar up` with this in `kubernetes.toml`: it must end, with a failure that has these words and a hint.
pub(crate) fn expect_no_start(settings: &str, words: &[&str]) -> Outcome {
    let home = tempfile::tempdir()?;
    fs::write(home.path().join("kubernetes.toml"), settings)?;
    let begun = Instant::now();
    let mut up = Command::new("timeout");
    up.arg("120").arg(program()).args(["up", "--listen", "127.0.0.1:0", "--provider", "kubernetes"]);
    let said = up.env("SANDBAR_HOME", home.path()).output()?;
    assert!(matches!(said.status.code(), Some(1 | 2)), "{settings}: {said:?}");
    assert!(begun.elapsed() < Duration::from_secs(100), "{settings}: it took {:?}", begun.elapsed());
    let told = text(&said.stderr);
    for word in words.iter().chain(&["hint: "]) {
        assert!(told.contains(word), "{settings}: no {word:?} in {told}");
    }
    assert!(!home.path().join("sandbar.sock").exists(), "it listens: {told}");
    Ok(())
}

#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) image: String,
    pub(crate) guest_image: String,
}

/// A namespace of one test's own, which goes with everything in it.
pub(crate) struct Namespace {
    pub(crate) cluster: Cluster,
    pub(crate) name: String,
}

impl Cluster {
    pub(crate) fn find() -> Option<Self> {
        let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            kubeconfig: named("SANDBAR_CLUSTER")?.into(),
            image: named("SANDBAR_CLUSTER_IMAGE")?,
            guest_image: named("SANDBAR_CLUSTER_GUEST_IMAGE")?,
        })
    }

    /// A test that needs one and has none says so.
    pub(crate) fn or_not_run(test: &str) -> Option<Self> {
        let found = Self::find();
        if found.is_none() {
            sandbar_test_harness::not_run(test, "there is no cluster: `make test-kubernetes` makes one");
        }
        found
    }

    /// Where tests that know nothing of clusters are run on one.
    pub(crate) fn chosen() -> Option<Self> {
        if std::env::var_os("SANDBAR_TEST_PROVIDER").is_some_and(|name| name == "kubernetes") {
            Self::find()
        } else {
            None
        }
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command
    }

    /// Refuses what Pod Security calls anything but `restricted`.
    pub(crate) fn namespace(&self, name: &str) -> Outcome<Namespace> {
        done(&mut self.kubectl(&["create", "namespace", name]))?;
        let label = "pod-security.kubernetes.io/enforce=restricted";
        done(&mut self.kubectl(&["label", "namespace", name, label]))?;
        Ok(Namespace { cluster: self.clone(), name: name.to_owned() })
    }
}

impl Namespace {
    /// Of a server with this home, whose name no other test's has.
    pub(crate) fn of(cluster: &Cluster, home: &Path) -> Outcome<Self> {
        let name = home.file_name().ok_or("the root is no home")?.to_string_lossy().to_lowercase();
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        cluster.namespace(&format!("t-{plain}-{}", std::process::id()))
    }

    /// `kubernetes.toml` for a server, with what else it is to say.
    pub(crate) fn furnish(&self, home: &Path, more: &str) -> Outcome {
        let Cluster { kubeconfig, image, guest_image } = &self.cluster;
        let text = format!(
            "kubeconfig = {kubeconfig:?}\nnamespace = {:?}\nimage = {image:?}\nguest_image = {guest_image:?}\n\
             image_pull_policy = \"IfNotPresent\"\n{more}\n",
            self.name
        );
        Ok(fs::write(home.join("kubernetes.toml"), text)?)
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        // First, since what follows may end with a command for a pod.
        let mut command = self.cluster.kubectl(&["--namespace", &self.name]);
        command.args(arguments);
        command
    }

    /// Names of all objects of a kind.
    pub(crate) fn names(&self, kind: &str) -> Outcome<Vec<String>> {
        let listed = done(&mut self.kubectl(&["get", kind, "-o", "name"]))?;
        Ok(listed.lines().map(str::to_owned).collect())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let mut gone = self.cluster.kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
        let _gone = gone.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

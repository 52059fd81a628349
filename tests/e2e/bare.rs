//! Clusters on which agent-sandbox is missing or too old, by a real API server that serves nothing else: the person who
//! asks is told what is missing and how to get it. `SANDBAR_CLUSTER_BARE` says what is served (`none`, `v0.2.1`, `v0.4.6`).

use std::process::Command;

use serde_json::Value;

use crate::support::{
    Outcome,
    cluster::{Cluster, expect_no_start},
    done, program, text,
};

const INSTALL: &str = "agent-sandbox 1.0 or later";

/// What is said of a cluster that serves this; `words` are about why.
fn expect_refusal(serves: &str, test: &str, words: &[&str]) -> Outcome {
    let named = |name: &str| std::env::var(name).ok();
    let kubeconfig = named("SANDBAR_CLUSTER").filter(|_| named("SANDBAR_CLUSTER_BARE").is_some_and(|it| it == serves));
    let Some(kubeconfig) = kubeconfig else {
        sandbar_test_harness::not_run(
            test,
            &format!("no API server with {serves} of agent-sandbox: `make test-kubernetes` makes one"),
        );
        return Ok(());
    };
    let home = tempfile::tempdir()?;
    let ask = |arguments: &[&str]| {
        let mut sandbar = Command::new(program());
        sandbar.args(arguments).args(["--kubeconfig", &kubeconfig]).env("SANDBAR_HOME", home.path());
        sandbar.output()
    };

    let checked = ask(&["kubernetes", "check"])?;
    let shown = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{shown}");
    let mut lines = shown.lines().skip_while(|line| !line.contains("✗ agent-sandbox: "));
    let (red, fix) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    for word in ["sandboxes, ", "sandboxtemplates, ", "sandboxwarmpools, ", "sandboxclaims in v1beta1 missing"] {
        assert!(red.contains(word), "no {word:?} in {shown}");
    }
    assert!(words.iter().all(|word| red.contains(word)), "no {words:?} in {shown}");
    assert!(fix.contains("fix: ") && fix.contains(INSTALL), "{shown}");
    assert!(shown.contains("this cluster cannot hold sandboxes"), "{shown}");
    // What else there is to say is said, and nothing that was not seen.
    let report: Value = serde_json::from_slice(&ask(&["--json", "kubernetes", "check"])?.stdout)?;
    let verdict = |check: &str| {
        let mut findings = report["findings"].as_array().into_iter().flatten();
        findings.find(|one| one["check"] == check).map(|one| one["verdict"].clone())
    };
    for (check, expected) in
        [("API server", "green"), ("credentials", "green"), ("controller", "grey"), ("network policy", "grey")]
    {
        assert_eq!(verdict(check), Some(expected.into()), "{check}: {report:#}");
    }
    let cluster = Cluster { kubeconfig: kubeconfig.clone().into(), image: String::new(), guest_image: String::new() };
    assert_eq!(done(&mut cluster.kubectl(&["get", "pods", "--all-namespaces", "-o", "name"]))?, "");

    let written = ask(&["kubernetes", "manifests", "--check"])?;
    let told = text(&written.stderr);
    assert!(!written.status.success() && written.stdout.is_empty(), "{told}");
    assert!(told.contains("agent-sandbox: ") && told.contains(INSTALL), "{told}");

    let address = "jsonpath={.clusters[0].cluster.server}";
    let address = done(&mut cluster.kubectl(&["config", "view", "-o", address]))?;
    let started = [&[INSTALL, &address], words].concat();
    expect_no_start(&format!("kubeconfig = {kubeconfig:?}\n"), &started)
}

mod none {
    use super::{Outcome, expect_refusal};

    #[test]
    fn a_cluster_without_agent_sandbox_is_refused() -> Outcome {
        expect_refusal("none", "a_cluster_without_agent_sandbox_is_refused", &["sandboxclaims", "v1beta1"])
    }
}

mod v0_2_1 {
    use super::{Outcome, expect_refusal};

    #[test]
    fn one_of_the_first_agent_sandboxes_is_refused() -> Outcome {
        expect_refusal("v0.2.1", "one_of_the_first_agent_sandboxes_is_refused", &["v1alpha1", "v1beta1"])
    }
}

mod v0_4_6 {
    use super::{Outcome, expect_refusal};

    #[test]
    fn the_last_agent_sandbox_of_the_old_version_is_refused() -> Outcome {
        expect_refusal("v0.4.6", "the_last_agent_sandbox_of_the_old_version_is_refused", &["v1alpha1", "v1beta1"])
    }
}

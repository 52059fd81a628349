//! A server that does not find its cluster says why, what to do, and ends; a check says the same.

use std::{fs, path::Path, process::Command};

use crate::{
    kubernetes::place::Turn,
    support::{
        Outcome,
        cluster::{Cluster, expect_no_start},
        done, program, text,
    },
};

fn kubeconfig(directory: &Path, name: &str, server: &str) -> Outcome<String> {
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    fs::write(directory.join(name), config.to_string())?;
    Ok(format!("kubeconfig = {:?}\n", directory.join(name)))
}

#[test]
fn a_cluster_that_is_not_there_is_missed_at_the_start() -> Outcome {
    let place = tempfile::tempdir()?;
    expect_no_start("kubeconfig = \"/none/such\"\n", &["/none/such"])?;
    expect_no_start("\nnamspace = \"a\"\n", &["kubernetes.toml:2", "namspace"])?;
    // Nobody listens there.
    let nobody = kubeconfig(place.path(), "nobody", "http://127.0.0.1:1")?;
    expect_no_start(&nobody, &["127.0.0.1:1"])
}

#[test]
fn a_wrong_context_or_credential_is_told_at_the_start() -> Outcome {
    let Some(cluster) = Cluster::or_not_run("a_wrong_context_or_credential_is_told_at_the_start") else {
        return Ok(());
    };
    let _turn = Turn::shared();
    let real = format!("kubeconfig = {:?}\n", cluster.kubeconfig);
    expect_no_start(&format!("{real}context = \"none-such\"\n"), &["none-such"])?;
    let config = done(&mut cluster.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]))?;
    let mut config: serde_json::Value = serde_json::from_str(&config)?;
    config["users"][0]["user"] = serde_json::json!({ "token": "expired" });
    let place = tempfile::tempdir()?;
    fs::write(place.path().join("expired"), config.to_string())?;
    expect_no_start(&format!("kubeconfig = {:?}\n", place.path().join("expired")), &["nauthorized", "credentials"])
}

/// What a check says of the API server, and why.
fn checked(kubeconfig: &Path, variables: &[(&str, &str)]) -> Outcome<(String, String)> {
    let home = tempfile::tempdir()?;
    let mut check = Command::new(program());
    check.args(["--json", "kubernetes", "check", "--look-only", "--kubeconfig"]).arg(kubeconfig);
    let said = check.env("SANDBAR_HOME", home.path()).envs(variables.iter().copied()).output()?;
    let report: serde_json::Value = serde_json::from_slice(&said.stdout)
        .map_err(|error| format!("{error}: {} {}", text(&said.stdout), text(&said.stderr)))?;
    let mut findings = report["findings"].as_array().into_iter().flatten();
    let api = findings.find(|one| one["check"] == "API server").ok_or("nothing is said of the API server")?;
    Ok((api["verdict"].as_str().unwrap_or_default().to_owned(), api.to_string()))
}

#[test]
fn proxies_of_the_environment_are_used_and_told_without_their_passwords() -> Outcome {
    let name = "proxies_of_the_environment_are_used_and_told_without_their_passwords";
    let place = tempfile::tempdir()?;
    kubeconfig(place.path(), "far", "https://cluster.test:6443")?;
    let far = place.path().join("far");
    // Nobody listens there.
    let proxy = ("HTTPS_PROXY", "http://me:secret@127.0.0.1:1");
    let (verdict, said) = checked(&far, &[proxy])?;
    assert!(verdict == "red" && said.contains("refused") && !said.contains("secret"), "{said}");
    let (verdict, said) = checked(&far, &[("HTTPS_PROXY", "https://me:secret@127.0.0.1:1")])?;
    assert!(verdict == "red" && said.contains("HTTPS_PROXY") && said.contains("socks5://"), "{said}");
    assert!(!said.contains("secret"), "{said}");

    let Some(cluster) = Cluster::or_not_run(name) else { return Ok(()) };
    let _turn = Turn::shared();
    let (verdict, said) = checked(&cluster.kubeconfig, &[proxy])?;
    assert_eq!(verdict, "red", "{said}");
    let (verdict, said) = checked(&cluster.kubeconfig, &[proxy, ("NO_PROXY", "*")])?;
    assert_eq!(verdict, "green", "{said}");
    Ok(())
}

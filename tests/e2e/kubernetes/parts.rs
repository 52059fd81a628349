//! Parts of the cluster that are away for a while: the controller, the API server. Nobody else uses the cluster then.

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    kubernetes::place::{Place, Turn, until},
    support::{Outcome, done},
};

/// What stops and starts parts of the cluster, where it is one of ours.
pub(crate) struct Tool {
    program: String,
    directory: String,
}

impl Tool {
    pub(crate) fn find(test: &str) -> Option<Self> {
        let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let found = named("SANDBAR_CLUSTER_TOOL").zip(named("SANDBAR_CLUSTER_DIR"));
        if found.is_none() {
            sandbar_test_harness::not_run(
                test,
                "no cluster whose parts may be stopped: `make test-kubernetes` makes one",
            );
        }
        found.map(|(program, directory)| Self { program, directory })
    }

    pub(crate) fn run(&self, verb: &str, part: &str) -> Outcome {
        done(Command::new(&self.program).args([verb, &self.directory, part]))?;
        Ok(())
    }

    /// A script in the network of the cluster, and in no other.
    pub(crate) fn within(&self, script: &str) -> Outcome {
        done(Command::new(&self.program).args(["run", &self.directory, "--", "sh", "-euc", script]))?;
        Ok(())
    }
}

/// A part that is back when this is dropped, whatever became of the test.
pub(crate) struct Away<'a>(&'a Tool, &'static str);

impl<'a> Away<'a> {
    pub(crate) fn new(tool: &'a Tool, part: &'static str) -> Outcome<Self> {
        tool.run("stop", part)?;
        Ok(Self(tool, part))
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.run("start", self.1) {
            eprintln!("{} does not start again: {error}", self.1);
        }
    }
}

/// Exactly the sandboxes that the server knows have claims.
fn expect_agreement(place: &Place) -> Outcome {
    let (mut known, mut claims) = (BTreeSet::new(), BTreeSet::new());
    let mut listed = serde_json::Value::Null;
    let agreed = until("claims and sandboxes agree", || {
        listed = place.json(&["ls"])?;
        let alive = listed["sandboxes"].as_array().into_iter().flatten().filter(|one| one["state"] != "failed");
        known = alive.filter_map(|one| one["id"].as_str().map(str::to_owned)).collect();
        let names = place.namespace()?.names("sandboxclaims")?;
        claims = names.iter().filter_map(|name| name.rsplit('/').next().map(str::to_owned)).collect();
        Ok(known == claims)
    });
    Ok(agreed.map_err(|error| format!("{error}: claims {claims:?}, sandboxes {listed}"))?)
}

#[test]
fn parts_of_the_cluster_may_be_away() -> Outcome {
    let name = "parts_of_the_cluster_may_be_away";
    let Some(tool) = Tool::find(name) else { return Ok(()) };
    let settings = "reach = \"pod_ip\"\npatience = \"40s\"";
    let Some(place) = Place::with(name, Turn::alone, settings, |_| Ok(()))? else { return Ok(()) };
    place.sandbar(&["create", "--name", "old"])?;

    {
        let controller = Away::new(&tool, "controller")?;
        let begun = Instant::now();
        place.refused(&["create", "--name", "a"], 1, "cluster_failed", &["controller", "sandbar kubernetes check"])?;
        assert!(begun.elapsed() < Duration::from_secs(120), "it took {:?}", begun.elapsed());
        assert_eq!(place.inside("old", "echo alive")?, "alive\n");
        // One that is asked for meanwhile is made when it is back.
        let late = place.server.command(&["create", "--name", "late"]).stdout(std::process::Stdio::null()).spawn()?;
        until("it is asked for", || Ok(place.namespace()?.names("sandboxclaims")?.len() == 2))?;
        drop(controller);
        let late = late.wait_with_output()?;
        assert!(late.status.success(), "{late:?}");
    }
    assert_eq!(place.inside("late", "echo alive")?, "alive\n");
    expect_agreement(&place)?;

    // Creates, while the API server is away for a moment.
    let mut creates = vec![];
    for number in 0..3 {
        let name = format!("n{number}");
        creates.push(
            place
                .server
                .command(&["--json", "create", "--name", &name])
                .stderr(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null())
                .spawn()?,
        );
        if number == 1 {
            tool.run("stop", "apiserver")?;
        }
    }
    let alive = place.inside("old", "echo alive");
    tool.run("start", "apiserver")?;
    // It ends when it cannot renew its lease; in a cluster its Deployment starts it again.
    tool.run("restart", "controller")?;
    assert_eq!(alive?, "alive\n", "what runs needs no API server");
    let mut made = 1;
    for (number, create) in creates.into_iter().enumerate() {
        let said = create.wait_with_output()?;
        if said.status.success() {
            made += 1;
            assert_eq!(place.inside(&format!("n{number}"), "echo alive")?, "alive\n");
        } else {
            let told: serde_json::Value = serde_json::from_slice(&said.stderr)?;
            assert_eq!(told["problem"]["code"], "cluster_failed", "{told}");
        }
    }
    eprintln!("{} of 3 were made while the API server was away", made - 1);
    until("sandboxes are made again", || {
        place.sandbar(&["rm", "-f", "new"])?;
        Ok(place.tried(&["create", "--name", "new"])?.code == Some(0))
    })?;
    expect_agreement(&place)?;
    let all: Vec<String> = place.json(&["ls"])?["sandboxes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["id"].as_str().map(str::to_owned))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    place.sandbar(&[&["rm"], all.as_slice()].concat())?;
    place.expect_nothing_left()
}

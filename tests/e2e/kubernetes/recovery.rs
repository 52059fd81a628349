//! Pods that are taken away: by an eviction, by somebody's hand. Files stay; whether the sandbox comes back by itself is
//! its template's to say.

use serde_json::json;

use crate::{
    kubernetes::place::{Place, apply, until},
    support::Outcome,
};

fn evict(place: &Place, pod: &str) -> Outcome {
    let namespace = &place.namespace()?.name;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace},
    });
    apply(&mut place.namespace()?.cluster.kubectl(&["create", "--raw", &path, "-f", "-"]), &eviction)
}

fn remove(place: &Place, pod: &str) -> Outcome {
    place.kubectl(&["delete", "pod", pod, "--grace-period=0", "--force"])?;
    Ok(())
}

/// Takes the pod away and waits for what comes instead.
fn expect_recovered(place: &Place, name: &str, how: fn(&Place, &str) -> Outcome) -> Outcome {
    let pod = place.pod(name)?;
    let before = place.uid(&pod)?;
    // It goes with the pod.
    place.inside(name, "touch /tmp/old")?;
    how(place, &pod)?;
    until("there is another pod", || {
        let now = place.uid(&pod)?;
        Ok(!now.is_empty() && now != before)
    })?;
    // It may still work in the old one for a moment.
    until("it works again", || Ok(place.tried(&["exec", name, "--", "test", "!", "-e", "/tmp/old"])?.code == Some(0)))?;
    place.until_state(name, "ready")?;
    assert_eq!(place.inside(name, "cat /workspace/f ~/f")?, "kept\nhome\n");
    Ok(())
}

#[test]
fn a_sandbox_that_recovers_comes_back_with_its_files() -> Outcome {
    let recovers = ("recovers", "[kubernetes]\nrecover = true\n");
    let Some(place) = Place::open("a_sandbox_that_recovers_comes_back_with_its_files", &[recovers])? else {
        return Ok(());
    };
    place.sandbar(&["create", "--name", "r", "--template", "recovers"])?;
    place.inside("r", "echo kept > /workspace/f; echo home > ~/f")?;
    let lost = place.sandbar(&["exec", "-d", "r", "--", "sleep", "1000"])?;
    expect_recovered(&place, "r", evict)?;
    // What ran in the pod is not said to run on.
    let processes = place.json(&["ps", "r"])?;
    let mut all = processes["processes"].as_array().into_iter().flatten();
    let process = all.find(|one| one["id"] == lost.trim()).ok_or("it is forgotten")?;
    assert_ne!(process["state"], "running", "{process}");
    expect_recovered(&place, "r", remove)?;
    place.sandbar(&["rm", "r"])?;
    place.expect_nothing_left()
}

#[test]
fn a_sandbox_that_does_not_recover_says_so_and_is_started() -> Outcome {
    let name = "a_sandbox_that_does_not_recover_says_so_and_is_started";
    let Some(mut place) = Place::open(name, &[])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "p"])?;
    place.inside("p", "echo kept > /workspace/f; echo home > ~/f")?;
    remove(&place, &place.pod("p")?)?;
    let failed = place.until_state("p", "failed")?;
    assert_eq!(failed["reason"]["detail"], "Its pod ended, was taken away, or was lost with its node.", "{failed}");
    place.refused(&["exec", "p", "--", "true"], 125, "wrong_state", &["failed", "sandbar start p"])?;
    place.sandbar(&["start", "p"])?;
    assert_eq!(place.inside("p", "cat /workspace/f ~/f")?, "kept\nhome\n");

    // Also when nobody looked.
    place.server.kill()?;
    remove(&place, &place.id_of_only_claim()?)?;
    place.server.restart()?;
    place.until_state("p", "failed")?;
    place.sandbar(&["start", "p"])?;
    assert_eq!(place.inside("p", "cat /workspace/f ~/f")?, "kept\nhome\n");
    place.sandbar(&["rm", "p"])?;
    place.expect_nothing_left()
}

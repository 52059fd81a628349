//! A node that is lost: its machine is off and its Node is deleted, as a cloud's controller does it. The cluster takes about
//! a minute to bury its pods. Nobody else uses the cluster then.

use std::time::Instant;

use crate::{
    kubernetes::parts::{Away, Tool},
    kubernetes::place::{Place, Turn, until, write},
    support::{Outcome, done},
};

/// Nothing that is sent to a pod of the node arrives any more.
const DARK: &str = "ip -o link show type veth | sed 's/^[0-9]*: //; s/[@:].*//' | xargs -I{} ip link set {} down";

/// What ran in it has ended, and that is said of it.
fn expect_ended(place: &Place, sandbox: &str, process: &str) -> Outcome {
    let processes = place.json(&["ps", sandbox])?;
    let mut all = processes["processes"].as_array().into_iter().flatten();
    let process = all.find(|one| one["id"] == process.trim()).ok_or("it is forgotten")?;
    assert_ne!(process["state"], "running", "{process}");
    Ok(())
}

#[test]
fn sandboxes_outlive_their_node() -> Outcome {
    let name = "sandboxes_outlive_their_node";
    let Some(tool) = Tool::find(name) else { return Ok(()) };
    let furnish = |home: &std::path::Path| write(home, &[("recovers", "[kubernetes]\nrecover = true\n")]);
    let Some(place) = Place::with(name, Turn::alone, "reach = \"pod_ip\"", furnish)? else { return Ok(()) };
    for (name, template) in [("kept", "default"), ("forced", "default"), ("recovers", "recovers")] {
        place.sandbar(&["create", "--name", name, "--template", template])?;
        place.inside(name, &format!("echo {name} > /workspace/f; echo home > ~/f"))?;
    }
    let lost = place.sandbar(&["exec", "-d", "kept", "--", "sleep", "1000"])?;
    let cluster = &place.namespace()?.cluster;
    let node = place.kubectl(&["get", "pod", &place.pod("kept")?, "-o", "jsonpath={.spec.nodeName}"])?;

    let machine = Away::new(&tool, "kubelet")?;
    tool.within(DARK)?;
    let (words, silent) = (["no nodes available", "add nodes"], ["does not answer"]);
    let begun = Instant::now();
    std::thread::scope(|scope| -> Outcome {
        // Nobody was told yet, but whoever asks something of one learns that there is no answer.
        let exec = scope.spawn(|| place.refused(&["exec", "kept", "--", "true"], 125, "guest_unreachable", &silent));
        let inspect = scope.spawn(|| place.refused(&["inspect", "kept"], 1, "guest_unreachable", &silent));
        done(&mut cluster.kubectl(&["delete", "node", &node]))?;
        // An operator who does not wait buries a pod by hand; the one that follows has no node.
        place.kubectl(&["delete", "pod", &place.pod("forced")?, "--grace-period=0", "--force"])?;
        place.until_state("forced", "failed")?;
        place.refused(&["exec", "forced", "--", "true"], 125, "wrong_state", &["failed", "sandbar start forced"])?;
        place.refused(&["start", "forced"], 1, "too_many", &words)?;
        inspect.join().map_err(|_| "it panicked")??;
        exec.join().map_err(|_| "it panicked")?
    })?;
    place.until_state("forced", "failed")?;

    let failed = place.until_state("kept", "failed")?;
    eprintln!("its pod was buried {:?} after its node", begun.elapsed());
    assert_eq!(failed["reason"]["detail"], "Its pod ended, was taken away, or was lost with its node.", "{failed}");
    place.refused(&["exec", "kept", "--", "true"], 125, "wrong_state", &["failed", "sandbar start kept"])?;
    expect_ended(&place, "kept", &lost)?;
    let coming = place.until_state("recovers", "creating")?;
    assert_eq!(coming["reason"]["code"], "recovering", "{coming}");
    place.refused(&["exec", "recovers", "--", "true"], 125, "wrong_state", &["creating"])?;

    drop(machine);
    until("there is a node", || {
        let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        Ok(place.kubectl(&["get", "nodes", "-o", ready])? == "True")
    })?;
    // One that was given up before there was a node is tried again after a minute.
    if place.until_state("recovers", "ready").is_err() {
        place.until_state("recovers", "ready")?;
    }
    place.sandbar(&["start", "kept"])?;
    place.sandbar(&["start", "forced"])?;
    for name in ["kept", "forced", "recovers"] {
        assert_eq!(place.inside(name, "cat /workspace/f ~/f")?, format!("{name}\nhome\n"));
    }
    expect_ended(&place, "kept", &lost)?;
    place.sandbar(&["rm", "kept", "forced", "recovers"])?;
    place.expect_nothing_left()
}

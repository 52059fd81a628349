//! Sandboxes that wait on the cluster for whoever comes, and become theirs late.

use serde_json::Value;

use crate::{
    kubernetes::gate::Upstream,
    kubernetes::place::{Place, Turn, until, write},
    support::Outcome,
};

const KIND: &str = "agents.x-k8s.io/launch-type";

fn waiting(place: &Place, template: &str) -> Outcome<u64> {
    let pools = place.json(&["pool", "ls"])?;
    let mut pools = pools["pools"].as_array().into_iter().flatten();
    let pool: &Value = pools.find(|pool| pool["template"] == template).ok_or("there is no such pool")?;
    Ok(pool["ready"].as_u64().or(pool["warm"].as_u64()).ok_or_else(|| format!("nothing of readiness in {pool}"))?)
}

#[test]
fn a_warm_sandbox_becomes_its_owners_late() -> Outcome {
    let name = "a_warm_sandbox_becomes_its_owners_late";
    let up = Upstream::start()?;
    let furnish = |home: &std::path::Path| {
        up.furnish(home)?;
        write(home, &[("kept", "[env]\nA = \"template\"\nB = \"template\"\n")])
    };
    let Some(place) = Place::with(name, Turn::shared, "reach = \"pod_ip\"", furnish)? else { return Ok(()) };
    up.secret(&place)?;
    place.sandbar(&["pool", "set", "kept", "1"])?;
    until("one waits", || Ok(waiting(&place, "kept")? == 1))?;

    let allow = up.site.place.clone();
    let create =
        ["create", "--name", "w", "--template", "kept", "-e", "A=mine", "--allow", &allow, "--secret", "API_TOKEN"];
    place.sandbar(&create)?;
    let launched = place.kubectl(&[
        "get",
        "sandbox",
        &place.pod("w")?,
        "-o",
        &format!("jsonpath={{.metadata.labels.{}}}", KIND.replace('.', "\\.")),
    ])?;
    assert_eq!(launched, "warm");
    assert_eq!(place.inside("w", "echo $A $B")?, "mine template\n");
    up.expect_reached(&place, "w")?;
    up.expect_denied(&place, "w")?;
    // Another waits again, and knows nothing of the first.
    until("another waits", || Ok(waiting(&place, "kept")? == 1))?;
    place.sandbar(&["create", "--name", "v", "--template", "kept"])?;
    assert_eq!(place.inside("v", "echo $A $B $API_TOKEN; ls")?, "template template\n");

    place.sandbar(&["pool", "set", "kept", "0"])?;
    until("nobody waits", || Ok(place.namespace()?.names("pods")?.len() == 2))?;
    assert_eq!(place.inside("w", "echo alive")?, "alive\n");
    place.sandbar(&["rm", "w", "v"])?;
    place.expect_nothing_left()
}

//! A kernel of its own for a sandbox, when its template asks for one.

use crate::{kubernetes::place::Place, support::Outcome};

const GVISOR: &str = "[kubernetes]\nruntime_class = \"gvisor\"\n[layers]\nlandlock = \"optional\"\n";
const ABSENT: &str = "[kubernetes]\nruntime_class = \"none-such\"\n";

#[test]
fn a_runtime_class_is_in_force_or_refused() -> Outcome {
    let name = "a_runtime_class_is_in_force_or_refused";
    let Some(place) = Place::open(name, &[("kernel", GVISOR), ("absent", ABSENT)])? else { return Ok(()) };
    let words = ["RuntimeClass", "none-such", "kubectl get runtimeclass"];
    place.refused(&["create", "--name", "b", "--template", "absent"], 1, "bad_template", &words)?;
    if place.kubectl(&["get", "runtimeclass", "-o", "name"])?.contains("gvisor") {
        place.sandbar(&["create", "--name", "a", "--template", "kernel"])?;
        let kernel = place.inside("a", "cat /proc/version; echo $HOME > kept; dmesg 2> /dev/null || true")?;
        assert!(kernel.to_lowercase().contains("gvisor"), "{kernel}");
        let seen = place.json(&["inspect", "a"])?;
        let layers = seen["enforcement"]["layers"].as_array().ok_or("no layers")?;
        let missing: Vec<_> =
            layers.iter().filter(|one| one["requirement"] == "required" && one["in_force"] != true).collect();
        assert!(missing.is_empty(), "{missing:?}");
        place.sandbar(&["stop", "a"])?;
        place.sandbar(&["start", "a"])?;
        assert_eq!(place.inside("a", "cat kept")?, "/home/agent\n");
        place.sandbar(&["rm", "a"])?;
    } else {
        sandbar_test_harness::not_run(name, "the cluster has no RuntimeClass gvisor");
    }
    place.expect_nothing_left()
}

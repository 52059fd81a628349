//! Limits that a pod's control group enforces, and what is said of who ran into them.

use crate::{kubernetes::place::Place, support::Outcome};

#[test]
fn who_eats_too_much_is_killed_and_it_is_said() -> Outcome {
    let small = ("small", "[limits]\nmemory = \"64MiB\"\ncpus = 0.5\ntmpfs = \"8MiB\"\nopen_files = 100\n");
    let Some(place) = Place::open("who_eats_too_much_is_killed_and_it_is_said", &[small])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "a", "--template", "small"])?;
    assert_eq!(place.inside("a", "ulimit -n; head -c 9M /dev/zero > /tmp/f 2> /dev/null || echo full")?, "100\nfull\n");
    place.inside("a", "rm /tmp/f; echo kept > /workspace/f")?;
    let eaten = place.tried(&["exec", "a", "--", "python3", "-c", "x = bytearray(200 << 20); print(len(x))"])?;
    assert_eq!((eaten.code, eaten.out.as_str()), (Some(137), ""), "{eaten:?}");
    // Whoever the kernel chose, the sandbox says what became of it.
    let processes = place.json(&["ps", "a"])?;
    let last = processes["processes"].as_array().and_then(|all| all.last()).cloned().ok_or("no process")?;
    assert_eq!((&last["state"], &last["exit"]["signal"]), (&"exited".into(), &9.into()), "{last}");
    if place.sandbox("a")?["state"] != "ready" {
        place.sandbar(&["start", "a"])?;
    }
    assert_eq!(place.inside("a", "cat /workspace/f")?, "kept\n");
    place.sandbar(&["rm", "a"])?;
    place.expect_nothing_left()
}

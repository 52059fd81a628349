//! Tests that this machine cannot run. `tests/run` reads the line, counts the test as not run and lists it at the end.

use std::io::Write as _;

/// Says why a test is not run. The test returns afterwards.
pub fn not_run(test: &str, why: &str) {
    say("not run", test, why);
}

/// Says what of a test is not run. The rest of it is, and counts.
pub fn partly_not_run(test: &str, what: &str) {
    say("partly not run", test, what);
}

fn say(kind: &str, test: &str, why: &str) {
    // Not `eprintln`, which the built-in harness keeps from the runner.
    let line = format!("{kind}: {test}: {}\n", why.split_whitespace().collect::<Vec<_>>().join(" "));
    let _printed = std::io::stderr().write_all(line.as_bytes());
}

/// Says that something is absent which `make test-needs` installs. In CI the Makefile has run, so its absence is a failure.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn missing(test: &str, what: &str) {
    if is_ci() {
        panic!("{test}: {what} is not installed, although `make test-needs` installs it");
    }
    not_run(test, &format!("{what} is not installed: `make test-needs`"));
}

pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

//! Talking over a network to a real guest, which is this file re-executed, in an ordinary process: nothing is confined.

mod relayed;
mod support;
mod trusted;

use std::{future::Future, io::Write as _, pin::Pin, process::ExitCode, time::Duration};

use support::Outcome;

type Test = (&'static str, fn() -> Pin<Box<dyn Future<Output = Outcome>>>);

macro_rules! tests {
    ($($room:ident: $($name:ident),+ $(,)?;)+) => {
        &[$($((concat!(stringify!($room), "::", stringify!($name)), || Box::pin($room::$name()))),+),+]
    };
}

const TESTS: &[Test] = tests! {
    trusted:
        the_server_is_known_by_its_key,
        a_guest_is_bound_once,
        a_broken_connection_is_made_again,
        a_replaced_guest_is_noticed,
        a_guest_that_says_nothing_is_noticed;
    relayed:
        bytes_and_ends_pass,
        much_passes_both_ways_at_once,
        who_does_not_read_holds_up_nobody,
        more_than_are_taken_wait,
        what_breaks_off_is_reset,
        last_bytes_arrive_after_it_was_let_go,
        what_nobody_took_is_reset_and_later_ones_wait,
        it_goes_on_after_a_broken_connection;
};

/// Far beyond what any of them needs on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    if support::is_guest() {
        support::be_guest();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen = TESTS.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|part| name.contains(*part)));
    let mut out = std::io::stdout();
    let mut failures = 0;
    for (name, test) in chosen {
        if arguments.iter().any(|argument| argument == "--list") {
            let _ = writeln!(out, "{name}: test");
            continue;
        }
        let outcome = run(*test);
        failures += usize::from(outcome.is_err());
        let _ = match outcome {
            Ok(()) => writeln!(out, "test {name} ... ok"),
            Err(reason) => writeln!(out, "test {name} ... FAILED: {reason}"),
        };
    }
    ExitCode::from(u8::from(failures > 0))
}

fn run(test: fn() -> Pin<Box<dyn Future<Output = Outcome>>>) -> Result<(), String> {
    let run = || -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(DEADLINE, test()).await? })
    };
    match std::panic::catch_unwind(run) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err("it panicked".into()),
    }
}

//! Talking over a network to a real guest, which is this file re-executed, in an ordinary process: nothing is confined.

mod relayed;
mod support;
mod trusted;

use std::{future::Future, pin::Pin, process::ExitCode, time::Duration};

use sandbar_test_harness as harness;
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
const DEADLINE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if support::is_guest() {
        support::be_guest();
    }
    harness::main(TESTS.iter().map(|(name, test)| harness::Test::new(*name, || run(*test))).collect())
}

fn run(test: fn() -> Pin<Box<dyn Future<Output = Outcome>>>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(DEADLINE, test()).await? })
}

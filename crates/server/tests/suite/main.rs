//! The surfaces over a real server and real guests without isolation, so that a sandbox's files and loopback are the
//! host's. A guest is this program started again.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod attach;
mod grpc;
mod inward;
mod kagent;
mod listeners;
mod mcp;
mod sandbox;
#[path = "../../src/tests/stated.rs"]
mod stated;
mod support;
mod viewers;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::be_the_guest_if_told();
    let tests = [
        attach::tests(),
        grpc::tests(),
        inward::tests(),
        kagent::tests(),
        listeners::tests(),
        mcp::tests(),
        sandbox::tests(),
        viewers::tests(),
    ];
    sandbar_test_harness::main(tests.into_iter().flatten().collect())
}

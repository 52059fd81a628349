//! gRPC over a real server and a real guest without isolation: the guest is this file started again.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod access;
mod attach;
mod exec;
mod files;
mod listeners;
mod processes;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod support;

/// The generated client.
#[expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]
mod api {
    tonic::include_proto!("sandbar.v1");
}

use std::{pin::Pin, time::Duration};

use support::Bench;
use tokio::time::{Instant, sleep, timeout};
use tonic::{
    Code, Request, Status, Streaming,
    transport::{Channel, Endpoint},
};

const SOON: Duration = Duration::from_secs(30);

fn main() {
    support::be_the_guest_if_told();
    let chosen: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bench = Bench::new().await;
        for (name, test) in [
            ("a_command_is_run_to_its_end", Box::pin(exec::run(&bench)) as Pin<Box<dyn Future<Output = ()>>>),
            ("large_output_comes_whole_also_to_a_slow_reader", Box::pin(exec::large(&bench))),
            ("a_call_that_is_cancelled_kills_the_tree", Box::pin(exec::cancelled(&bench))),
            ("a_deadline_kills_the_tree", Box::pin(exec::late(&bench))),
            ("processes_are_started_watched_and_typed_into", Box::pin(processes::used(&bench))),
            ("sandboxes_and_sessions_live_and_die", Box::pin(processes::lives(&bench))),
            ("a_terminal_has_two_viewers_and_one_controller", Box::pin(attach::two(&bench))),
            ("attaching_goes_on_where_it_ended", Box::pin(attach::resumed(&bench))),
            ("what_cannot_be_attached_to_is_told", Box::pin(attach::refused(&bench))),
            ("files_go_up_and_come_down", Box::pin(files::there_and_back(&bench))),
            ("files_are_searched", Box::pin(files::searched(&bench))),
            ("a_file_appears_whole_or_not_at_all", Box::pin(files::whole(&bench))),
            ("an_upload_that_waits_holds_up_nothing_else", Box::pin(files::waiting(&bench))),
            ("errors_have_the_codes_of_the_api", Box::pin(access::errors(&bench))),
            ("each_token_has_its_methods", Box::pin(access::tokens(&bench))),
            ("a_revoked_token_ends_its_streams", Box::pin(access::revoked(&bench))),
            ("reflection_tells_what_is_served", Box::pin(access::reflection(&bench))),
            ("what_is_no_grpc_is_refused_as_http", Box::pin(listeners::plain_http(&bench))),
            ("it_is_served_over_tls", Box::pin(listeners::tls(&bench))),
        ] {
            if chosen.is_empty() || chosen.iter().any(|chosen| name.contains(chosen.as_str())) {
                test.await;
                eprintln!("test {name} ... ok");
            }
        }
        listeners::ended(bench).await;
        eprintln!("test the_end_of_the_server_is_told ... ok");
    });
}

/// To the owner's socket.
async fn channel(bench: &Bench) -> Channel {
    let address = format!("unix://{}", bench.socket.display());
    Endpoint::from_shared(address).unwrap().connect().await.unwrap()
}

/// With a token.
fn with<T>(secret: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
    request
}

/// The next message; panics at the end.
async fn next<T>(stream: &mut Streaming<T>) -> T {
    timeout(SOON, stream.message()).await.expect("something comes").unwrap().expect("it goes on")
}

/// What the stream ends with.
async fn end<T: std::fmt::Debug>(stream: &mut Streaming<T>) -> Result<(), Status> {
    loop {
        match timeout(SOON, stream.message()).await.expect("it ends") {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(status) => return Err(status),
        }
    }
}

/// The status and the API's code.
fn told(status: &Status) -> (Code, String) {
    let code = status.metadata().get("sandbar-code").map(|code| code.to_str().unwrap().to_owned());
    (status.code(), code.unwrap_or_default())
}

async fn until(what: &str, mut found: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !found().await {
        assert!(began.elapsed() < SOON, "{what} did not come");
        sleep(Duration::from_millis(10)).await;
    }
}

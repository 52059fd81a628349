//! gRPC over a real server and a real guest without isolation: the guest is this file started again.

mod access;
mod attach;
mod exec;
mod files;
mod listeners;
mod processes;
/// The generated client.
#[expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]
mod api {
    tonic::include_proto!("sandbar.v1");
}

use std::time::Duration;

use sandbar_test_harness::Test;
use tokio::time::{Instant, sleep, timeout};
use tonic::{
    Code, Request, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::support::{Bench, on, test};

const SOON: Duration = Duration::from_secs(300);

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = on! { Bench, "grpc";
        a_command_is_run_to_its_end => exec::run,
        large_output_comes_whole_also_to_a_slow_reader => exec::large,
        a_call_that_is_cancelled_kills_the_tree => exec::cancelled,
        a_deadline_kills_the_tree => exec::late,
        processes_are_started_watched_and_typed_into => processes::used,
        sandboxes_and_sessions_live_and_die => processes::lives,
        a_terminal_has_two_viewers_and_one_controller => attach::two,
        attaching_goes_on_where_it_ended => attach::resumed,
        what_cannot_be_attached_to_is_told => attach::refused,
        files_go_up_and_come_down => files::there_and_back,
        files_are_searched => files::searched,
        a_file_appears_whole_or_not_at_all => files::whole,
        an_upload_that_waits_holds_up_nothing_else => files::waiting,
        errors_have_the_codes_of_the_api => access::errors,
        each_token_has_its_methods => access::tokens,
        a_viewer_wakes_nothing => access::asleep,
        a_revoked_token_ends_its_streams => access::revoked,
        reflection_tells_what_is_served => access::reflection,
        what_is_no_grpc_is_refused_as_http => listeners::plain_http,
        it_is_served_over_tls => listeners::tls,
    };
    tests.push(test("grpc::the_end_of_the_server_is_told", async { listeners::ended(Bench::new().await).await }));
    tests
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

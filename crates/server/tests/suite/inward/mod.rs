//! Servers inside, reached by HTTP through the router and through previews: a real server and real guests, without
//! isolation, so that a sandbox's loopback is the host's. The guest is this file started again.

mod attacks;
pub(crate) mod house;
mod inside;
mod preview;
mod router;
use house::House;
use sandbar_test_harness::Test;

use crate::support::{on, test};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = on! { House, "inward";
        requests_pass_as_they_are => router::passing,
        answers_are_confined => router::answers,
        refusals_are_the_contracts => router::refusals,
        tokens_reach_what_is_theirs => router::tokens,
        scoped_tokens_are_for_one_sandbox => router::scoped,
        keys_can_be_shared => router::keys,
        websockets_pass_the_router => router::websocket,
        time_is_bounded => router::time,
        bodies_stream_and_end_with_their_readers => router::streams,
        health_is_open => router::health,
        a_link_opens_a_preview_once => preview::entering,
        previews_keep_what_is_theirs => preview::passing,
        what_is_wrong_is_shown => preview::pages,
        websockets_pass_previews_and_end_with_the_token => preview::websocket,
        previews_are_for_those_who_may_act => preview::roles,
        a_real_server_is_shown => preview::real,
        headers_reroute_nothing_else => attacks::rerouting,
        addresses_are_never_dialled => attacks::addresses,
        hosts_are_kept_apart => attacks::hosts,
        cookies_are_for_one_preview => attacks::cookies,
        other_sites_pages_are_refused => attacks::other_sites,
        a_preview_cannot_act_on_the_api => attacks::api,
        one_request_is_one_request => attacks::smuggling,
        old_answers_have_an_end => attacks::old_answers,
    };
    tests.push(test("inward::open_connections_end_with_the_server", async { House::new().await.close().await }));
    tests
}

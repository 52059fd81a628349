//! Servers inside, reached by HTTP through the router and through previews: a real server and real guests, without
//! isolation, so that a sandbox's loopback is the host's. The guest is this file started again.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod attacks;
mod house;
mod inside;
mod preview;
mod router;
#[path = "../support/mod.rs"]
mod support;

use house::House;

fn main() {
    support::be_the_guest_if_told();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let house = House::new().await;
        for (name, test) in [
            (
                "requests_pass_as_they_are",
                Box::pin(router::passing(&house)) as std::pin::Pin<Box<dyn Future<Output = ()>>>,
            ),
            ("answers_are_confined", Box::pin(router::answers(&house))),
            ("refusals_are_the_contracts", Box::pin(router::refusals(&house))),
            ("tokens_reach_what_is_theirs", Box::pin(router::tokens(&house))),
            ("scoped_tokens_are_for_one_sandbox", Box::pin(router::scoped(&house))),
            ("keys_can_be_shared", Box::pin(router::keys(&house))),
            ("websockets_pass_the_router", Box::pin(router::websocket(&house))),
            ("time_is_bounded", Box::pin(router::time(&house))),
            ("bodies_stream_and_end_with_their_readers", Box::pin(router::streams(&house))),
            ("health_is_open", Box::pin(router::health(&house))),
            ("a_link_opens_a_preview_once", Box::pin(preview::entering(&house))),
            ("previews_keep_what_is_theirs", Box::pin(preview::passing(&house))),
            ("what_is_wrong_is_shown", Box::pin(preview::pages(&house))),
            ("websockets_pass_previews_and_end_with_the_token", Box::pin(preview::websocket(&house))),
            ("previews_are_for_those_who_may_act", Box::pin(preview::roles(&house))),
            ("a_real_server_is_shown", Box::pin(preview::real(&house))),
            ("headers_reroute_nothing_else", Box::pin(attacks::rerouting(&house))),
            ("addresses_are_never_dialled", Box::pin(attacks::addresses(&house))),
            ("hosts_are_kept_apart", Box::pin(attacks::hosts(&house))),
            ("cookies_are_for_one_preview", Box::pin(attacks::cookies(&house))),
            ("other_sites_pages_are_refused", Box::pin(attacks::other_sites(&house))),
            ("a_preview_cannot_act_on_the_api", Box::pin(attacks::api(&house))),
            ("one_request_is_one_request", Box::pin(attacks::smuggling(&house))),
            ("old_answers_have_an_end", Box::pin(attacks::old_answers(&house))),
        ] {
            test.await;
            eprintln!("test {name} ... ok");
        }
        house.close().await;
        eprintln!("test open_connections_end_with_the_server ... ok");
    });
}

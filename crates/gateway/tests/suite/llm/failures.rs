//! What goes wrong on the way: sizes, encodings, upstreams that are not there or not who they should be.

use std::time::Duration;

use http_body_util::{BodyExt as _, StreamBody};
use hyper::{Request, body::Frame};
use hyper_util::rt::TokioIo;
use sandbar_gateway::Settings;
use sandbar_policy::Limits;
use serde_json::{Value, json};

use crate::{
    llm::client::{CHAT, MESSAGES, open, post, request, send},
    llm::world::{NAME, World},
};

fn chat(prompt: &str) -> Value {
    json!({"model": "gpt", "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]})
}

fn budget() -> Option<Limits> {
    Some(Limits { tokens: Some(1_000_000), ..Limits::default() })
}

#[tokio::test]
async fn a_body_over_the_cap_is_refused_in_the_vendors_shape() {
    let world = World::with(None, true, Settings { llm_body: 1000, ..Settings::default() }).await;
    let answer = post(world.gate, MESSAGES, &json!({"model": "claude", "x": "x".repeat(1000)})).await;
    assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (413, json!("request_too_large")));
    let mut zipped = request(CHAT, "x");
    zipped.headers_mut().insert("content-encoding", "gzip".parse().expect("a value"));
    let answer = send(world.gate, zipped).await.whole().await.expect("an answer");
    assert_eq!(answer.status, 415);
    assert!(answer.message().contains("`gzip`"));
    assert!(world.upstream.seen().is_empty());
}

#[tokio::test]
async fn a_large_request_passes() {
    let world = World::new(None).await;
    let answer = post(world.gate, CHAT, &chat(&"word ".repeat(1_000_000))).await;
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 1_000_000);
}

#[tokio::test]
async fn a_request_that_never_comes_does_not_wait_forever() {
    let settings = Settings { head_timeout: Duration::from_secs(5), ..Settings::default() };
    let world = World::with(None, true, settings).await;
    let stream = tokio::net::TcpStream::connect(world.gate).await.expect("a connection");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    let first =
        futures_util::stream::once(async { Ok::<_, std::convert::Infallible>(Frame::data(bytes::Bytes::from("{"))) });
    let body = StreamBody::new(futures_util::StreamExt::chain(first, futures_util::stream::pending()));
    let asked = Request::post(CHAT).header("host", "gate").body(body).expect("a request");
    let answer = sender.send_request(asked).await.expect("an answer");
    assert_eq!(answer.status(), 408);
    let text = answer.into_body().collect().await.expect("a body").to_bytes();
    assert!(text.starts_with(b"{\"error\":"));
}

#[tokio::test]
async fn an_upstream_that_is_down_costs_nothing_and_says_why() {
    let world = World::with(budget(), true, Settings::default()).await;
    assert_eq!(post(world.gate, CHAT, &chat("hi")).await.status, 200);
    let used = world.used();
    world.upstream.stop().await;
    // the connection that was kept is closed, and a new one is refused
    let answer = post(world.gate, CHAT, &chat("hi")).await;
    assert_eq!(answer.status, 502);
    assert!(answer.message().contains("`openai` cannot be reached: connection refused"), "{}", answer.message());
    let (_, end) = world.last().await;
    assert_eq!((end.usage, end.free, end.status), (None, true, None));
    assert_eq!(world.used(), used);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_gets_no_key() {
    let world = World::with(budget(), true, Settings::default()).await;
    let other = crate::llm::upstream::Upstream::start(Some("other.test")).await.expect("an upstream");
    let settings = || {
        let mut settings = Settings::default();
        settings.hosts.insert(NAME.into(), vec![other.address.ip()]);
        settings
    };
    for (roots, cause) in [
        (String::new(), "from an unknown issuer"),
        (other.certificate.clone().expect("a certificate"), "for another name"),
    ] {
        let settings = Settings { extra_roots: roots.into_bytes(), ..settings() };
        let gate = world.another_gate(settings, other.address.port()).await;
        let answer = post(gate, CHAT, &chat("hi")).await;
        assert_eq!(answer.status, 502);
        assert!(answer.message().contains("TLS: ") && answer.message().contains(cause), "{}", answer.message());
    }
    assert!(other.seen().is_empty());
    assert_eq!(world.used(), 0);
}

#[tokio::test]
async fn connections_are_kept_and_what_did_not_leave_is_sent_again() {
    for tls in [true, false] {
        let world = World::with(None, tls, Settings::default()).await;
        for _ in 0..5 {
            assert_eq!(post(world.gate, CHAT, &chat("hi")).await.status, 200);
        }
        let connections: Vec<_> = world.upstream.seen().iter().map(|seen| seen.connection).collect();
        assert_eq!(connections, [0; 5], "tls: {tls}");
        world.upstream.hang_up().await;
        assert_eq!(post(world.gate, CHAT, &chat("hi")).await.status, 200);
        assert_eq!(world.upstream.seen().last().map(|seen| seen.connection), Some(1));
    }
}

#[tokio::test]
async fn streams_share_a_connection_only_as_far_as_it_carries() {
    let world = World::new(None).await;
    let mut body = chat("write:10 pause:50");
    body["stream"] = true.into();
    let streams = (0..150).map(|_| async { open(world.gate, CHAT, &body).await.whole().await });
    for answer in futures_util::future::join_all(streams).await {
        assert_eq!(answer.expect("an answer").status, 200);
    }
    let most = world.upstream.seen().iter().map(|seen| seen.connection).max();
    assert!(most.is_some_and(|most| most < 4), "{most:?}");
}

#[tokio::test]
async fn calls_of_one_sandbox_are_bounded_also_those_whose_client_has_gone() {
    let world = World::with(budget(), true, Settings { connections: 2, ..Settings::default() }).await;
    // neither ends by itself while this runs
    let mut body = chat("write:40 pause:60000");
    body["stream"] = true.into();
    for _ in 0..2 {
        let mut coming = open(world.gate, CHAT, &body).await;
        coming.next().await.expect("a piece").expect("a piece");
    }
    let answer = post(world.gate, CHAT, &chat("hi")).await;
    assert_eq!(answer.status, 429);
    assert!(answer.message().contains("2 calls under way"), "{}", answer.message());
    assert_eq!(answer.headers["retry-after"], "1");
    world.upstream.hang_up().await;
    world.at_rest().await;
    // more than there are places: also those that end well leave theirs
    let mut answered = 0;
    for _ in 0..1000 {
        match post(world.gate, CHAT, &chat("hi")).await.status {
            429 => tokio::time::sleep(Duration::from_millis(10)).await,
            status => {
                assert_eq!(status, 200);
                answered += 1;
            }
        }
        if answered == 3 {
            return;
        }
    }
    panic!("the places of calls that ended are still taken");
}

/// Says how large it is, and sends a little of it now and then.
async fn dawdle(world: &World, size: usize) -> tokio::task::JoinHandle<()> {
    let stream = tokio::net::TcpStream::connect(world.gate).await.expect("a connection");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    let body = StreamBody::new(futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Some((Ok::<_, std::convert::Infallible>(Frame::data(bytes::Bytes::from(" "))), ()))
    }));
    let asked = Request::post(CHAT).header("host", "gate").header("content-length", size).body(body);
    let asked = asked.expect("a request");
    // whoever ends it closes the connection, too
    tokio::spawn(async move {
        tokio::select! {
            ended = connection => drop(ended),
            answered = sender.send_request(asked) => drop(answered),
        }
    })
}

#[tokio::test]
async fn requests_of_one_sandbox_take_only_so_much_memory() {
    // how long others wait for room, and dawdlers may be silent
    let settings = Settings { head_timeout: Duration::from_secs(2), ..Settings::default() };
    let world = World::with(budget(), true, settings.clone()).await;
    // two of the largest, which is all there is for it
    let mut dawdlers = [dawdle(&world, settings.llm_body).await, dawdle(&world, settings.llm_body).await];
    let mut refused = None;
    for _ in 0..100 {
        let answer = post(world.gate, CHAT, &chat("hi")).await;
        if answer.status == 503 {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status, 200, "{}", answer.message());
        // on a busy machine they may be silent for too long
        for dawdler in dawdlers.iter_mut().filter(|dawdler| dawdler.is_finished()) {
            *dawdler = dawdle(&world, settings.llm_body).await;
        }
    }
    let refused = refused.expect("there is room for everything");
    assert!(refused.message().contains("too many large requests"), "{}", refused.message());
    assert_eq!(refused.headers["retry-after"], "1");
    for dawdler in dawdlers {
        dawdler.abort();
        drop(dawdler.await);
    }
    for _ in 0..100 {
        if post(world.gate, CHAT, &chat("hi")).await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("what dawdlers held is not given back");
}

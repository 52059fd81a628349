//! Every reservation is settled exactly once: on what was reported, or at what was reserved, or at nothing.

use std::time::Duration;

use sandbar_gateway::Settings;
use sandbar_policy::{Amount, Limits};
use serde_json::{Value, json};

use crate::{
    llm::client::{CHAT, MESSAGES, RESPONSES, open, post, request, try_send},
    llm::world::{PRICE, World},
};

fn budget() -> Option<Limits> {
    Some(Limits { tokens: Some(100_000), ..Limits::default() })
}

fn chat(prompt: &str, stream: bool) -> Value {
    json!({"model": "gpt", "stream": stream, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]})
}

#[tokio::test]
async fn what_the_vendor_refuses_costs_nothing_and_passes_unchanged() {
    let world = World::new(budget()).await;
    for (path, model, status) in [(CHAT, "gpt", 401), (CHAT, "gpt", 429), (CHAT, "gpt", 503), (MESSAGES, "claude", 529)]
    {
        let prompt = format!("fail:{status}");
        let body = json!({"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": prompt}]});
        let answer = post(world.gate, path, &body).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["message"].as_str().map(str::is_empty), Some(false));
        assert_eq!(answer.json().get("request_id").is_some(), path == MESSAGES);
        let (_, end) = world.last().await;
        assert_eq!((end.usage, end.free, end.status), (None, true, Some(status)));
    }
    assert_eq!(world.clerk.books().account.used, Amount::default());
}

#[tokio::test]
async fn what_failed_after_it_may_have_begun_is_not_free() {
    let world = World::new(budget()).await;
    let mut stands = 0;
    for (path, model, status) in [
        (CHAT, "gpt", 500),
        (CHAT, "gpt", 502),
        (CHAT, "gpt", 408),
        (MESSAGES, "claude", 500),
        (MESSAGES, "claude", 524),
    ] {
        let prompt = format!("fail:{status}");
        let body = json!({"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": prompt}]});
        let answer = post(world.gate, path, &body).await;
        assert_eq!((answer.status, answer.json()["error"].is_object()), (status, true));
        let (reservation, end) = world.last().await;
        assert_eq!((end.usage, end.free, end.status), (None, false, Some(status)));
        assert_eq!(end.note, Some(format!("the upstream answered {status}")));
        stands += reservation.held.tokens;
        assert_eq!(world.used(), stands);
    }
    // unless it says itself what was used
    for (path, model) in [(CHAT, "gpt"), (MESSAGES, "claude")] {
        let content = "fail:500 bill:1 write:3";
        let body = json!({"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": content}]});
        assert_eq!(post(world.gate, path, &body).await.status, 500);
        let (_, end) = world.last().await;
        assert_eq!(end.usage.map(|usage| (usage.input, usage.output)), Some((3, 3)));
        stands += 6;
        assert_eq!(world.used(), stands);
    }
}

#[tokio::test]
async fn without_usage_the_reservation_stands() {
    let world = World::new(budget()).await;
    let mut stands = 0;
    for (path, body) in [
        (CHAT, chat("silent:1", false)),
        (CHAT, chat("silent:1", true)),
        (CHAT, chat("zip:1", false)),
        (RESPONSES, json!({"model": "gpt", "stream": true, "max_output_tokens": 20, "input": "silent:1"})),
        (MESSAGES, json!({"model": "claude", "stream": true, "max_tokens": 20, "messages": [{"content": "silent:1"}]})),
    ] {
        let answer = post(world.gate, path, &body).await;
        assert_eq!(answer.status, 200);
        let (reservation, end) = world.last().await;
        assert_eq!((end.usage, end.free), (None, false), "{body}");
        assert!(end.note.is_some_and(|note| note.contains("usage")), "{body}");
        stands += reservation.held.tokens;
        assert_eq!(world.used(), stands);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_free_and_looks_broken() {
    let world = World::new(budget()).await;
    for (path, body) in [
        (CHAT, chat("break:4", true)),
        (CHAT, chat("break:50", false)),
        (RESPONSES, json!({"model": "gpt", "stream": true, "max_output_tokens": 20, "input": "break:6"})),
        // after the first usage, which says nothing of the output yet
        (MESSAGES, json!({"model": "claude", "stream": true, "max_tokens": 20, "messages": [{"content": "break:5"}]})),
    ] {
        let opened = try_send(world.gate, request(path, body.to_string())).await;
        let broken = match opened {
            Ok(coming) => coming.whole().await.is_err(),
            Err(_) => true,
        };
        assert!(broken, "{body}");
        let (_, end) = world.last().await;
        assert_eq!((end.usage, end.free), (None, false), "{body}");
        assert!(end.note.is_some_and(|note| note.contains("broke off")), "{body}");
    }
    // before its head: the vendor may have counted it
    let answer = post(world.gate, CHAT, &chat("break:0", false)).await;
    assert_eq!(answer.status, 502);
    let (reservation, end) = world.last().await;
    assert_eq!((end.usage, end.free, end.status), (None, false, None));
    assert!(reservation.held.tokens > 50);
}

#[tokio::test]
async fn a_client_that_goes_is_settled_on_the_usage_all_the_same() {
    let world = World::new(budget()).await;
    for (path, body) in [
        (CHAT, chat("write:20 pause:10", true)),
        (RESPONSES, json!({"model": "gpt", "stream": true, "max_output_tokens": 20, "input": "write:20 pause:10"})),
        (
            MESSAGES,
            json!({"model": "claude", "stream": true, "max_tokens": 20, "messages": [{"content": "write:20 pause:10"}]}),
        ),
    ] {
        let mut coming = open(world.gate, path, &body).await;
        coming.next().await.expect("a piece").expect("a piece");
        drop(coming);
        let (_, end) = world.last().await;
        assert_eq!(end.usage.map(|usage| usage.output), Some(20), "{body}");
    }
    // before the head, too; on a busy machine it may come before this client is gone, but not each time
    for _ in 0..5 {
        let (gate, before) = (world.gate, world.upstream.seen().len());
        let call = tokio::spawn(async move { post(gate, CHAT, &chat("slow:3000", false)).await });
        let asked = async {
            while world.upstream.seen().len() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(300), asked).await.expect("the vendor is asked");
        let reserved = world.clerk.books().account.reserved.tokens;
        call.abort();
        let gone = call.await.is_err_and(|gone| gone.is_cancelled());
        let (_, end) = world.last().await;
        assert_eq!(end.usage.map(|usage| (usage.input, usage.output)), Some((1, 12)));
        if gone && reserved > 0 {
            return;
        }
    }
    panic!("it is answered before it can go");
}

#[tokio::test]
async fn reading_on_has_an_end() {
    let settings = Settings { llm_drain: Duration::from_millis(100), ..Settings::default() };
    let world = World::with(budget(), true, settings).await;
    let mut coming = open(world.gate, CHAT, &chat("write:50 pause:1000", true)).await;
    coming.next().await.expect("a piece").expect("a piece");
    drop(coming);
    let (reservation, end) = world.last().await;
    assert_eq!((end.usage, end.free), (None, false));
    assert_eq!(world.used(), reservation.held.tokens);
}

#[tokio::test]
async fn calls_under_way_are_settled_after_the_gate_has_closed() {
    let world = World::new(budget()).await;
    let mut coming = open(world.gate, CHAT, &chat("write:20 pause:10", true)).await;
    coming.next().await.expect("a piece").expect("a piece");
    world.stop();
    let (_, end) = world.last().await;
    assert_eq!(end.usage.map(|usage| usage.output), Some(20));
}

#[tokio::test]
async fn a_call_whose_task_is_dropped_is_settled_at_its_reservation() {
    // a runtime of its own, which ends in the middle
    let (clerk, held) = std::thread::spawn(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (world, clerk) = runtime.block_on(async {
            let world = World::new(budget()).await;
            let mut coming = open(world.gate, CHAT, &chat("write:50 pause:1000", true)).await;
            coming.next().await.expect("a piece").expect("a piece");
            let clerk = std::sync::Arc::clone(&world.clerk);
            (world, clerk)
        });
        let held = clerk.books().account.reserved.tokens;
        runtime.shutdown_timeout(Duration::from_secs(60));
        drop(world);
        (clerk, held)
    })
    .join()
    .expect("a thread");
    let books = clerk.books();
    assert!(held > 0);
    assert_eq!((books.account.used.tokens, books.account.reserved.tokens), (held, 0));
    assert_eq!(books.settled.len(), 1);
}

#[tokio::test]
async fn dollars_are_reserved_and_settled_by_the_price() {
    let world = World::new(Some(Limits { micros: Some(1_000_000), ..Limits::default() })).await;
    let body = chat("one two cached:2", false);
    post(world.gate, CHAT, &body).await;
    let (reservation, _) = world.last().await;
    assert_eq!(reservation.held.micros, PRICE.at_most(body.to_string().len() as u64, 50));
    assert_eq!(world.clerk.books().account.used.micros, PRICE.of(3, 2, 0, 12));
}

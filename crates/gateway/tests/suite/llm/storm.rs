//! Fifty streams at once against one small budget, a hundred times, with failures and disconnects at random: nothing is
//! overspent, nothing stays reserved, and the books agree with the vendor's.

use std::time::Duration;

use sandbar_policy::Limits;
use serde_json::json;

use crate::{
    llm::client::{CHAT, MESSAGES, RESPONSES, request, try_send},
    llm::world::World,
};

const STREAMS: u64 = 50;
/// Room for some of them, never for all.
const ROUND_BUDGET: u64 = 3000;

/// A small generator, so that a round can be played again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

async fn stream(gate: std::net::SocketAddr, mut dice: Dice) -> u16 {
    let words = dice.roll(12) + 4;
    let trouble = match dice.roll(8) {
        0 => "fail:500".into(),
        1 => format!("break:{}", dice.roll(4)),
        2 => "silent:1".into(),
        3 => format!("slow:{}", dice.roll(4)),
        _ => String::new(),
    };
    let prompt = format!("write:{words} pause:{} {trouble}", dice.roll(2));
    let (path, body) = match dice.roll(4) {
        0 => (
            MESSAGES,
            json!({"model": "claude", "stream": true, "max_tokens": words, "messages": [{"content": prompt}]}),
        ),
        1 => (RESPONSES, json!({"model": "gpt", "stream": true, "max_output_tokens": words, "input": prompt})),
        2 => (CHAT, json!({"model": "gpt", "max_tokens": words, "n": 2, "messages": [{"content": prompt}]})),
        _ => (CHAT, json!({"model": "gpt", "stream": true, "max_tokens": words, "messages": [{"content": prompt}]})),
    };
    let mut patience = if dice.roll(4) == 0 { dice.roll(5) } else { u64::MAX };
    let opened = try_send(gate, request(path, body.to_string()));
    let coming = match patience {
        0 => tokio::time::timeout(Duration::from_micros(dice.roll(2000)), opened).await.ok(),
        _ => Some(opened.await),
    };
    let Some(Ok(mut coming)) = coming else { return 0 };
    while patience > 0 && matches!(coming.next().await, Some(Ok(_))) {
        patience -= 1;
    }
    coming.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_overspent_and_none_is_lost() {
    let world = World::with(None, false, Default::default()).await;
    let (mut answered, mut short) = (0_u64, 0_u64);
    let rounds = sandbar_test_harness::endurance(20, 100);
    for round in 0..rounds {
        let limit = world.used() + ROUND_BUDGET;
        world.clerk.books().limits = Some(Limits { tokens: Some(limit), ..Limits::default() });
        let streams = (0..STREAMS).map(|number| tokio::spawn(stream(world.gate, Dice(round << 32 | number))));
        for status in futures_util::future::join_all(streams).await {
            match status.expect("a stream") {
                200 => answered += 1,
                402 => short += 1,
                _ => {}
            }
        }
        world.at_rest().await;
        assert!(world.used() <= limit, "round {round}: {} of {limit}", world.used());
    }
    let seen = world.upstream.seen();
    let books = world.clerk.books();
    for (reservation, end) in &books.settled {
        let used = end.usage.map_or(0, |usage| usage.input + usage.output);
        assert!(used <= reservation.held.tokens, "{used} of {reservation:?}");
    }
    let told: u64 = seen.iter().filter(|seen| seen.reported).map(|seen| seen.input + seen.output).sum();
    let counted: u64 =
        books.settled.iter().filter_map(|(_, end)| end.usage).map(|usage| usage.input + usage.output).sum();
    assert_eq!(counted, told, "where usage was seen, the books say what the vendor says");
    let spent: u64 = seen.iter().map(|seen| seen.input + seen.output).sum();
    let estimated = books.settled.iter().filter(|(_, end)| end.usage.is_none() && !end.free).count();
    assert!(books.account.used.tokens >= spent, "{} of {spent}", books.account.used.tokens);
    assert!(
        answered > 5 * rounds && short > 5 * rounds && estimated as u64 > rounds / 2,
        "{answered} answered, {short} refused, {estimated} estimated"
    );
}

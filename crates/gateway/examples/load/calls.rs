//! LLM calls: at a rate that does not wait for answers, and as streams whose every token says when it was written.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};

use crate::{
    Outcome,
    client::Target,
    origin::{BETWEEN_TOKENS, TOKEN},
    spread::Spread,
};

const PATH: &str = "/chat/completions";
/// Calls under way at a time; more would have to wait, and their waiting is counted.
const CALLERS: u64 = 64;
/// Until all connections stand.
const WARM_UP: Duration = Duration::from_millis(500);

/// Each call has its moment, and its time counts from that moment on, whenever it was really sent.
pub(crate) fn rate(target: &Target, rate: u64, time: Duration) -> Outcome<Value> {
    let body = json!({
        "model": "bench", "max_tokens": 16,
        "messages": [{"role": "user", "content": "A question of about the length that questions have. ".repeat(8)}],
    });
    let request = target.post(PATH, &body.to_string());
    let (next, ready) = (AtomicU64::new(0), Barrier::new(usize::try_from(CALLERS)?));
    let each = Duration::from_secs(1) / u32::try_from(rate)?;
    let skipped = u64::try_from(WARM_UP.as_nanos() / each.as_nanos())?;
    let count = skipped + u64::try_from(time.as_nanos() / each.as_nanos())?;
    let begin = Instant::now() + WARM_UP;
    let call = || {
        let opened = target.open().and_then(|mut line| {
            line.send(&request)?;
            line.answer()?;
            Ok(line)
        });
        ready.wait();
        let (mut line, mut spread) = (opened?, Spread::default());
        loop {
            let slot = next.fetch_add(1, Ordering::Relaxed);
            if slot >= count {
                return Outcome::Ok(spread);
            }
            let moment = begin + each * u32::try_from(slot)?;
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            line.send(&request)?;
            line.answer()?;
            if slot >= skipped {
                spread.add(moment.elapsed());
            }
        }
    };
    Ok(together(CALLERS, call)?.told())
}

/// Streams that are open for as long, and calls beside them.
pub(crate) fn streams(target: &Target, streams: u64, beside: u64, time: Duration) -> Outcome<Value> {
    let whole = time + 4 * WARM_UP;
    let tokens = u64::try_from(whole.as_nanos() / BETWEEN_TOKENS.as_nanos())?;
    let body = json!({
        "model": "bench", "max_tokens": tokens, "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "At length."}],
    });
    let request = target.post(PATH, &body.to_string());
    let all_open = Barrier::new(usize::try_from(streams)? + 1);
    let listen = || {
        let mut begun = None;
        let heard = listen(target, &request, || {
            let begun = begun.get_or_insert_with(|| {
                all_open.wait();
                Instant::now()
            });
            (WARM_UP..WARM_UP + time).contains(&begun.elapsed())
        });
        if begun.is_none() {
            all_open.wait();
        }
        heard
    };
    let (tokens, calls) = thread::scope(|scope| {
        let tokens = scope.spawn(|| together(streams, listen));
        all_open.wait();
        let calls = rate(target, beside, time);
        (tokens.join().map_err(|_| "a thread failed"), calls)
    });
    Ok(json!({"tokens": tokens??.told(), "calls": calls?}))
}

/// How long each token was on its way, of those that count.
fn listen(target: &Target, request: &[u8], mut counts: impl FnMut() -> bool) -> Outcome<Spread> {
    let mut line = target.open()?;
    line.send(request)?;
    let (mut spread, mut rest) = (Spread::default(), Vec::new());
    line.read(|part| {
        let now = SystemTime::now();
        let counted = counts();
        rest.extend_from_slice(part);
        while let Some(at) = rest.windows(2).position(|pair| pair == b"\n\n") {
            if let Some(written) = written(&rest[..at])
                && counted
            {
                spread.add(now.duration_since(written).unwrap_or_default());
            }
            rest.drain(..at + 2);
        }
        true
    })?;
    Ok(spread)
}

fn written(event: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(event).ok()?;
    let (_, after) = text.split_once(TOKEN)?;
    let (nanos, _) = after.split_once('"')?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos.parse().ok()?))
}

fn together(count: u64, work: impl Fn() -> Outcome<Spread> + Sync) -> Outcome<Spread> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        let mut all = Spread::default();
        for worker in workers {
            all.join(worker.join().map_err(|_| "a thread failed")??);
        }
        Ok(all)
    })
}

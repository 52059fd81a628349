//! Requests one after another: over connections of their own, over one that stays, large ones, and very many.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{Outcome, client::Target, spread::Spread};

const WARM_UP: usize = 5;
/// More than any of it passes in the time given.
const ENDLESS: &str = "/bytes/1099511627776";

/// From the first packet to the whole answer.
pub(crate) fn fresh(target: &Target, time: Duration) -> Outcome<Value> {
    let request = target.get("/small");
    let once = || {
        let mut line = target.open()?;
        line.send(&request)?;
        line.answer()
    };
    repeated(time, once)
}

pub(crate) fn kept(target: &Target, time: Duration) -> Outcome<Value> {
    let request = target.get("/small");
    let mut line = target.open()?;
    repeated(time, || {
        line.send(&request)?;
        line.answer()
    })
}

fn repeated(time: Duration, mut once: impl FnMut() -> Outcome<u64>) -> Outcome<Value> {
    for _ in 0..WARM_UP {
        once()?;
    }
    let (mut spread, begun) = (Spread::default(), Instant::now());
    while begun.elapsed() < time {
        let start = Instant::now();
        once()?;
        spread.add(start.elapsed());
    }
    Ok(spread.told())
}

/// One answer that does not end, for some time from its first bytes on.
pub(crate) fn download(target: &Target, time: Duration) -> Outcome<Value> {
    let mut line = target.open()?;
    line.send(&target.get(ENDLESS))?;
    let (mut begun, mut bytes, mut took) = (None, 0_u64, Duration::ZERO);
    line.read(|part| {
        // what was on its way when the clock began is not counted
        let Some(begun) = begun else {
            begun = Some(Instant::now());
            return true;
        };
        bytes += part.len() as u64;
        took = begun.elapsed();
        took < time
    })?;
    Ok(json!({"mib_per_second": bytes as f64 / took.as_secs_f64() / 1_048_576.0}))
}

/// Many connections, a few at a time.
pub(crate) fn flood(target: &Target, count: u64, at_once: u64) -> Outcome<Value> {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    let request = target.get("/small");
    let work = || {
        while next.fetch_add(1, Ordering::Relaxed) < count {
            let mut line = target.open()?;
            line.send(&request)?;
            line.answer()?;
        }
        Outcome::Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread failed")?)
    })?;
    Ok(json!({"count": count, "seconds": begun.elapsed().as_secs_f64()}))
}

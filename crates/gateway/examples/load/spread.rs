//! Times, and how they are spread.

use std::time::Duration;

use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Spread(Vec<Duration>);

impl Spread {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// In microseconds.
    pub(crate) fn told(mut self) -> Value {
        self.0.sort_unstable();
        let at = |share: f64| {
            let index = (self.0.len() as f64 * share) as usize;
            self.0.get(index.min(self.0.len().saturating_sub(1))).map(|took| took.as_nanos() as f64 / 1000.0)
        };
        json!({"count": self.0.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)})
    }
}

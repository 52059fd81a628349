//! What is counted, and how it is shown to a scraper.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{
        counter::{ConstCounter, Counter},
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use sandbar_api::SandboxState;

use crate::{Engine, Inner};

pub(crate) struct Metrics {
    pub(crate) creates: Counter,
    pub(crate) creates_failed: Counter,
    /// Creates that found a warm sandbox.
    pub(crate) claims: Counter,
    pub(crate) create_seconds: Histogram,
    pub(crate) processes_started: Counter,
    pub(crate) output_bytes: Counter,
    /// Writes that the store refused and that were tried again, above all because the disk was full.
    pub(crate) writes_retried: Counter,
    pub(crate) adopted: Counter,
    pub(crate) lost: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            creates: Counter::default(),
            creates_failed: Counter::default(),
            claims: Counter::default(),
            // 1 ms to 8 s.
            create_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            processes_started: Counter::default(),
            output_bytes: Counter::default(),
            writes_retried: Counter::default(),
            adopted: Counter::default(),
            lost: Counter::default(),
        }
    }
}

impl Engine {
    pub fn register_metrics(&self, registry: &mut Registry) {
        let metrics = &self.inner.metrics;
        let counters = [
            ("sandbar_creates", "Sandboxes that became ready", &metrics.creates),
            ("sandbar_creates_failed", "Sandboxes that could not be made", &metrics.creates_failed),
            ("sandbar_claims", "Sandboxes that became ready by being claimed from a pool", &metrics.claims),
            ("sandbar_processes_started", "Processes started in sandboxes", &metrics.processes_started),
            ("sandbar_output_bytes", "Process output taken into the store", &metrics.output_bytes),
            ("sandbar_store_writes_retried", "Writes that had to be tried again", &metrics.writes_retried),
            ("sandbar_adopted", "Living sandboxes found again when the server started", &metrics.adopted),
            ("sandbar_lost", "Processes that ended without anybody seeing how", &metrics.lost),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "sandbar_create_seconds",
            "Time from the request until the sandbox is ready",
            metrics.create_seconds.clone(),
        );
        registry.register_collector(Box::new(Scrape(Arc::downgrade(&self.inner))));
    }
}

/// Numbers that are read when they are asked for, so that they cannot drift from the truth.
struct Scrape(Weak<Inner>);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(inner) = self.0.upgrade() else { return Ok(()) };
        let head = ConstCounter::new(*inner.store.head().borrow());
        let kind = prometheus_client::metrics::MetricType::Counter;
        head.encode(encoder.encode_descriptor("sandbar_events", "Events appended to the log", None, kind)?)?;

        let counts = inner.registry.count();
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let mut family = encoder.encode_descriptor("sandbar_sandboxes", "Sandboxes by state", None, kind)?;
        for state in SandboxState::ALL.into_iter().filter(|state| *state != SandboxState::Deleted) {
            let count = counts.get(&state).copied().unwrap_or(0);
            ConstGauge::new(count).encode(family.encode_family(&[("state", state.as_str())])?)?;
        }

        let mut family = encoder.encode_descriptor("sandbar_pool_warm", "Sandboxes that can be claimed", None, kind)?;
        for (template, warm) in inner.pools.warm() {
            ConstGauge::new(warm).encode(family.encode_family(&[("template", template)])?)?;
        }
        Ok(())
    }
}

//! What operators see of requests: an id, a span and meters. Never headers, bodies or query strings: secrets and
//! sign-in codes travel in them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue, Method},
    middleware::Next,
    response::Response,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use sandbar_engine::Engine;
use tracing::Instrument as _;

use crate::{App, access::Channel, grpc, preview};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    method: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    route: String,
    method: &'static str,
}

pub(crate) struct Meters {
    pub(crate) registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Family<Asked, Histogram, fn() -> Histogram>,
    /// Of this run of the server, so that ids of two runs do not meet in one log.
    run: u32,
    served: AtomicU64,
}

impl Meters {
    pub(crate) fn new(engine: &Engine) -> Result<Self, getrandom::Error> {
        let mut registry = Registry::default();
        engine.register_metrics(&mut registry);
        let requests = Family::default();
        registry.register("sandbar_http_requests", "HTTP requests by route and outcome", requests.clone());
        // Half a millisecond to a minute: an idle GET on one side, an exec that compiles on the other.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.0005, 3.0, 11));
        let durations = Family::new_with_constructor(histogram);
        registry.register_with_unit(
            "sandbar_http_request_duration",
            "Time until the head of the answer",
            Unit::Seconds,
            durations.clone(),
        );
        Ok(Self { registry, requests, durations, run: getrandom::u32()?, served: AtomicU64::new(0) })
    }

    /// The caller's id if it is harmless in a log, otherwise one of ours.
    fn request_id(&self, request: &Request) -> HeaderValue {
        let harmless = |value: &&HeaderValue| {
            (1..=64).contains(&value.len())
                && value.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        };
        if let Some(own) = request.headers().get(REQUEST_ID).filter(harmless) {
            return own.clone();
        }
        let number = self.served.fetch_add(1, Ordering::Relaxed);
        let text = format!("{:08x}-{number}", self.run);
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("unnamed"))
    }
}

/// A closed set: a label made of what callers send would grow without end.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

pub(crate) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = app.meters.request_id(&request);
    let method = label(request.method());
    let mut route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
        channel = ?Channel::of(&request),
    );
    let mut response = next.run(request).instrument(span.clone()).await;
    let elapsed = started.elapsed();
    let status = response.status().as_u16();
    tracing::debug!(parent: &span, status, elapsed_ms = elapsed.as_secs_f64() * 1000.0, "answered");
    let counted = grpc::counts_as(response.headers()).unwrap_or(status);
    let class = ["1xx", "2xx", "3xx", "4xx", "5xx"][usize::from(counted / 100).clamp(1, 5) - 1];
    // Its paths are a page's own, whatever the API has there.
    if response.extensions().get::<preview::Diverted>().is_some() {
        route = "preview".to_owned();
    }
    app.meters.durations.get_or_create(&Asked { route: route.clone(), method }).observe(elapsed.as_secs_f64());
    app.meters.requests.get_or_create(&Answered { route, method, status: class }).inc();
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

//! The whole router over an engine without providers: who is let in, and what every answer carries.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod approvals;
mod gate;
mod grpc;
mod sessions;
mod sign_in;
mod stated;
mod webhooks;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode, header, response::Parts},
};
use futures_util::StreamExt as _;
use sandbar_api::{CreateToken, Problem, Role, profile::ProfileList};
use sandbar_engine::{Config, Engine};
use sandbar_provider::Provider;
use tempfile::TempDir;
use tower::ServiceExt as _;

use crate::{
    App,
    access::{Channel, Site},
    openapi, routes,
};

/// Open without a token, and why the document must not grow beyond it unnoticed.
const OPEN: [(&str, &str); 3] = [("get", "/healthz"), ("get", "/readyz"), ("post", "/v1/login")];

struct Bench {
    router: Router,
    app: App,
    _home: TempDir,
}

impl Bench {
    async fn new() -> Self {
        Self::with(Vec::new()).await
    }

    async fn with(providers: Vec<Arc<dyn Provider>>) -> Self {
        Self::made(providers, Site::new("127.0.0.1:7227".parse().unwrap(), false)).await
    }

    async fn at(address: &str, tls: bool) -> Self {
        Self::made(Vec::new(), Site::new(address.parse().unwrap(), tls)).await
    }

    async fn made(providers: Vec<Arc<dyn Provider>>, site: Site) -> Self {
        let home = sandbar_test_harness::scratch().unwrap();
        let config = Config { home: home.path().to_owned(), providers, asks: true, ..Config::default() };
        let engine = Engine::open(config).await.unwrap();
        let app = App::new(engine, site, "test").unwrap();
        Self { router: routes::router(&app), app, _home: home }
    }

    async fn token(&self, role: Role) -> String {
        let request = CreateToken { name: "test".to_owned(), role, session: None, ttl: None };
        format!("Bearer {}", self.app.engine.create_token(request).await.unwrap().secret)
    }

    async fn begin(&self, channel: Channel, request: Request<Body>) -> (Parts, Body) {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(channel);
        if !parts.headers.contains_key(header::HOST) {
            parts.headers.insert(header::HOST, "localhost:7227".parse().unwrap());
        }
        self.router.clone().oneshot(Request::from_parts(parts, body)).await.unwrap().into_parts()
    }

    async fn send(&self, channel: Channel, request: Request<Body>) -> Answer {
        let asked = (request.method().to_string(), request.uri().path().to_owned());
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let is_preview = host.contains(".localhost");
        let (head, body) = self.begin(channel, request).await;
        let body = to_bytes(body, 16 << 20).await.unwrap();
        if !is_preview {
            stated::check(&asked.0, &asked.1, head.status.as_u16(), &body);
        }
        Answer { status: head.status, headers: head.headers, body: body.to_vec() }
    }

    async fn tcp(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(Channel::Tcp, request(method, path, headers, "")).await
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn code(&self) -> String {
        // In kagent's words there is no code.
        if self.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json") {
            return match self.status {
                StatusCode::UNAUTHORIZED => "unauthenticated".to_owned(),
                StatusCode::FORBIDDEN => "forbidden".to_owned(),
                status => status.to_string(),
            };
        }
        let problem: Result<Problem, _> = serde_json::from_slice(&self.body);
        problem.map_or_else(|_| self.status.to_string(), |problem| problem.code.as_str().to_owned())
    }
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Request<Body> {
    let mut builder = Request::builder().method(method.to_uppercase().as_str()).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body.to_owned().into()).unwrap()
}

/// Method and path of every documented operation, with parameters filled in.
fn operations() -> Vec<(String, String)> {
    let document = serde_json::to_value(openapi::openapi()).unwrap();
    let paths = document["paths"].as_object().unwrap().clone();
    let fill = |path: &str| {
        path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect::<Vec<_>>().join("/")
    };
    paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (method.clone(), fill(path))).collect::<Vec<_>>()
        })
        .collect()
}

#[tokio::test]
async fn every_operation_but_the_open_ones_is_refused_without_a_token() {
    let bench = Bench::new().await;
    let operations = operations();
    assert!(operations.len() >= 40, "{}", operations.len());
    for (method, path) in [
        ("post", "/v1/sandboxes/x/pause"),
        ("post", "/v1/sandboxes/x/resume"),
        ("post", "/v1/sandboxes/x/snapshots"),
        ("post", "/v1/sandboxes/x/fork"),
        ("get", "/v1/sandboxes/x/enforcement"),
        ("get", "/v1/snapshots"),
        ("get", "/v1/snapshots/x"),
        ("delete", "/v1/snapshots/x"),
        ("get", "/v1/pools"),
        ("put", "/v1/pools/x"),
        ("delete", "/v1/pools/x"),
        ("get", "/v1/profiles"),
        ("get", "/v1/sandboxes/x/network"),
        ("post", "/v1/sandboxes/x/network/rules"),
        ("delete", "/v1/sandboxes/x/network/rules"),
        ("put", "/v1/sandboxes/x/secrets/x"),
        ("delete", "/v1/sandboxes/x/secrets/x"),
        ("get", "/v1/secrets"),
        ("put", "/v1/secrets/x"),
        ("delete", "/v1/secrets/x"),
        ("get", "/v1/quarantine"),
        ("post", "/v1/quarantine/x/adopt"),
        ("delete", "/v1/quarantine/x"),
        ("post", "/v1/webhooks"),
        ("get", "/v1/webhooks"),
        ("get", "/v1/webhooks/x"),
        ("delete", "/v1/webhooks/x"),
        ("post", "/v1/webhooks/x/test"),
        ("get", "/v1/approvals"),
        ("get", "/v1/approvals/x"),
        ("post", "/v1/approvals/x/answer"),
        ("get", "/v1/sessions/x/budget"),
        ("put", "/v1/sessions/x/budget"),
        ("put", "/v1/sessions/x/model"),
        ("get", "/v1/usage"),
        ("get", "/internal/usage/x"),
        ("get", "/v1/gateway"),
        ("get", "/v1/sandboxes/x/processes/x/screen"),
        ("get", "/v1/sandboxes/x/processes/x/transcript"),
        ("get", "/v1/sandboxes/x/processes/x/recording"),
        ("get", "/v1/sandboxes/x/ports/x"),
        ("post", "/v1/sandboxes/x/previews"),
        ("post", "/v1/sandboxes/x/router-token"),
        ("post", "/v1/sessions/x/mcp"),
        ("get", "/v1/sessions/x/mcp"),
        ("delete", "/v1/sessions/x/mcp"),
        ("post", "/v1/sessions/x/sandbox"),
        ("get", "/v1/sessions/x/sandbox"),
        ("delete", "/v1/sessions/x/sandbox"),
        ("post", "/api/sessions"),
        ("get", "/api/sessions/x"),
        ("delete", "/api/sessions/x"),
        ("post", "/api/sessions/x/sandbox"),
        ("post", "/v1/logout"),
        ("post", "/v1/sign-in-links"),
        ("get", "/api/sessions/x/sandbox"),
        ("delete", "/api/sessions/x/sandbox"),
    ] {
        assert!(operations.contains(&(method.to_owned(), path.to_owned())), "{method} {path} is not documented");
    }
    for (method, path) in operations {
        let open = OPEN.contains(&(method.as_str(), path.as_str()));
        for headers in [
            &[][..],
            &[("authorization", "Bearer sbt_wrong")],
            &[("authorization", "Basic eDp5")],
            &[("cookie", "sandbar=sbw_wrong"), ("origin", "http://localhost:7227")],
            &[
                ("cookie", "sandbar=sbw_wrong"),
                ("host", "sandbar.localhost:7227"),
                ("origin", "http://sandbar.localhost:7227"),
            ],
        ] {
            let answer = bench.tcp(&method, &path, headers).await;
            if open {
                assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}");
            } else {
                assert_eq!(answer.code(), "unauthenticated", "{method} {path} {headers:?}");
                let kind = if path.starts_with("/api/") { "application/json" } else { "application/problem+json" };
                assert_eq!(answer.headers[header::CONTENT_TYPE], kind, "{method} {path}");
                assert!(answer.headers.contains_key(header::WWW_AUTHENTICATE));
            }
        }
    }
    for path in ["/v1/nothing", "/v1/sandboxes/x/files", "/v1/sandboxes/x/files/", "/v1/sandboxes?token=sbt_x"] {
        assert_eq!(bench.tcp("get", path, &[]).await.code(), "unauthenticated", "{path}");
    }
    for path in [
        "/",
        "/static/sign-in.js",
        "/static/style.css",
        "/docs/",
        "/static/docs.js",
        "/static/docs.css",
        "/openapi.json",
    ] {
        assert_eq!(bench.tcp("get", path, &[]).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn the_docs_page_is_named_after_us() {
    let page = Bench::new().await.tcp("get", "/docs/", &[]).await;
    assert!(String::from_utf8_lossy(&page.body).contains("<title>Sandbar API</title>"));
}

#[tokio::test]
async fn viewers_read_operators_use_admins_manage() {
    let bench = Bench::new().await;
    let (viewer, operator, admin) =
        (bench.token(Role::Viewer).await, bench.token(Role::Operator).await, bench.token(Role::Admin).await);
    for (method, path) in operations() {
        if OPEN.contains(&(method.as_str(), path.as_str())) {
            continue;
        }
        let managed = ["/v1/tokens", "/v1/webhooks", "/v1/secrets/", "/v1/quarantine"]
            .iter()
            .any(|managed| path.starts_with(managed));
        // For the owner of the socket alone.
        let owned = path == "/v1/sign-in-links";
        let acts =
            path.contains("/ports/") || path.ends_with("/mcp") || path == "/v1/host" || path == "/v1/kubernetes/check";
        for (role, secret, refused) in [
            ("viewer", &viewer, method != "get" || managed || acts),
            ("operator", &operator, managed || owned),
            ("admin", &admin, owned),
        ] {
            let answer = bench.tcp(&method, &path, &[("authorization", secret)]).await;
            assert_eq!(answer.code() == "forbidden", refused, "{role} {method} {path}: {}", answer.code());
            assert_ne!(answer.code(), "unauthenticated", "{role} {method} {path}");
        }
    }
    let owner = bench.send(Channel::Socket, request("get", "/v1/tokens", &[("host", "anything")], "")).await;
    assert_eq!(owner.status, StatusCode::OK);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_before_the_token_is_looked_at() {
    let bench = Bench::new().await;
    let admin = bench.token(Role::Admin).await;
    for path in ["/v1/sandboxes", "/healthz", "/", "/docs/", "/v1/nothing"] {
        for secret in [admin.as_str(), "Bearer wrong"] {
            let rebound = [("authorization", secret), ("host", "evil.example:7227")];
            assert_eq!(bench.tcp("get", path, &rebound).await.code(), "foreign_host", "{path}");
            let crossed = [("authorization", secret), ("origin", "http://evil.example")];
            assert_eq!(bench.tcp("get", path, &crossed).await.code(), "foreign_origin", "{path}");
        }
    }
}

#[tokio::test]
async fn mistakes_get_problems() {
    let bench = Bench::new().await;
    let admin = bench.token(Role::Admin).await;
    let json = [("authorization", admin.as_str()), ("content-type", "application/json")];
    for (method, path, body, code) in [
        ("get", "/v1/nothing", "", "unknown_route"),
        ("get", "/docs/nothing", "", "unknown_route"),
        ("patch", "/v1/sandboxes", "", "method_not_allowed"),
        ("delete", "/healthz", "", "method_not_allowed"),
        ("get", "/v1/sandboxes/nobody", "", "unknown_sandbox"),
        ("get", "/v1/sandboxes/sbx-00000000000000000000000000", "", "unknown_sandbox"),
        ("get", "/v1/sandboxes?limit=x", "", "bad_request"),
        ("get", "/v1/sandboxes?token=x", "", "bad_request"),
        ("get", "/v1/sandboxes/nobody?force=1", "", "bad_request"),
        ("delete", "/v1/sandboxes/nobody?force=1", "", "bad_request"),
        ("get", "/v1/tokens?page=2", "", "bad_request"),
        ("post", "/v1/sandboxes", "[]", "bad_json"),
        ("get", "/v1/events?limit=0", "", "bad_request"),
        ("get", "/v1/events?form=1", "", "bad_request"),
        ("post", "/v1/sandboxes", "{", "bad_json"),
        ("post", "/v1/sandboxes", "{\"ttl\":\"soon\"}", "bad_duration"),
        ("post", "/v1/sandboxes", "{}", "unknown_provider"),
        ("post", "/v1/sandboxes", "{\"template\":\"nope\"}", "unknown_template"),
        ("get", "/v1/templates/nope", "", "unknown_template"),
        ("post", "/v1/sandboxes", "{\"from\":\"nope\"}", "unknown_snapshot"),
        ("post", "/v1/sandboxes/nobody/pause", "", "unknown_sandbox"),
        ("post", "/v1/sandboxes/nobody/resume", "", "unknown_sandbox"),
        ("get", "/v1/sandboxes/nobody/enforcement", "", "unknown_sandbox"),
        ("post", "/v1/sandboxes/nobody/snapshots", "{}", "unknown_sandbox"),
        ("post", "/v1/sandboxes/nobody/snapshots", "{\"naem\":\"x\"}", "bad_json"),
        ("post", "/v1/sandboxes/nobody/fork", "{}", "unknown_sandbox"),
        ("post", "/v1/sandboxes/nobody/fork", "{\"count\":-1}", "bad_json"),
        ("get", "/v1/snapshots/nope", "", "unknown_snapshot"),
        ("delete", "/v1/snapshots/nope", "", "unknown_snapshot"),
        ("get", "/v1/snapshots?limit=1", "", "bad_request"),
        ("put", "/v1/pools/nope", "{\"size\":1}", "unknown_template"),
        ("put", "/v1/pools/default", "{\"size\":1001}", "bad_request"),
        ("put", "/v1/pools/default", "{}", "bad_json"),
        ("delete", "/v1/tokens/tok-00000000000000000000000000", "", "unknown_token"),
        ("get", "/v1/events?type=", "", "bad_request"),
        ("get", "/v1/events?type=Net.", "", "bad_request"),
        ("get", "/v1/sandboxes/nobody/network", "", "unknown_sandbox"),
        ("post", "/v1/sandboxes/nobody/network/rules", "{\"effect\":\"permit\",\"rules\":[]}", "bad_json"),
        ("delete", "/v1/sandboxes/nobody/network/rules", "", "bad_request"),
        ("delete", "/v1/sandboxes/nobody/network/rules?rule=a.b", "", "unknown_sandbox"),
        ("put", "/v1/sandboxes/nobody/secrets/A", "", "unknown_sandbox"),
        ("put", "/v1/secrets/lower", "{\"hosts\":[\"a.b\"],\"as\":\"body\",\"value\":\"x\"}", "bad_name"),
        ("put", "/v1/secrets/A", "{\"hosts\":[],\"as\":\"body\",\"value\":\"x\"}", "bad_secret"),
        ("put", "/v1/secrets/A", "{\"hosts\":[\"a.b\"],\"as\":\"nowhere\",\"value\":\"x\"}", "bad_secret"),
        ("delete", "/v1/secrets/A", "", "unknown_secret"),
        ("get", "/v1/approvals?state=closed", "", "bad_request"),
        ("get", "/v1/approvals/nope", "", "unknown_approval"),
        ("get", "/v1/approvals/apr-00000000000000000000000000?wait=1d", "", "unknown_approval"),
        ("get", "/v1/approvals/nope?wait=soon", "", "bad_duration"),
        ("post", "/v1/approvals/nope/answer", "{\"choice\":\"once\"}", "unknown_approval"),
        ("post", "/v1/approvals/nope/answer", "{}", "bad_json"),
        ("get", "/v1/sessions/nobody/budget", "", "unknown_sandbox"),
        ("get", "/v1/sessions/ses-00000000000000000000000000/budget", "", "unknown_session"),
        ("put", "/v1/sessions/nobody/budget", "{\"tokens\":-1}", "bad_json"),
        ("put", "/v1/sessions/nobody/model", "{\"modle\":\"x\"}", "bad_json"),
        ("get", "/v1/usage?by=hour", "", "bad_request"),
        ("get", "/v1/usage?from=yesterday", "", "bad_request"),
        ("get", "/v1/usage?of=nobody", "", "unknown_sandbox"),
        ("get", "/internal/usage/ses-00000000000000000000000000", "", "unknown_session"),
        ("get", "/v1/gateway?x=1", "", "bad_request"),
        ("get", "/v1/sandboxes/x/files/%ff", "", "bad_path"),
        ("put", "/v1/sandboxes/x/files/a?mode=rw", "", "bad_request"),
        ("get", "/v1/sandboxes/x?%ff=1", "", "bad_request"),
        ("get", "/v1/sandboxes/x/files/a?format=zip", "", "bad_request"),
    ] {
        let answer = bench.send(Channel::Tcp, request(method, path, &json, body)).await;
        assert_eq!(answer.code(), code, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
        assert_eq!(answer.headers[header::CONTENT_TYPE], "application/problem+json", "{method} {path}");
        assert_eq!(answer.headers.contains_key(header::ALLOW), code == "method_not_allowed", "{method} {path}");
    }
}

#[tokio::test]
async fn every_answer_is_hardened_and_named() {
    let bench = Bench::new().await;
    for path in ["/", "/docs/", "/openapi.json", "/healthz", "/v1/sandboxes", "/static/sign-in.js", "/v1/nothing"] {
        let answer = bench.tcp("get", path, &[]).await;
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.headers[name], value, "{path}");
        }
        let policy = answer.headers["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}");
        assert!(!policy.contains("script-src 'self' 'unsafe"), "{path}");
        assert!(answer.headers.contains_key("x-request-id"), "{path}");
    }
    let named = bench.tcp("get", "/healthz", &[("x-request-id", "mine-1")]).await;
    assert_eq!(named.headers["x-request-id"], "mine-1");
    let forged = bench.tcp("get", "/healthz", &[("x-request-id", "a b\u{9}c")]).await;
    assert_ne!(forged.headers["x-request-id"], "a b\u{9}c");
}

#[tokio::test]
async fn health_metrics_and_events_answer() {
    let bench = Bench::new().await;
    let viewer = bench.token(Role::Viewer).await;
    let health = bench.tcp("get", "/healthz", &[]).await;
    assert_eq!(health.body, br#"{"status":"ok","version":"test"}"#);
    let metrics = bench.tcp("get", "/metrics", &[("authorization", &viewer)]).await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(text.contains("sandbar_http_requests_total{route=\"/healthz\",method=\"GET\",status=\"2xx\"} 1"), "{text}");
    assert!(text.ends_with("# EOF\n"));
    let events = bench.tcp("get", "/v1/events", &[("authorization", &viewer)]).await;
    assert!(String::from_utf8_lossy(&events.body).contains("token.created"));
    let listed =
        bench.tcp("get", "/v1/sandboxes?label=a=b&state=ready&state=failed", &[("authorization", &viewer)]).await;
    assert_eq!(listed.body, br#"{"sandboxes":[]}"#);
    for (path, empty) in [("/v1/snapshots", r#"{"snapshots":[]}"#), ("/v1/pools", r#"{"pools":[]}"#)] {
        let listed = bench.tcp("get", path, &[("authorization", &viewer)]).await;
        assert_eq!(String::from_utf8_lossy(&listed.body), empty);
    }
    let profiles = bench.tcp("get", "/v1/profiles", &[("authorization", &viewer)]).await;
    let profiles: ProfileList = serde_json::from_slice(&profiles.body).unwrap();
    let names: Vec<_> = profiles.profiles.iter().map(|profile| profile.name.as_str()).collect();
    assert_eq!(names, ["open", "standard", "hardened"]);
    assert!(profiles.profiles.iter().all(|profile| !profile.description.is_empty() && !profile.layers.is_empty()));
}

#[tokio::test]
async fn a_live_stream_goes_on_where_it_was_left_and_ends_with_the_server() {
    let bench = Bench::new().await;
    let viewer = bench.token(Role::Viewer).await;
    bench.token(Role::Viewer).await;
    let headers = [("authorization", viewer.as_str()), ("accept", "text/event-stream"), ("last-event-id", "1")];
    let (head, body) = bench.begin(Channel::Tcp, request("get", "/v1/events", &headers, "")).await;
    assert_eq!(head.headers[header::CONTENT_TYPE], "text/event-stream");
    let mut frames = body.into_data_stream();
    let mut frame = async || String::from_utf8(frames.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(frame().await.starts_with("id: 2\nevent: token.created\ndata: {\"seq\":2,"));
    bench.token(Role::Viewer).await;
    assert!(frame().await.starts_with("id: 3\n"));
    bench.app.closing.cancel();
    assert!(frame().await.starts_with("event: error\ndata: {\"type\":\"urn:sandbar:problem:shutting_down\""));
    assert!(frames.next().await.is_none());
}

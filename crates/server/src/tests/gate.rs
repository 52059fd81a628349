//! The routes of the gate: what an agent's token reaches, who manages secrets, and events by type.

use std::sync::Arc;

use async_trait::async_trait;
use sandbar_api::{CreateSandbox, LayerReport, SandboxId, SandboxState, SessionId};
use sandbar_engine::{Caller, ListQuery};
use sandbar_provider::{Error, Found, Guest, HostReport, Provider, Spec};

use super::*;

/// Makes nothing; but whoever asked has a session.
pub(super) struct Barren;

#[async_trait]
impl Provider for Barren {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> HostReport {
        HostReport { provider: "local".to_owned(), findings: Vec::new() }
    }

    async fn create(&self, _: &Spec) -> Result<(), Error> {
        Err(Error::Declined { provider: "local", verb: "make" })
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        self.create(spec).await
    }

    async fn inspect(&self, _: &Spec) -> Result<Vec<LayerReport>, Error> {
        Ok(Vec::new())
    }

    async fn stop(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    async fn destroy(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        Ok(Vec::new())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error> {
        Err(Error::Unknown(id.clone()))
    }

    async fn gone(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }
}

impl Bench {
    /// A new session.
    pub(super) async fn session(&self) -> SessionId {
        let caller = Caller { owner: "socket".to_owned(), role: Role::Admin, session: None };
        let made = self.app.engine.create(&caller, CreateSandbox::default(), None).await;
        assert!(made.is_err(), "a barren provider made a sandbox");
        let every = ListQuery { states: SandboxState::ALL.to_vec(), ..ListQuery::default() };
        self.app.engine.list(every).await.unwrap().sandboxes.pop().unwrap().session
    }

    /// A session, and the token of an agent that is bound to it.
    pub(super) async fn agent(&self) -> (SessionId, String) {
        let session = self.session().await;
        let request =
            CreateToken { name: "agent".to_owned(), role: Role::Agent, session: Some(session.clone()), ttl: None };
        let secret = self.app.engine.create_token(request).await.unwrap().secret;
        (session, format!("Bearer {secret}"))
    }
}

/// Refused for the role, before the route was asked.
fn is_turned_away(answer: &Answer) -> bool {
    answer.code() == "forbidden" && String::from_utf8_lossy(&answer.body).contains("and at nothing else")
}

#[tokio::test]
async fn agents_reach_what_is_listed_and_nothing_else() {
    let bench = Bench::with(vec![Arc::new(Barren)]).await;
    let (session, agent) = bench.agent().await;
    let headers = [("authorization", agent.as_str())];
    let mut reached = Vec::new();
    for (method, path) in operations() {
        if OPEN.contains(&(method.as_str(), path.as_str())) {
            assert!(!is_turned_away(&bench.tcp(&method, &path, &headers).await), "{method} {path} is open");
            continue;
        }
        if !is_turned_away(&bench.tcp(&method, &path, &headers).await) {
            reached.push(format!("{method} {path}"));
        }
    }
    reached.sort();
    let listed = [
        "delete /v1/sessions/x/mcp",
        "get /internal/usage/x",
        "get /v1/approvals",
        "get /v1/approvals/x",
        "get /v1/sessions",
        "get /v1/sessions/x",
        "get /v1/sessions/x/budget",
        "get /v1/sessions/x/mcp",
        "get /v1/sessions/x/sandbox",
        "get /v1/usage",
        "post /v1/sessions/x/mcp",
    ];
    assert_eq!(reached, listed);
    for (method, path) in [
        ("get", "/v1/nothing"),
        ("get", "/"),
        ("post", "/v1/usage"),
        ("patch", "/v1/approvals"),
        ("delete", "/v1/approvals/x"),
        ("post", "/v1/approvals/x/answer"),
        ("get", "/v1/approvals/"),
        ("get", "/v1//approvals"),
        ("get", "/v1/sessions/x/budget/"),
        ("post", "/v1/sessions"),
        ("delete", "/v1/sessions/x"),
    ] {
        let answer = bench.tcp(method, path, &headers).await;
        let open = path == "/";
        assert_eq!(is_turned_away(&answer), !open, "{method} {path}: {}", answer.code());
    }
    let own = bench.tcp("get", &format!("/v1/sessions/{session}/budget"), &headers).await;
    assert_eq!(own.status, StatusCode::OK, "{}", String::from_utf8_lossy(&own.body));
    let usage = bench.tcp("head", "/v1/usage", &headers).await;
    assert_eq!(usage.status, StatusCode::OK);
}

#[tokio::test]
async fn agents_see_no_other_session() {
    let bench = Bench::with(vec![Arc::new(Barren)]).await;
    let (own, agent) = bench.agent().await;
    let other = bench.session().await;
    assert_ne!(own, other);
    let headers = [("authorization", agent.as_str())];
    for path in [
        format!("/v1/sessions/{other}"),
        format!("/v1/sessions/{other}/budget"),
        format!("/v1/usage?of={other}"),
        format!("/internal/usage/{other}"),
    ] {
        let answer = bench.tcp("get", &path, &headers).await;
        assert!(answer.status.is_client_error(), "{path}: {}", String::from_utf8_lossy(&answer.body));
    }
    for path in [
        format!("/v1/sessions/{own}"),
        format!("/v1/usage?of={own}"),
        format!("/internal/usage/{own}"),
        "/v1/approvals".to_owned(),
    ] {
        let answer = bench.tcp("get", &path, &headers).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&answer.body));
    }
}

#[tokio::test]
async fn an_agents_token_is_bound_to_a_session() {
    let bench = Bench::with(vec![Arc::new(Barren)]).await;
    let (session, _) = bench.agent().await;
    let admin = bench.token(Role::Admin).await;
    let json = [("authorization", admin.as_str()), ("content-type", "application/json")];
    for (body, code) in [
        (format!(r#"{{"name":"a","role":"agent","session":"{session}"}}"#), "201 Created"),
        (r#"{"name":"a","role":"agent"}"#.to_owned(), "bad_request"),
        (r#"{"name":"a","role":"agent","session":"x"}"#.to_owned(), "bad_json"),
        (r#"{"name":"a","role":"agent","session":"ses-00000000000000000000000000"}"#.to_owned(), "unknown_session"),
        (format!(r#"{{"name":"a","role":"viewer","session":"{session}"}}"#), "bad_request"),
    ] {
        let answer = bench.send(Channel::Tcp, request("post", "/v1/tokens", &json, &body)).await;
        assert_eq!(answer.code(), code, "{body}");
    }
}

#[tokio::test]
async fn secrets_go_in_and_never_out() {
    let bench = Bench::new().await;
    let (viewer, operator, admin) =
        (bench.token(Role::Viewer).await, bench.token(Role::Operator).await, bench.token(Role::Admin).await);
    let put = async |secret: &str, body: &str| {
        let headers = [("authorization", secret), ("content-type", "application/json")];
        bench.send(Channel::Tcp, request("put", "/v1/secrets/TOKEN", &headers, body)).await
    };
    let body = r#"{"hosts":["api.example.org"],"as":"header:Authorization:Bearer {}","value":"s3cret-value"}"#;
    for secret in [&viewer, &operator] {
        assert_eq!(put(secret, body).await.code(), "forbidden");
    }
    let set = put(&admin, body).await;
    assert_eq!(set.status, StatusCode::OK, "{}", String::from_utf8_lossy(&set.body));
    let mut seen = String::from_utf8_lossy(&set.body).into_owned();
    let list = bench.tcp("get", "/v1/secrets", &[("authorization", &viewer)]).await;
    assert!(String::from_utf8_lossy(&list.body).contains("api.example.org"));
    seen.push_str(&String::from_utf8_lossy(&list.body));
    let events = bench.tcp("get", "/v1/events", &[("authorization", &viewer)]).await;
    assert!(String::from_utf8_lossy(&events.body).contains("secret.set"));
    seen.push_str(&String::from_utf8_lossy(&events.body));
    for bad in [r#"{"hosts":"s3cret-value"}"#, r#"{"hosts":[],"as":"body","value":"s3cret-value"}"#] {
        let refused = put(&admin, bad).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{bad}");
        seen.push_str(&String::from_utf8_lossy(&refused.body));
    }
    assert!(!seen.contains("s3cret-value"), "{seen}");
    let large = format!(r#"{{"hosts":[],"as":"body","value":"{}"}}"#, "x".repeat(64 * 1024));
    assert_eq!(put(&admin, &large).await.code(), "too_large");
    let removed = bench.tcp("delete", "/v1/secrets/TOKEN", &[("authorization", &admin)]).await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT);
    assert_eq!(bench.tcp("delete", "/v1/secrets/TOKEN", &[("authorization", &admin)]).await.code(), "unknown_secret");
}

#[tokio::test]
async fn events_are_filtered_by_type() {
    let bench = Bench::new().await;
    let viewer = bench.token(Role::Viewer).await;
    for _ in 0..5 {
        bench.token(Role::Viewer).await;
    }
    let ids: Vec<_> = bench.app.engine.tokens().await.unwrap().into_iter().skip(1).map(|token| token.id).collect();
    for id in &ids {
        bench.app.engine.revoke_token(id.as_str()).await.unwrap();
    }
    let page = async |query: &str| {
        let answer = bench.tcp("get", &format!("/v1/events?{query}"), &[("authorization", &viewer)]).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}");
        let page: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let numbers = page["events"].as_array().unwrap().iter().map(|event| event["seq"].as_u64().unwrap());
        numbers.collect::<Vec<_>>()
    };
    assert_eq!(page("type=token.revoked").await, [7, 8, 9, 10, 11]);
    // A page is filled from behind what is not wanted: an empty one means the end.
    assert_eq!(page("type=token.revoked&limit=2").await, [7, 8]);
    assert_eq!(page("type=token.revoked&limit=2&from=9").await, [9, 10]);
    assert!(page("type=token.revoked&from=12").await.is_empty());
    assert!(page("type=sandbox.,net.").await.is_empty());
    assert_eq!(page("type=sandbox.,token.revoked&limit=1").await, [7]);
    assert_eq!(page("type=token.&limit=1000").await.len(), 11);

    let headers = [("authorization", viewer.as_str()), ("accept", "text/event-stream"), ("last-event-id", "9")];
    let live = request("get", "/v1/events?type=token.revoked&from=1", &headers, "");
    let (_, body) = bench.begin(Channel::Tcp, live).await;
    let mut frames = body.into_data_stream();
    let mut frame = async || String::from_utf8(frames.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(frame().await.starts_with("id: 10\nevent: token.revoked\n"));
    assert!(frame().await.starts_with("id: 11\n"));
    bench.token(Role::Viewer).await;
    let last = bench.app.engine.tokens().await.unwrap().pop().unwrap();
    bench.app.engine.revoke_token(last.id.as_str()).await.unwrap();
    assert!(frame().await.starts_with("id: 13\nevent: token.revoked\n"), "what is not wanted does not come");
}

//! Sessions and sandboxes in kagent's words, case by case, and the native routes beside them: a real server over TCP and
//! real guests without isolation. The guest is this file started again.

use std::{collections::HashSet, fs, net::SocketAddr, sync::atomic::Ordering, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use sandbar_api::{CreateToken, Role};
use sandbar_server::{Options, Server};
use sandbar_test_harness::Test;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, Bench, on, test};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = on! { House, "kagent";
        a_conversation_is_begun_looked_at_and_deleted => conversations,
        a_sandbox_is_provided_once => provided,
        get_tells_none_pending_and_ready => pending,
        destroying_is_idempotent => destroyed,
        what_is_wrong_is_said_to_the_letter => mistakes,
        failures_hide_their_cause => failures,
        only_the_owner_sees_it => owners,
        who_may => roles,
        the_headers_open_the_tools => tools,
        the_native_routes_are_the_same => native,
        without_tcp_there_is_no_url => nowhere,
    };
    tests.push(test("kagent::it_ends_with_the_server", async { House::new().await.close().await }));
    tests
}

struct House {
    bench: Bench,
    address: SocketAddr,
    operator: String,
    closing: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl House {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let socket = bench.directory.path().join("second.sock");
        let options = Options {
            tcp: Some("127.0.0.1:0".parse().unwrap()),
            tls: None,
            socket,
            version: "test",
            preview_domain: None,
            shared: false,
        };
        let server = Server::bind(bench.engine.clone(), options).await.unwrap();
        let (address, closing) = (server.tcp_address().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(server.serve(closing.clone()));
        let operator = token(&bench, Role::Operator, None).await;
        Self { bench, address, operator, closing, serving }
    }

    async fn close(self) {
        self.closing.cancel();
        self.serving.await.unwrap().unwrap();
        self.bench.closing.cancel();
        self.bench.serving.await.unwrap().unwrap();
        self.bench.engine.shutdown().await;
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = sender.send_request(request.body(body.into()).unwrap()).await.unwrap().into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    }

    /// As an operator, and what came back.
    async fn call(&self, method: &str, path: &str) -> (u16, Value) {
        seen(&self.send(method, path, &[("authorization", &self.operator)], "").await)
    }

    async fn begin(&self, body: &Value) -> (u16, Value) {
        let headers = [("authorization", self.operator.as_str()), ("content-type", "application/json")];
        seen(&self.send("POST", "/api/sessions", &headers, body.to_string()).await)
    }
}

async fn token(bench: &Bench, role: Role, session: Option<&str>) -> String {
    let session = session.map(|id| id.parse().unwrap());
    let request = CreateToken { name: "t".to_owned(), role, session, ttl: None };
    format!("Bearer {}", bench.engine.create_token(request).await.unwrap().secret)
}

/// No answer here is a problem document.
fn seen(answer: &Answer) -> (u16, Value) {
    assert_eq!(answer.headers["content-type"], "application/json", "{}", answer.text());
    (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap())
}

fn error(text: &str) -> Value {
    json!({ "error": text })
}

async fn conversations(house: &House) {
    let asked = json!({"agent_ref": "kagent/coder", "id": "talk 1/ü", "name": "A talk"});
    let (status, begun) = house.begin(&asked).await;
    assert_eq!(
        (status, &begun["error"], &begun["message"]),
        (201, &json!(false), &json!("Successfully created session"))
    );
    let data = &begun["data"];
    assert_eq!((&data["id"], &data["name"], &data["agent_ref"]), (&asked["id"], &asked["name"], &asked["agent_ref"]));
    assert!(data["user_id"].as_str().unwrap().starts_with("token:tok-"), "its own owner");
    let (status, again) = house.begin(&asked).await;
    assert_eq!((status, &again["data"]), (201, data), "for a client that tries again");
    let path = "/api/sessions/talk%201%2F%C3%BC";
    let (status, found) = house.call("GET", path).await;
    assert_eq!((status, &found["error"], &found["data"]), (200, &json!(false), data));
    let (status, made_up) = house.begin(&json!({"agent_ref": "kagent/coder"})).await;
    let id = made_up["data"]["id"].as_str().unwrap();
    assert_eq!((status, house.call("GET", &format!("/api/sessions/{id}")).await.0), (201, 200));
    let gone = json!({"error": false, "data": {}, "message": "Session deleted successfully"});
    for _ in 0..2 {
        assert_eq!(house.call("DELETE", path).await, (200, gone.clone()));
    }
    assert_eq!(house.call("GET", path).await, (404, error("Session not found")));
    let (_, anew) = house.begin(&asked).await;
    assert_ne!(anew["data"]["session"], data["session"], "the id is free again");

    let other = json!({"agent_ref": "kagent/other", "id": "talk 1/ü"});
    assert_eq!(house.begin(&other).await.0, 409);
    assert_eq!(house.begin(&json!({"id": "x"})).await, (400, error("agent_ref is required")));
    for bad in ["a/b/c", "/a", "a b"] {
        let refused = house.begin(&json!({"agent_ref": bad})).await;
        assert_eq!(refused, (400, error(&format!("Invalid agent reference format: {bad}"))));
    }
    for bad in [json!({"agent_ref": 1}), json!([]), json!({"agent_ref": "a/b", "id": "x".repeat(513)})] {
        let (status, refused) = house.begin(&bad).await;
        assert!(status == 400 && refused["error"].as_str().unwrap().starts_with("Invalid request body: "), "{refused}");
    }
    assert_eq!(house.begin(&json!({"agent_ref": "a/b", "id": "x".repeat(512)})).await.0, 201, "as long as it may be");
}

async fn provided(house: &House) {
    house.begin(&json!({"agent_ref": "kagent/coder", "id": "many"})).await;
    let all = join_all((0..20).map(|_| house.call("POST", "/api/sessions/many/sandbox"))).await;
    let (status, first) = &all[0];
    assert_eq!((*status, &first["protocol"], &first["ready"]), (200, &json!("streamable-http"), &json!(true)));
    assert!(all.iter().all(|(status, one)| *status == 200 && one == first), "one for all, headers too: {all:?}");
    assert!(first["sandbox_id"].as_str().unwrap().starts_with("sbx-"));
    let session = &house.call("GET", "/api/sessions/many").await.1["data"]["session"];
    let url = format!("http://{}/v1/sessions/{}/mcp", house.address, session.as_str().unwrap());
    assert_eq!(first["mcp_url"], url);
    assert!(first["headers"]["Authorization"].as_str().unwrap().starts_with("Bearer sbt_"));
    let fields: HashSet<_> = first.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, HashSet::from(["sandbox_id", "mcp_url", "protocol", "headers", "ready"]), "not wrapped");
    let (status, made) = house.call("POST", "/api/sessions/fresh/sandbox?create=true&agent=kagent/coder").await;
    assert_eq!((status, &made["ready"]), (200, &json!(true)));
    assert_ne!(made["sandbox_id"], first["sandbox_id"]);
    let again = house.call("POST", "/api/sessions/fresh/sandbox?create=true&agent=kagent/coder").await.1;
    assert_eq!(again, made);
}

async fn pending(house: &House) {
    house.begin(&json!({"agent_ref": "kagent/coder", "id": "slow"})).await;
    let none = (404, error("No sandbox found for session"));
    assert_eq!(house.call("GET", "/api/sessions/slow/sandbox").await, none);
    let shut = house.bench.provider.gate.write().await;
    let (status, early) = house.call("POST", "/api/sessions/slow/sandbox?wait=0").await;
    assert_eq!((status, &early["ready"]), (202, &json!(false)));
    assert!(early["mcp_url"].as_str().unwrap().ends_with("/mcp"), "clients fail on an empty one");
    let pending = loop {
        match house.call("GET", "/api/sessions/slow/sandbox").await {
            found if found == none => tokio::task::yield_now().await,
            (status, found) => break (status, found["ready"].clone()),
        }
    };
    assert_eq!(pending, (200, json!(false)));
    let opening = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(shut);
    };
    let ((status, ready), ()) = tokio::join!(house.call("POST", "/api/sessions/slow/sandbox?wait=25"), opening);
    assert_eq!((status, &ready["ready"]), (200, &json!(true)), "blocks until it is ready");
    assert_eq!(house.call("GET", "/api/sessions/slow/sandbox").await, (200, ready));
}

async fn destroyed(house: &House) {
    house.begin(&json!({"agent_ref": "kagent/coder", "id": "brief"})).await;
    let path = "/api/sessions/brief/sandbox";
    let gone = json!({"error": false, "data": {}, "message": "Sandbox deleted successfully"});
    assert_eq!(house.call("DELETE", path).await, (200, gone.clone()), "there was none");
    let first = house.call("POST", path).await.1;
    let guests = || house.bench.provider.guests.lock().unwrap().len();
    let before = guests();
    for _ in 0..2 {
        assert_eq!(house.call("DELETE", path).await, (200, gone.clone()));
    }
    assert_eq!(guests(), before - 1);
    assert_eq!(house.call("GET", path).await.0, 404);
    let second = house.call("POST", path).await.1;
    assert_ne!(second["sandbox_id"], first["sandbox_id"]);
    assert_eq!((&second["headers"], &second["mcp_url"]), (&first["headers"], &first["mcp_url"]), "a client keeps both");
    house.call("DELETE", "/api/sessions/brief").await;
    assert_eq!(guests(), before - 1, "the session took it along");
    let secret = second["headers"]["Authorization"].as_str().unwrap();
    let url = second["mcp_url"].as_str().unwrap().split_once("/v1/").unwrap().1;
    let refused = house.send("POST", &format!("/v1/{url}"), &[("authorization", secret)], "").await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "and its token");
    assert_eq!(house.call("POST", path).await, (404, error("Session not found")));
}

async fn mistakes(house: &House) {
    for (method, path, status, text) in [
        ("POST", "/api/sessions/nobody/sandbox", 404, "Session not found"),
        ("GET", "/api/sessions/nobody/sandbox", 404, "No sandbox found for session"),
        ("DELETE", "/api/sessions/nobody/sandbox", 404, "Session not found"),
        ("DELETE", "/api/sessions/nobody", 404, "Session not found"),
        ("POST", "/api/sessions/x/sandbox?create=true", 400, "Session has no agent reference"),
        ("POST", "/api/sessions/x/sandbox?create=true&agent=a/b/c", 400, "Invalid agent reference format: a/b/c"),
    ] {
        assert_eq!(house.call(method, path).await, (status, error(text)), "{method} {path}");
    }
    let long = "x".repeat(513);
    for (path, begins) in [
        ("/api/sessions/a%07b/sandbox".to_owned(), "Failed to get session_id from path: "),
        (format!("/api/sessions/{long}/sandbox"), "Failed to get session_id from path: "),
        ("/api/sessions/x/sandbox?user_id=".to_owned(), "Failed to get user ID: "),
        (format!("/api/sessions/x/sandbox?user_id={long}"), "Failed to get user ID: "),
        ("/api/sessions/x/sandbox?wait=soon".to_owned(), "Invalid wait: "),
        ("/api/sessions/x/sandbox?surprise=1".to_owned(), "The request is malformed: "),
    ] {
        let (status, refused) = house.call("POST", &path).await;
        assert!(status == 400 && refused["error"].as_str().unwrap().starts_with(begins), "{path}: {refused}");
    }
    // One that was begun otherwise belongs to whoever made it, and has no agent.
    let headers = [("authorization", house.operator.as_str()), ("content-type", "application/json")];
    let made = house.send("POST", "/v1/sessions", &headers, "{}").await;
    let id = serde_json::from_slice::<Value>(&made.body).unwrap()["id"].as_str().unwrap().to_owned();
    let refused = house.call("POST", &format!("/api/sessions/{id}/sandbox")).await;
    assert_eq!(refused, (400, error("Session has no agent reference")));
    for (method, path, status) in [("GET", "/api/nothing", 404), ("PUT", "/api/sessions/x", 405)] {
        let (got, refused) = house.call(method, path).await;
        assert!(got == status && refused["error"].is_string(), "{method} {path}: {refused}");
    }
}

async fn failures(house: &House) {
    house.begin(&json!({"agent_ref": "kagent/coder", "id": "fails"})).await;
    let (path, config) = ("/api/sessions/fails/sandbox", house.bench.directory.path().join("home/workspaces.toml"));
    house.bench.provider.broken.store(true, Ordering::SeqCst);
    assert_eq!(house.call("POST", path).await, (500, error("Failed to create sandbox")), "at once");
    assert_eq!(house.call("GET", path).await.0, 404);
    fs::write(&config, "[agents.coder]\nenabled = false\n").unwrap();
    assert_eq!(house.call("POST", path).await, (400, error("Workspace is not enabled for this agent")));
    for wrong in ["[agents.coder]\ntemplate = \"none\"\n", "[agents.coder]\nenabeld = true\n"] {
        fs::write(&config, wrong).unwrap();
        assert_eq!(house.call("POST", path).await, (500, error("Failed to fetch agent CRD")));
    }
    // What is refused leaves no conversation behind that nobody would ever use.
    let begin = "/api/sessions/never/sandbox?create=true&agent=kagent/coder";
    assert_eq!(house.call("POST", begin).await, (500, error("Failed to fetch agent CRD")));
    fs::write(&config, "[agents.coder]\nenabled = false\n").unwrap();
    assert_eq!(house.call("POST", begin).await, (400, error("Workspace is not enabled for this agent")));
    assert_eq!(house.call("GET", "/api/sessions/never").await.0, 404);
    fs::remove_file(&config).unwrap();
    let (status, made) = house.call("POST", path).await;
    assert_eq!(status, 200, "{made}");
}

async fn owners(house: &House) {
    let begin = |user: &'static str| {
        let path = format!("/api/sessions/shared/sandbox?create=true&agent=a/b&user_id={user}");
        async move { house.call("POST", &path).await }
    };
    let (ann, bob) = (begin("ann").await.1, begin("bob").await.1);
    assert_ne!(ann["sandbox_id"], bob["sandbox_id"], "the same id of two users");
    let own = house.call("POST", "/api/sessions/ann-1/sandbox?create=true&agent=a/b&user_id=ann").await.1;
    for user in ["", "?user_id=bob"] {
        for (method, what, text) in [
            ("POST", "/sandbox", "Session not found"),
            ("GET", "/sandbox", "No sandbox found for session"),
            ("DELETE", "/sandbox", "Session not found"),
            ("GET", "", "Session not found"),
            ("DELETE", "", "Session not found"),
        ] {
            let path = format!("/api/sessions/ann-1{what}{user}");
            assert_eq!(house.call(method, &path).await, (404, error(text)), "{method} {path}");
        }
    }
    let header = [("authorization", house.operator.as_str()), ("x-user-id", "ann")];
    assert_eq!(seen(&house.send("GET", "/api/sessions/ann-1/sandbox", &header, "").await), (200, own));
    let both = seen(&house.send("GET", "/api/sessions/ann-1/sandbox?user_id=bob", &header, "").await);
    assert_eq!(both.0, 400);
}

async fn roles(house: &House) {
    house.begin(&json!({"agent_ref": "kagent/coder", "id": "many"})).await;
    assert_eq!(house.call("POST", "/api/sessions/many/sandbox").await.0, 200);
    let (viewer, path) = (token(&house.bench, Role::Viewer, None).await, "/api/sessions/many/sandbox");
    let session = house.call("GET", "/api/sessions/many").await.1["data"].clone();
    let user = session["user_id"].as_str().unwrap();
    let of_user = format!("{path}?user_id={user}");
    let (status, looked) = seen(&house.send("GET", &of_user, &[("authorization", &viewer)], "").await);
    assert!(status == 200 && looked.get("headers").is_none(), "a viewer is told no token: {looked}");
    let agent = token(&house.bench, Role::Agent, Some(session["session"].as_str().unwrap())).await;
    for (method, secret) in [("POST", &viewer), ("DELETE", &viewer), ("POST", &agent), ("GET", &agent)] {
        let (status, refused) = seen(&house.send(method, &of_user, &[("authorization", secret)], "").await);
        assert!(status == 403 && refused["error"].is_string(), "{method}: {refused}");
    }
    for headers in [&[][..], &[("authorization", "Bearer sbt_wrong")]] {
        let answer = house.send("POST", path, headers, "").await;
        assert!(answer.headers.contains_key("www-authenticate"));
        assert_eq!(seen(&answer).0, 401);
    }
    let foreign = [("authorization", house.operator.as_str()), ("origin", "http://evil.example")];
    assert_eq!(seen(&house.send("POST", path, &foreign, "").await).0, 403);
}

async fn tools(house: &House) {
    house.begin(&json!({"agent_ref": "kagent/coder", "id": "many"})).await;
    let place = house.call("POST", "/api/sessions/many/sandbox").await.1;
    let url = place["mcp_url"].as_str().unwrap();
    let path = url.strip_prefix(&format!("http://{}", house.address)).unwrap();
    let secret = place["headers"]["Authorization"].as_str().unwrap();
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let accept = ("accept", "application/json, text/event-stream");
    let headers = [("authorization", secret), accept, ("content-type", "application/json")];
    let answer = house.send("POST", path, &headers, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert!(answer.text().contains("\"serverInfo\""), "{}", answer.text());
}

async fn native(house: &House) {
    let headers = [("authorization", house.operator.as_str())];
    let send = async |method: &str, path: &str| house.send(method, path, &headers, "").await;
    let path = "/v1/sessions/talk/sandbox";
    assert_eq!(send("POST", path).await.code(), "unknown_session");
    assert_eq!(send("POST", &format!("{path}?agent=coder")).await.code(), "bad_request");
    let made = send("POST", &format!("{path}?create=true&agent=coder")).await;
    assert_eq!(made.status, StatusCode::OK, "{}", made.text());
    let made: Value = serde_json::from_slice(&made.body).unwrap();
    assert_eq!((&made["ready"], &made["protocol"]), (&json!(true), &json!("streamable-http")));
    let session: Value = serde_json::from_slice(&send("GET", "/v1/sessions/talk").await.body).unwrap();
    assert_eq!((&session["id"], &session["agent"]), (&made["session"], &json!("coder")));
    for same in [path.to_owned(), format!("{path}?create=true"), format!("{path}?create=true&agent=coder")] {
        let again: Value = serde_json::from_slice(&send("POST", &same).await.body).unwrap();
        assert_eq!(again, made, "{same}");
    }
    assert_eq!(send("POST", &format!("{path}?create=true&agent=other")).await.code(), "name_taken");
    let looked: Value = serde_json::from_slice(&send("GET", path).await.body).unwrap();
    assert_eq!(looked, made);
    // The sandbox of a session that was begun with one is its workspace.
    let old: Value = serde_json::from_slice(&send("POST", "/v1/sessions/box/sandbox").await.body).unwrap();
    let boxed: Value = serde_json::from_slice(&send("GET", "/v1/sandboxes/box").await.body).unwrap();
    assert_eq!(old["sandbox_id"], boxed["id"]);

    let json = [headers[0], ("content-type", "application/json")];
    let named = house.send("POST", "/v1/sandboxes", &json, r#"{"name":"lone"}"#).await;
    assert_eq!(named.status, StatusCode::CREATED);
    let other: Value =
        serde_json::from_slice(&send("POST", "/v1/sessions/lone/sandbox?create=true").await.body).unwrap();
    let lone: Value = serde_json::from_slice(&send("GET", "/v1/sandboxes/lone").await.body).unwrap();
    assert_ne!(other["sandbox_id"], lone["id"], "a sandbox's name is no conversation's");

    let secret = made["headers"]["Authorization"].as_str().unwrap();
    let agent = [("authorization", secret)];
    let own = house.send("GET", path, &agent, "").await;
    let own: Value = serde_json::from_slice(&own.body).unwrap();
    assert!(own["ready"] == true && own.get("headers").is_none(), "{own}");
    for (method, path) in [("POST", path), ("DELETE", path), ("GET", "/v1/sessions/box/sandbox")] {
        assert_eq!(house.send(method, path, &agent, "").await.code(), "forbidden", "{method} {path}");
    }
    let sandbox = made["sandbox_id"].as_str().unwrap();
    for _ in 0..2 {
        assert_eq!(send("DELETE", path).await.status, StatusCode::NO_CONTENT);
    }
    let none: Value = serde_json::from_slice(&send("GET", path).await.body).unwrap();
    assert!(none["ready"] == false && none.get("sandbox_id").is_none(), "{none}");
    assert_eq!(send("GET", "/v1/sessions/talk").await.status, StatusCode::OK, "the session stays");
    let next: Value = serde_json::from_slice(&send("POST", path).await.body).unwrap();
    assert_ne!(next["sandbox_id"], *sandbox);
    send("DELETE", "/v1/sessions/talk").await;
    assert_eq!(send("POST", path).await.code(), "session_ended");
    assert_eq!(send("POST", &format!("{path}?create=true")).await.status, StatusCode::OK, "its name is free");
    assert_eq!(send("POST", "/v1/sessions/No/sandbox?create=true").await.code(), "bad_name");
}

async fn nowhere(house: &House) {
    // The bench itself listens on its Unix socket alone.
    let refused = house.bench.send("POST", "/v1/sessions/box/sandbox", &[], "").await;
    assert_eq!(refused.code(), "bad_request");
    assert!(refused.text().contains("--listen"), "{}", refused.text());
}

//! The REST surface as a stranger meets it: over TCP, with a token, with plain HTTP. Bad input gets its code, its
//! sentence and its fix, and changes nothing.

use std::io::Write as _;

use reqwest::{Method, StatusCode, header};
use sandbar_api::{CreateToken, Role};
use serde_json::{Value, json};

use crate::support::{Outcome, Server, expect_clean, until};

struct Stranger {
    base: String,
    token: String,
    http: reqwest::Client,
}

impl Stranger {
    async fn with(server: &Server, role: Role) -> Outcome<Self> {
        let request = CreateToken { name: format!("{role:?}"), role, session: None, ttl: None };
        let token = server.client()?.create_token(&request).await?.secret;
        Ok(Self { base: server.base()?, token, http: reqwest::Client::builder().no_proxy().build()? })
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token)
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Outcome<(StatusCode, Value)> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        answer(request).await
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Outcome<(StatusCode, Value)> {
    let response = request.send().await?;
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        assert_eq!(kind, "application/problem+json", "{status}");
    }
    let text = response.text().await?;
    Ok((status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? }))
}

/// A GET whose path is sent as it is.
fn raw(stranger: &Stranger, path: &str) -> Outcome<String> {
    let host = stranger.base.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(host)?;
    let token = &stranger.token;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )?;
    Ok(std::io::read_to_string(stream)?)
}

/// A problem with this code, whole: status, sentence and fix.
fn expect_problem(what: &str, (status, body): &(StatusCode, Value), code: &str) {
    assert_eq!(body["code"], code, "{what}: {status} {body}");
    assert_eq!(body["status"], status.as_u16(), "{what}: {body}");
    for field in ["title", "detail", "fix"] {
        assert!(body[field].as_str().is_some_and(|text| !text.is_empty()), "{what}: no {field}: {body}");
    }
}

#[tokio::test]
async fn bad_input_gets_its_code_and_changes_nothing() -> Outcome {
    let server = Server::start()?;
    let stranger = Stranger::with(&server, Role::Admin).await?;
    let client = server.client()?;
    let made = stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": "taken"}))).await?;
    assert_eq!(made.0, StatusCode::CREATED, "{}", made.1);
    let process =
        stranger.call(Method::POST, "/v1/sandboxes/taken/exec", Some(json!({"argv": ["echo", "x"]}))).await?.1;
    let process = process["process"].as_str().ok_or("no process")?.to_owned();
    let newest = |events: Vec<sandbar_api::Event>| events.last().map(|event| event.seq);
    let before = newest(client.event_page(1, Some(1000), None).await?);

    let nobody = "sbx-00000000000000000000000000";
    let output = |from: &str| format!("/v1/sandboxes/taken/processes/{process}/output?from={from}");
    let cases: Vec<(&str, Method, String, Option<Value>, &str)> = vec![
        (
            "unknown template",
            Method::POST,
            "/v1/sandboxes".into(),
            Some(json!({"template": "none"})),
            "unknown_template",
        ),
        ("bad name", Method::POST, "/v1/sandboxes".into(), Some(json!({"name": "Not/a name"})), "bad_name"),
        ("bad label", Method::POST, "/v1/sandboxes".into(), Some(json!({"labels": {"a b": "c"}})), "bad_label"),
        ("bad duration", Method::POST, "/v1/sandboxes".into(), Some(json!({"ttl": "soon"})), "bad_duration"),
        ("bad env", Method::POST, "/v1/sandboxes".into(), Some(json!({"env": {"A=B": "c"}})), "bad_env"),
        ("unknown field", Method::POST, "/v1/sandboxes".into(), Some(json!({"nmae": "x"})), "bad_json"),
        ("name taken", Method::POST, "/v1/sandboxes".into(), Some(json!({"name": "taken"})), "name_taken"),
        ("unknown sandbox", Method::GET, format!("/v1/sandboxes/{nobody}"), None, "unknown_sandbox"),
        ("delete of the unknown", Method::DELETE, format!("/v1/sandboxes/{nobody}"), None, "unknown_sandbox"),
        (
            "exec in the unknown",
            Method::POST,
            format!("/v1/sandboxes/{nobody}/exec"),
            Some(json!({"argv": ["true"]})),
            "unknown_sandbox",
        ),
        (
            "unknown process",
            Method::GET,
            "/v1/sandboxes/taken/processes/prc-00000000000000000000000000".into(),
            None,
            "unknown_process",
        ),
        ("unknown template by name", Method::GET, "/v1/templates/none".into(), None, "unknown_template"),
        ("no command", Method::POST, "/v1/sandboxes/taken/exec".into(), Some(json!({"argv": []})), "bad_command"),
        (
            "NUL in the command",
            Method::POST,
            "/v1/sandboxes/taken/exec".into(),
            Some(json!({"argv": ["a\u{0}b"]})),
            "bad_command",
        ),
        ("offset past the end", Method::GET, output("99"), None, "offset_beyond"),
        ("offset that is none", Method::GET, output("-1"), None, "bad_request"),
        ("path with NUL", Method::GET, "/v1/sandboxes/taken/files/a%00b".into(), None, "bad_path"),
        ("unknown file", Method::GET, "/v1/sandboxes/taken/files/workspace/none".into(), None, "unknown_file"),
        ("bad cursor", Method::GET, "/v1/sandboxes?cursor=%21".into(), None, "bad_cursor"),
        ("bad state", Method::GET, "/v1/sandboxes?state=asleep".into(), None, "bad_request"),
        (
            "bad signal",
            Method::POST,
            format!("/v1/sandboxes/taken/processes/{process}/signal"),
            Some(json!({"signal": "NOPE"})),
            "bad_request",
        ),
        (
            "signal after the end",
            Method::POST,
            format!("/v1/sandboxes/taken/processes/{process}/signal"),
            Some(json!({"signal": "TERM"})),
            "process_over",
        ),
        (
            "resize to nothing",
            Method::POST,
            format!("/v1/sandboxes/taken/processes/{process}/resize"),
            Some(json!({"cols": 0, "rows": 5})),
            "bad_request",
        ),
        ("unknown token", Method::DELETE, "/v1/tokens/tok-00000000000000000000000000".into(), None, "unknown_token"),
        ("nothing in quarantine", Method::DELETE, "/v1/quarantine/sbx-x".into(), None, "unknown_quarantined"),
        ("adopting nothing", Method::POST, "/v1/quarantine/sbx-x/adopt".into(), Some(json!({})), "unknown_quarantined"),
        (
            "adopting by a bad name",
            Method::POST,
            "/v1/quarantine/sbx-x/adopt".into(),
            Some(json!({"name": "-"})),
            "bad_name",
        ),
        ("unknown route", Method::GET, "/v1/nothing".into(), None, "unknown_route"),
        ("wrong method", Method::PATCH, "/v1/sandboxes".into(), None, "method_not_allowed"),
        (
            "output cap too high",
            Method::POST,
            "/v1/sandboxes/taken/exec".into(),
            Some(json!({"argv": ["true"], "max_output": 1u64 << 40})),
            "bad_request",
        ),
        (
            "bound workspace that is not there",
            Method::POST,
            "/v1/sandboxes".into(),
            Some(json!({"workspace": {"kind": "bind", "path": "relative"}})),
            "bad_path",
        ),
    ];
    for (what, method, path, body, code) in cases {
        expect_problem(what, &stranger.call(method, &path, body).await?, code);
    }
    // By hand: clients resolve such paths themselves.
    let dots = raw(&stranger, "/v1/sandboxes/taken/files/%2e%2e/%2e%2e/etc/passwd")?;
    assert!(dots.contains("path_outside") && !dots.contains("root:"), "{dots}");
    let garbage = stranger.request(Method::POST, "/v1/sandboxes").header("content-type", "application/json").body("{");
    expect_problem("not JSON", &answer(garbage).await?, "bad_json");
    assert_eq!(newest(client.event_page(1, Some(1000), None).await?), before, "bad input changed something");

    // A command that is not there is refused too, but leaves a trace: somebody tried.
    for (argv, code) in [("nowhere", "command_not_found"), ("/etc/passwd", "command_not_executable")] {
        let exec = stranger.call(Method::POST, "/v1/sandboxes/taken/exec", Some(json!({"argv": [argv]}))).await?;
        expect_problem(argv, &exec, code);
    }
    client.delete("taken").await?;
    Ok(())
}

#[tokio::test]
async fn who_is_not_let_in_learns_nothing() -> Outcome {
    let server = Server::start()?;
    let viewer = Stranger::with(&server, Role::Viewer).await?;
    let operator = Stranger::with(&server, Role::Operator).await?;
    let base = server.base()?;
    let list = format!("{base}/v1/sandboxes");
    let http = &viewer.http;

    expect_problem("no token", &answer(http.get(&list)).await?, "unauthenticated");
    expect_problem("bad token", &answer(http.get(&list).bearer_auth("sbt_wrong")).await?, "unauthenticated");
    let in_url = format!("{list}?token={}&access_token={}", viewer.token, viewer.token);
    expect_problem("token in the URL", &answer(http.get(in_url)).await?, "unauthenticated");
    let rebound = viewer.request(Method::GET, "/v1/sandboxes").header(header::HOST, "evil.example");
    expect_problem("foreign host", &answer(rebound).await?, "foreign_host");
    let crossed = viewer.request(Method::GET, "/v1/sandboxes").header(header::ORIGIN, "http://evil.example");
    expect_problem("foreign origin", &answer(crossed).await?, "foreign_origin");

    assert_eq!(viewer.call(Method::GET, "/v1/sandboxes", None).await?.0, StatusCode::OK, "the control");
    let create = Some(json!({}));
    expect_problem("viewer creates", &viewer.call(Method::POST, "/v1/sandboxes", create).await?, "forbidden");
    expect_problem("operator lists tokens", &operator.call(Method::GET, "/v1/tokens", None).await?, "forbidden");
    let bind = Some(json!({"workspace": {"kind": "bind", "path": "/tmp"}}));
    expect_problem("operator binds", &operator.call(Method::POST, "/v1/sandboxes", bind).await?, "forbidden");

    let client = server.client()?;
    let id = client.tokens().await?.into_iter().find(|token| token.name == "Viewer").ok_or("no token")?.id;
    client.revoke_token(id.as_str()).await?;
    expect_problem("revoked", &viewer.call(Method::GET, "/v1/sandboxes", None).await?, "unauthenticated");
    let stored = std::fs::read(server.home.path().join("sandbar.db"))?;
    let secret = operator.token.as_bytes();
    assert!(!stored.windows(secret.len()).any(|window| window == secret), "a token is stored in the clear");
    Ok(())
}

#[tokio::test]
async fn a_link_signs_in_once() -> Outcome {
    let server = Server::start()?;
    let (base, code) = server.sign_in()?;
    let host = base.strip_prefix("http://").ok_or("not plain")?;
    assert!(host.starts_with("sandbar.localhost:"), "{host}");
    // Only browsers resolve that name by themselves.
    let address = server.base()?.trim_start_matches("http://").parse()?;
    let http = reqwest::Client::builder().no_proxy().resolve("sandbar.localhost", address).build()?;
    let login = || http.post(format!("{base}/v1/login")).json(&json!({"code": code}));
    let response = login().send().await?;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let cookie = response.headers()[header::SET_COOKIE].to_str()?.to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap_or_default();
    let listed = http.get(format!("{base}/v1/sandboxes")).header(header::COOKIE, cookie).send().await?;
    assert_eq!(listed.status(), StatusCode::OK);
    assert_eq!(login().send().await?.status(), StatusCode::UNAUTHORIZED, "the code worked twice");
    // A page elsewhere can make a browser send the cookie's owner here, but not with our Origin.
    let forged = http.post(format!("{base}/v1/sandboxes")).header(header::COOKIE, cookie).json(&json!({}));
    assert_eq!(forged.send().await?.status(), StatusCode::FORBIDDEN);
    for page in ["/", "/docs/", "/openapi.json", "/healthz", "/readyz"] {
        assert_eq!(http.get(format!("{base}{page}")).send().await?.status(), StatusCode::OK, "{page}");
    }
    Ok(())
}

#[tokio::test]
async fn create_is_idempotent_names_are_unique_and_lists_page() -> Outcome {
    let server = Server::start()?;
    let stranger = Stranger::with(&server, Role::Operator).await?;
    let create = |key: &'static str, body: Value| {
        answer(stranger.request(Method::POST, "/v1/sandboxes").header("idempotency-key", key).json(&body))
    };
    let body = json!({"name": "once", "labels": {"team": "a"}});
    let (first, again) = tokio::join!(create("k1", body.clone()), create("k1", body.clone()));
    let (first, again) = (first?, again?);
    assert_eq!(first.1["id"], again.1["id"], "{first:?} {again:?}");
    let mut statuses = [first.0.as_u16(), again.0.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
    expect_problem("another body", &create("k1", json!({"name": "twice"})).await?, "idempotency_mismatch");
    for name in ["b", "c", "d", "e"] {
        stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": name, "labels": {"team": "b"}}))).await?;
    }
    let (mut names, mut cursor) = (vec![], String::new());
    loop {
        let page = stranger.call(Method::GET, &format!("/v1/sandboxes?label=team=b&limit=3{cursor}"), None).await?.1;
        names.extend(
            page["sandboxes"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str().map(String::from)),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["b", "c", "d", "e"]);
    for _ in 0..2 {
        let id = first.1["id"].as_str().unwrap_or_default();
        assert_eq!(
            stranger.call(Method::DELETE, &format!("/v1/sandboxes/{id}"), None).await?.0,
            StatusCode::NO_CONTENT
        );
    }
    let gone = format!("/v1/sandboxes/{}/exec", first.1["id"].as_str().unwrap_or_default());
    let exec = stranger.call(Method::POST, &gone, Some(json!({"argv": ["true"]})));
    expect_problem("exec in what is gone", &exec.await?, "sandbox_gone");
    let reused = stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": "once"}))).await?;
    assert_eq!(reused.0, StatusCode::CREATED, "a deleted sandbox's name is free again");
    for name in ["once", "b", "c", "d", "e"] {
        stranger.call(Method::DELETE, &format!("/v1/sandboxes/{name}"), None).await?;
    }
    Ok(())
}

#[tokio::test]
async fn stopped_sandboxes_keep_files_refuse_exec_and_start_again() -> Outcome {
    let server = Server::start()?;
    let stranger = Stranger::with(&server, Role::Operator).await?;
    stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": "nap"}))).await?;
    let file = "/v1/sandboxes/nap/files/workspace/kept";
    assert_eq!(stranger.request(Method::PUT, file).body("kept").send().await?.status(), StatusCode::NO_CONTENT);
    let long =
        stranger.call(Method::POST, "/v1/sandboxes/nap/processes", Some(json!({"argv": ["sleep", "1000"]}))).await?.1;
    let process = format!("/v1/sandboxes/nap/processes/{}", long["id"].as_str().unwrap_or_default());
    assert_eq!(stranger.call(Method::POST, "/v1/sandboxes/nap/stop", None).await?.1["state"], "stopped");
    let ended = stranger.call(Method::GET, &process, None).await?.1;
    assert_eq!(ended["state"], "exited", "{ended}");
    let exec = stranger.call(Method::POST, "/v1/sandboxes/nap/exec", Some(json!({"argv": ["true"]}))).await?;
    expect_problem("exec while stopped", &exec, "wrong_state");
    assert_eq!(stranger.call(Method::POST, "/v1/sandboxes/nap/start", None).await?.1["state"], "ready");
    let range = stranger.request(Method::GET, file).header(header::RANGE, "bytes=1-2").send().await?;
    assert_eq!((range.status(), range.text().await?.as_str()), (StatusCode::PARTIAL_CONTENT, "ep"));
    stranger.call(Method::DELETE, "/v1/sandboxes/nap", None).await?;
    Ok(())
}

#[tokio::test]
async fn pause_snapshot_fork_and_pool_have_their_codes_and_roles() -> Outcome {
    let mut server = Server::start()?;
    let operator = Stranger::with(&server, Role::Operator).await?;
    let viewer = Stranger::with(&server, Role::Viewer).await?;
    let post = |path: &'static str, body: Value| operator.call(Method::POST, path, Some(body));
    post("/v1/sandboxes", json!({"name": "o"})).await?;
    for path in ["pause", "resume", "snapshots", "fork"] {
        let path = format!("/v1/sandboxes/o/{path}");
        expect_problem(&path, &viewer.call(Method::POST, &path, Some(json!({}))).await?, "forbidden");
    }
    let report = viewer.call(Method::GET, "/v1/sandboxes/o/enforcement", None).await?;
    assert_eq!((report.0, &report.1["profile"]), (StatusCode::OK, &json!("standard")), "{}", report.1);

    for _ in 0..2 {
        let paused = operator.call(Method::POST, "/v1/sandboxes/o/pause", None).await?;
        assert_eq!((paused.0, &paused.1["state"]), (StatusCode::OK, &json!("paused")), "{}", paused.1);
    }
    let exec = post("/v1/sandboxes/o/exec", json!({"argv": ["true"]})).await?;
    expect_problem("exec while paused", &exec, "wrong_state");
    assert!(exec.1["fix"].as_str().is_some_and(|fix| fix.contains("sandbar resume o")), "{}", exec.1);
    let remembered = viewer.call(Method::GET, "/v1/sandboxes/o/enforcement", None).await?;
    assert_eq!(remembered.1["probed_at"], report.1["probed_at"], "what stands still cannot be probed");
    for _ in 0..2 {
        let resumed = operator.call(Method::POST, "/v1/sandboxes/o/resume", None).await?;
        assert_eq!(resumed.1["state"], "ready", "{}", resumed.1);
    }

    let taken = operator.request(Method::POST, "/v1/sandboxes/o/snapshots").json(&json!({"name": "s"})).send().await?;
    assert_eq!(taken.status(), StatusCode::CREATED);
    let location = taken.headers()[header::LOCATION].to_str()?.to_owned();
    assert_eq!(viewer.call(Method::GET, &location, None).await?.1["name"], "s");
    expect_problem("a name twice", &post("/v1/sandboxes/o/snapshots", json!({"name": "s"})).await?, "name_taken");
    expect_problem("a bad name", &post("/v1/sandboxes/o/snapshots", json!({"name": "S!"})).await?, "bad_name");
    let made = post("/v1/sandboxes", json!({"name": "from", "from": "s"})).await?;
    assert_eq!(json!([made.0.as_u16(), made.1["from"]]), json!([201, location.trim_start_matches("/v1/snapshots/")]));
    expect_problem("from nothing", &post("/v1/sandboxes", json!({"from": "none"})).await?, "unknown_snapshot");
    let forked = post("/v1/sandboxes/o/fork", json!({"count": 2, "name": "f"})).await?;
    assert_eq!((forked.0, &forked.1["sandboxes"][1]["name"]), (StatusCode::CREATED, &json!("f-2")), "{}", forked.1);
    for count in [0, 101] {
        expect_problem("a count", &post("/v1/sandboxes/o/fork", json!({"count": count})).await?, "bad_request");
    }
    for _ in 0..2 {
        assert_eq!(operator.call(Method::DELETE, &location, None).await?.0, StatusCode::NO_CONTENT);
    }
    expect_problem("what is deleted", &viewer.call(Method::GET, &location, None).await?, "unknown_snapshot");
    let again = post("/v1/sandboxes", json!({"from": location.trim_start_matches("/v1/snapshots/")})).await?;
    expect_problem("from what is deleted", &again, "unknown_snapshot");

    let size = |size: u32| Some(json!({"size": size}));
    expect_problem("viewer", &viewer.call(Method::PUT, "/v1/pools/default", size(1)).await?, "forbidden");
    expect_problem("too many", &operator.call(Method::PUT, "/v1/pools/default", size(1001)).await?, "bad_request");
    let set = operator.call(Method::PUT, "/v1/pools/default", size(1)).await?;
    assert_eq!((set.0, &set.1["size"]), (StatusCode::OK, &json!(1)), "{}", set.1);
    assert_eq!(operator.call(Method::DELETE, "/v1/pools/default", None).await?.0, StatusCode::NO_CONTENT);
    assert_eq!(viewer.call(Method::GET, "/v1/pools", None).await?.1, json!({"pools": []}));
    for name in ["o", "from", "f-1", "f-2"] {
        operator.call(Method::DELETE, &format!("/v1/sandboxes/{name}"), None).await?;
    }
    until("the pool is gone", async || Ok(crate::support::guests(server.home.path()).is_empty())).await?;
    server.kill()?;
    expect_clean(server.home.path())
}

#[tokio::test]
async fn exec_streams_times_out_and_dies_with_its_caller() -> Outcome {
    let server = Server::start()?;
    let stranger = Stranger::with(&server, Role::Operator).await?;
    stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": "x"}))).await?;
    let exec = |body: Value| stranger.request(Method::POST, "/v1/sandboxes/x/exec").json(&body);

    let (_, result) =
        answer(exec(json!({"argv": ["sh", "-c", "cat; printf '\\377'; echo err >&2; exit 3"], "stdin": "in"}))).await?;
    assert_eq!(
        (&result["stdout"], &result["stderr"], &result["exit"]["code"]),
        (&json!("in\u{fffd}"), &json!("err\n"), &json!(3))
    );
    assert_eq!(result["stdout_base64"], "aW7/");
    let (_, result) = answer(exec(json!({"argv": ["seq", "1000"], "max_output": 4}))).await?;
    assert_eq!((&result["stdout"], &result["truncated"]), (&json!("1\n2\n"), &json!(true)));
    let (_, result) =
        answer(exec(json!({"argv": ["sh", "-c", "setsid sleep 1000 & sleep 1000"], "timeout": "200ms"}))).await?;
    assert_eq!((&result["exit"]["reason"], &result["exit"]["code"]), (&json!("timeout"), &json!(137)));

    let mut stream = exec(json!({"argv": ["sh", "-c", "echo begun; setsid sleep 1000 & sleep 1000"]}))
        .header(header::ACCEPT, "text/event-stream")
        .send()
        .await?;
    let mut seen = String::new();
    while !seen.contains("event: output") {
        seen += &String::from_utf8_lossy(&stream.chunk().await?.ok_or("the stream ended")?);
    }
    assert!(seen.contains("event: started"), "{seen}");
    drop(stream);
    // The caller has gone: nothing of the tree may be left, not even what had daemonized.
    until("the tree is gone", async || {
        let (_, look) =
            answer(exec(json!({"argv": ["sh", "-c", "cat /proc/[0-9]*/comm | grep -c '^sleep$'; true"]}))).await?;
        Ok(look["stdout"] == "0\n")
    })
    .await?;
    stranger.call(Method::DELETE, "/v1/sandboxes/x", None).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_past_its_time_goes_and_the_events_say_so() -> Outcome {
    let mut server = Server::start()?;
    let stranger = Stranger::with(&server, Role::Operator).await?;
    let made = stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": "brief", "ttl": "1s"}))).await?.1;
    let id = made["id"].as_str().unwrap_or_default().to_owned();
    until("it expired", async || {
        Ok(stranger.call(Method::GET, &format!("/v1/sandboxes/{id}"), None).await?.1["state"] == "deleted")
    })
    .await?;
    let events = stranger.call(Method::GET, &format!("/v1/events?sandbox={id}"), None).await?.1;
    let kinds: Vec<_> =
        events["events"].as_array().into_iter().flatten().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds.first(), Some(&"sandbox.created"), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"sandbox.deleted"));
    assert!(events.to_string().contains("expired"), "{events}");
    let metrics = stranger.request(Method::GET, "/metrics").send().await?.text().await?;
    assert!(metrics.contains("sandbar_") && metrics.trim_end().ends_with("# EOF"), "{metrics}");
    server.kill()?;
    expect_clean(server.home.path())
}

#[tokio::test]
async fn a_template_bounds_output_and_files_and_a_bad_one_is_told_by_line() -> Outcome {
    let server = Server::start()?;
    let stranger = Stranger::with(&server, Role::Operator).await?;
    let templates = server.home.path().join("templates");
    std::fs::write(templates.join("small.toml"), "output_retention = 262144\nmax_file = 1000\nttl = \"1h\"\n")?;
    std::fs::write(templates.join("broken.toml"), "description = \"x\"\nretention = 5\n")?;
    std::fs::write(templates.join("elsewhere.toml"), "provider = \"moon\"\n")?;
    let create =
        |template: &str| stranger.call(Method::POST, "/v1/sandboxes", Some(json!({"name": "s", "template": template})));
    let broken = create("broken").await?;
    expect_problem("a broken template", &broken, "bad_template");
    assert!(
        broken.1["detail"].as_str().is_some_and(|text| text.contains("broken.toml") && text.contains('2')),
        "{}",
        broken.1
    );
    expect_problem("an unknown provider", &create("elsewhere").await?, "unknown_provider");

    let made = create("small").await?;
    assert!(made.1["expires_at"].is_string(), "{}", made.1);
    let put = stranger.request(Method::PUT, "/v1/sandboxes/s/files/workspace/big").body(vec![0; 1001]);
    expect_problem("a file too large", &answer(put).await?, "too_large");
    let gone = stranger.request(Method::GET, "/v1/sandboxes/s/files/workspace/big");
    expect_problem("nothing was written", &answer(gone).await?, "unknown_file");

    let script = "head -c 3000000 /dev/zero; echo end";
    let body = json!({"argv": ["sh", "-c", script], "max_output": 10});
    let process = stranger.call(Method::POST, "/v1/sandboxes/s/exec", Some(body)).await?.1;
    let output = format!("/v1/sandboxes/s/processes/{}/output", process["process"].as_str().unwrap_or_default());
    let dropped = stranger.call(Method::GET, &format!("{output}?from=0"), None).await?;
    expect_problem("output that was dropped", &dropped, "output_dropped");
    let first = dropped.1["first_kept"].as_u64().ok_or("no first_kept")?;
    assert!(first >= 3_000_004 - 262_144, "{first}");
    let rest = stranger.request(Method::GET, &format!("{output}?from={first}")).send().await?.bytes().await?;
    assert_eq!(rest.len() as u64, 3_000_004 - first);
    assert!(rest.ends_with(b"\0end\n"));
    stranger.call(Method::DELETE, "/v1/sandboxes/s", None).await?;
    Ok(())
}

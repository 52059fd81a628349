//! The routes of sessions over a provider that makes nothing: what is taken, what is refused, who may.

use super::{gate::Barren, *};

#[tokio::test]
async fn what_fails_is_refused_and_what_is_deleted_stays_readable() {
    let bench = Bench::with(vec![Arc::new(Barren)]).await;
    let operator = bench.token(Role::Operator).await;
    let viewer = bench.token(Role::Viewer).await;
    let json = [("authorization", operator.as_str()), ("content-type", "application/json")];
    for (body, code) in [
        (r#"{"name":"No"}"#, "bad_name"),
        (r#"{"name":"agent","command":[]}"#, "bad_command"),
        (r#"{"name":"agent","terminal":{"cols":80,"rows":24}}"#, "bad_request"),
        (r#"{"name":"agent","command":["sh"],"terminal":{"cols":0,"rows":24}}"#, "bad_request"),
        (r#"{"name":"agent","surprise":1}"#, "bad_json"),
        (r#"{"parent":"x"}"#, "bad_json"),
        (r#"{"template":"none"}"#, "unknown_template"),
        // The provider's own answer: everything before it was fine.
        (r#"{"name":"agent","labels":{"task":"42"}}"#, "declined"),
    ] {
        let answer = bench.send(Channel::Tcp, request("post", "/v1/sessions", &json, body)).await;
        assert_eq!(answer.code(), code, "{body}");
    }
    let headers = [("authorization", viewer.as_str())];
    let get = async |path: &str| bench.tcp("get", path, &headers).await;
    let list: serde_json::Value = serde_json::from_slice(&get("/v1/sessions").await.body).unwrap();
    assert_eq!(list, serde_json::json!({ "sessions": [] }), "a session without a sandbox has ended");
    let list: serde_json::Value =
        serde_json::from_slice(&get("/v1/sessions?ended=true&label=task=42").await.body).unwrap();
    let session = &list["sessions"][0];
    assert_eq!((&session["name"], &session["state"]), (&"agent".into(), &"ended".into()));
    assert_eq!(session["labels"]["task"], "42");
    let path = format!("/v1/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(get(&path).await.status, StatusCode::OK);
    for (path, code) in [
        ("/v1/sessions/nobody", "unknown_session"),
        ("/v1/sessions?limit=0", "bad_request"),
        ("/v1/sessions?label=x", "bad_label"),
        ("/v1/sessions?cursor=x", "bad_cursor"),
        ("/v1/sessions?state=ready", "bad_request"),
    ] {
        assert_eq!(get(path).await.code(), code, "{path}");
    }
    assert_eq!(bench.tcp("delete", &path, &headers).await.code(), "forbidden", "a viewer");
    let headers = [("authorization", operator.as_str())];
    for _ in 0..2 {
        assert_eq!(bench.tcp("delete", &path, &headers).await.status, StatusCode::NO_CONTENT);
    }
    assert_eq!(bench.tcp("delete", "/v1/sessions/agent", &headers).await.status, StatusCode::NO_CONTENT);
    assert_eq!(bench.tcp("delete", "/v1/sessions/nobody", &headers).await.code(), "unknown_session");
    assert_eq!(get("/v1/sessions/agent").await.code(), "session_ended");
    let gone: serde_json::Value = serde_json::from_slice(&get(&path).await.body).unwrap();
    assert!(gone["deleted_at"].is_string());
}

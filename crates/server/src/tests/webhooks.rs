//! The routes of webhooks: what they answer, and that they quote no URL.

use serde_json::{Value, json};

use super::*;

impl Bench {
    async fn webhook(&self, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("content-type", "application/json")];
        let answer = self.send(Channel::Socket, request(method, path, &headers, &body)).await;
        (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
    }
}

#[tokio::test]
async fn they_are_added_shown_tested_and_removed() {
    let bench = Bench::new().await;
    let url = "https://127.0.0.1:1/s3cret";
    let (status, added) = bench.webhook("post", "/v1/webhooks", &json!({ "url": url, "name": "pager" })).await;
    assert_eq!(status, StatusCode::CREATED, "{added}");
    assert!(added["secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{added}");
    assert_eq!(added["kinds"].as_array().map(Vec::len), Some(5));
    let (status, again) = bench.webhook("post", "/v1/webhooks", &json!({ "url": url, "name": "pager" })).await;
    assert_eq!((status, &again["code"]), (StatusCode::CONFLICT, &json!("name_taken")));
    for path in ["/v1/webhooks/pager".to_owned(), format!("/v1/webhooks/{}", added["id"].as_str().unwrap())] {
        let (status, shown) = bench.webhook("get", &path, &Value::Null).await;
        assert_eq!((status, &shown["id"], &shown["url"]), (StatusCode::OK, &added["id"], &json!(url)));
        assert_eq!((&shown["secret"], &shown["state"]), (&Value::Null, &json!("ok")));
    }
    let (_, listed) = bench.webhook("get", "/v1/webhooks", &Value::Null).await;
    assert_eq!(listed["webhooks"].as_array().map(Vec::len), Some(1));
    let (status, tested) = bench.webhook("post", "/v1/webhooks/pager/test", &Value::Null).await;
    assert_eq!((status, &tested["delivered"]), (StatusCode::OK, &json!(false)));
    let why = tested["error"].as_str().unwrap();
    assert!(why.contains("loopback") && !why.contains("s3cret"), "{why}");
    assert_eq!(bench.webhook("delete", "/v1/webhooks/pager", &Value::Null).await.0, StatusCode::NO_CONTENT);
    for (method, path) in [("get", ""), ("delete", ""), ("post", "/test")] {
        let (status, gone) = bench.webhook(method, &format!("/v1/webhooks/pager{path}"), &Value::Null).await;
        assert_eq!((status, &gone["code"]), (StatusCode::NOT_FOUND, &json!("unknown_webhook")), "{method} {path}");
    }
}

#[tokio::test]
async fn bad_ones_are_refused_without_quoting_the_url() {
    let bench = Bench::new().await;
    for (body, code) in [
        (json!({ "url": "https://user:s3cret@a.example/" }), "bad_webhook"),
        (json!({ "url": "ftp://a.example/s3cret" }), "bad_webhook"),
        (json!({ "url": "https://2130706433/s3cret" }), "bad_webhook"),
        (json!({ "url": "https://a.example/s3cret", "kinds": ["*"] }), "bad_webhook"),
        (json!({ "url": "https://a.example/s3cret", "name": "No" }), "bad_name"),
        (json!({ "url": ["s3cret"] }), "bad_json"),
        (json!({ "url": "https://a.example/s3cret", "secret": "mine" }), "bad_json"),
    ] {
        let (status, refused) = bench.webhook("post", "/v1/webhooks", &body).await;
        assert_eq!((status, &refused["code"]), (StatusCode::BAD_REQUEST, &json!(code)), "{body}");
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
    }
}

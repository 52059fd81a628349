//! Every gRPC method in front of an engine without providers: who is let in, and that refusals are told in gRPC.

use axum::http::HeaderMap;
use sandbar_api::Role;

use super::{Bench, Channel, StatusCode, request};
use crate::grpc;

const GRPC: (&str, &str) = ("content-type", "application/grpc");

fn told(headers: &HeaderMap) -> (&str, &str) {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    (text("grpc-status"), text("sandbar-code"))
}

#[tokio::test]
async fn no_method_is_served_without_a_token() {
    let bench = Bench::new().await;
    let methods: Vec<_> = grpc::guarded_methods().collect();
    assert!(methods.len() > 25 && methods.contains(&"/sandbar.v1.Processes/Exec"), "{methods:?}");
    for path in methods.into_iter().chain(["/sandbar.v1.Sandboxes/Explode", "/nothing"]) {
        for headers in [vec![GRPC], vec![GRPC, ("authorization", "Bearer sbt_wrong")]] {
            let answer = bench.tcp("post", path, &headers).await;
            assert_eq!((answer.status, told(&answer.headers)), (StatusCode::OK, ("16", "unauthenticated")), "{path}");
            assert_eq!(answer.headers["content-type"], "application/grpc");
            assert!(answer.body.is_empty() && answer.headers.contains_key("x-request-id"));
            let foreign: Vec<_> = headers.iter().copied().chain([("host", "evil.example:7227")]).collect();
            assert_eq!(told(&bench.tcp("post", path, &foreign).await.headers), ("7", "foreign_host"), "{path}");
        }
    }
}

#[tokio::test]
async fn each_role_is_told_what_is_not_for_it() {
    let bench = Bench::new().await;
    let (viewer, operator) = (bench.token(Role::Viewer).await, bench.token(Role::Operator).await);
    for path in grpc::guarded_methods() {
        let reads = grpc::permit(Role::Viewer, path).is_ok();
        for (secret, may) in [(&viewer, reads), (&operator, true)] {
            let headers = [GRPC, ("authorization", secret.as_str())];
            let (head, _) = bench.begin(Channel::Tcp, request("post", path, &headers, "")).await;
            assert_eq!(told(&head.headers) == ("7", "forbidden"), !may, "{path}");
            assert_ne!(told(&head.headers).0, "16", "{path}");
            // A viewer that calls it by another HTTP method, or not as gRPC, gets no further.
            let plain = bench.tcp("get", path, &[("authorization", secret.as_str())]).await;
            assert_eq!(plain.code(), if may { "method_not_allowed" } else { "forbidden" }, "{path}");
        }
    }
}

#[tokio::test]
async fn refusals_are_counted_as_such() {
    let bench = Bench::new().await;
    let operator = bench.token(Role::Operator).await;
    let headers = [GRPC, ("authorization", operator.as_str())];
    let get = "/sandbar.v1.Sandboxes/Get";
    let asked = request("post", get, &headers, "\0\0\0\0\0");
    assert_eq!(told(&bench.send(Channel::Tcp, asked).await.headers), ("5", "unknown_sandbox"));
    assert_eq!(told(&bench.tcp("post", get, &[GRPC]).await.headers), ("16", "unauthenticated"));
    assert_eq!(bench.tcp("get", "/healthz", &[("host", "web-80.localhost:7227")]).await.status, 401);
    let metrics = bench.tcp("get", "/metrics", &headers[1..]).await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    for (route, method, count) in [(get, "POST", 2), ("preview", "GET", 1)] {
        let line =
            format!("sandbar_http_requests_total{{route=\"{route}\",method=\"{method}\",status=\"4xx\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert!(!metrics.contains("/healthz"), "{metrics}");
}

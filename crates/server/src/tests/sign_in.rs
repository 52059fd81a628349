//! Browsers: how they are signed in and out, and what their cookie is not good for.

use std::time::Duration;

use super::*;

const HERE: &str = "sandbar.localhost:7227";
const ORIGIN: &str = "http://sandbar.localhost:7227";

impl Bench {
    async fn login(&self, host: &str, code: &str) -> Answer {
        let origin = format!("http://{host}");
        let headers = [("content-type", "application/json"), ("host", host), ("origin", origin.as_str())];
        let body = serde_json::json!({ "code": code }).to_string();
        self.send(Channel::Tcp, request("post", "/v1/login", &headers, &body)).await
    }

    /// Of a browser that is signed in: its cookie, as it sends it.
    async fn browser(&self) -> String {
        let answer = self.login(HERE, &self.app.sign_in.make().unwrap()).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.code());
        answer.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
    }

    async fn tokens(&self, headers: &[(&str, &str)]) -> Answer {
        self.tcp("get", "/v1/tokens", headers).await
    }
}

#[tokio::test]
async fn a_link_is_the_owners_and_buys_one_cookie() {
    let bench = Bench::new().await;
    let admin = bench.token(Role::Admin).await;
    assert_eq!(bench.tcp("post", "/v1/sign-in-links", &[("authorization", &admin)]).await.code(), "forbidden");
    let made = bench.send(Channel::Socket, request("post", "/v1/sign-in-links", &[], "")).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let link: sandbar_api::SignInLink = serde_json::from_slice(&made.body).unwrap();
    let code = link.url.strip_prefix("http://sandbar.localhost:7227/#code=").unwrap();

    assert_eq!(bench.login(HERE, "wrong").await.code(), "unauthenticated");
    let answer = bench.login(HERE, code).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    let cookie = answer.headers[header::SET_COOKIE].to_str().unwrap().to_owned();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert!(pair.starts_with("sandbar=sbw_"), "{cookie}");
    assert_eq!(attributes, "Path=/; Max-Age=604800; HttpOnly; SameSite=Strict");
    assert_eq!(bench.login(HERE, code).await.code(), "unauthenticated", "it works once");

    let list = bench.tokens(&[("cookie", pair), ("host", HERE)]).await;
    assert_eq!(list.status, StatusCode::OK);
    assert!(String::from_utf8_lossy(&list.body).contains("browser sign-in"));
    let silent = [("cookie", pair), ("host", HERE)];
    assert_eq!(bench.tcp("delete", "/v1/tokens/x", &silent).await.code(), "foreign_origin");
}

#[tokio::test]
async fn nobody_signs_in_where_other_servers_answer_and_the_code_is_not_lost() {
    let bench = Bench::new().await;
    let code = bench.app.sign_in.make().unwrap();
    for host in ["127.0.0.1:7227", "localhost:7227", "[::1]:7227"] {
        let refused = bench.login(host, &code).await;
        assert_eq!(refused.code(), "foreign_host", "{host}");
        assert!(String::from_utf8_lossy(&refused.body).contains(ORIGIN), "where to go is not said");
        assert!(!refused.headers.contains_key(header::SET_COOKIE));
    }
    // Over the socket nobody has looked at the Host.
    let json = [("content-type", "application/json"), ("host", HERE)];
    let body = serde_json::json!({ "code": code }).to_string();
    let over_socket = bench.send(Channel::Socket, request("post", "/v1/login", &json, &body)).await;
    assert_eq!(over_socket.code(), "foreign_host");
    assert_eq!(bench.login(HERE, &code).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_cookie_counts_where_it_was_given_out_and_as_nothing_else() {
    let bench = Bench::new().await;
    let cookie = bench.browser().await;
    let value = cookie.strip_prefix("sandbar=").unwrap();
    let here = [("cookie", cookie.as_str()), ("host", HERE), ("sec-fetch-site", "same-origin")];
    assert_eq!(bench.tokens(&here).await.status, StatusCode::OK, "the control");
    for host in ["127.0.0.1:7227", "localhost:7227", "[::1]:7227"] {
        let elsewhere = [("cookie", cookie.as_str()), ("host", host), ("sec-fetch-site", "same-origin")];
        assert_eq!(bench.tokens(&elsewhere).await.code(), "unauthenticated", "{host}");
    }
    let bearer = format!("Bearer {value}");
    for host in [HERE, "localhost:7227"] {
        assert_eq!(bench.tokens(&[("authorization", &bearer), ("host", host)]).await.code(), "unauthenticated");
    }
    let token = bench.token(Role::Admin).await;
    assert_eq!(bench.tokens(&[("authorization", &token)]).await.status, StatusCode::OK, "the control");
    let as_cookie = format!("sandbar={}", token.strip_prefix("Bearer ").unwrap());
    assert_eq!(bench.tokens(&[("cookie", &as_cookie), ("host", HERE)]).await.code(), "unauthenticated");
    let renamed = format!("__Host-sandbar={value}");
    assert_eq!(bench.tokens(&[("cookie", &renamed), ("host", HERE)]).await.code(), "unauthenticated");
    // The engine itself takes one for the other neither, nor at another origin.
    assert!(bench.app.engine.authenticate(value).await.unwrap().is_none());
    assert!(bench.app.engine.authenticate_browser("http://localhost:7227", value).await.unwrap().is_none());
    assert!(bench.app.engine.authenticate_browser(ORIGIN, value).await.unwrap().is_some());
}

#[tokio::test]
async fn a_browser_is_signed_out_by_itself_by_an_admin_and_by_time() {
    let bench = Bench::new().await;
    let (one, two) = (bench.browser().await, bench.browser().await);
    let by = |cookie: &str| [("cookie", cookie.to_owned()), ("host", HERE.to_owned()), ("origin", ORIGIN.to_owned())];
    let logout = async |headers: &[(&'static str, String)]| {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        bench.tcp("post", "/v1/logout", &headers).await
    };
    let out = logout(&by(&one)).await;
    assert_eq!(out.status, StatusCode::NO_CONTENT);
    let removal = out.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(removal.starts_with("sandbar=; ") && removal.contains("Max-Age=0"), "{removal}");
    assert_eq!(bench.tokens(&[("cookie", &one), ("host", HERE)]).await.code(), "unauthenticated");
    assert_eq!(logout(&by(&one)).await.code(), "unauthenticated");

    // The other one goes on, until an admin ends it.
    let listed = bench.tokens(&[("cookie", &two), ("host", HERE)]).await;
    assert_eq!(listed.status, StatusCode::OK);
    let admin = bench.token(Role::Admin).await;
    assert_eq!(logout(&[("authorization", admin.clone())]).await.code(), "bad_request", "a token stays");
    let tokens = bench.app.engine.tokens().await.unwrap();
    let browser = tokens.iter().find(|token| token.name == "browser sign-in").unwrap();
    assert!(browser.expires_at.is_some());
    bench.app.engine.revoke_token(browser.id.as_str()).await.unwrap();
    assert_eq!(bench.tokens(&[("cookie", &two), ("host", HERE)]).await.code(), "unauthenticated");

    let short = bench.app.engine.sign_browser_in(ORIGIN, Duration::from_nanos(1)).await.unwrap().secret;
    assert!(bench.app.engine.authenticate_browser(ORIGIN, &short).await.unwrap().is_none());
}

#[tokio::test]
async fn with_tls_the_cookie_is_for_this_very_host_and_for_tls_alone() {
    let bench = Bench::at("0.0.0.0:443", true).await;
    let code = bench.app.sign_in.make().unwrap();
    let headers = [("content-type", "application/json"), ("host", "box.example"), ("origin", "https://box.example")];
    let body = serde_json::json!({ "code": code }).to_string();
    let answer = bench.send(Channel::Tcp, request("post", "/v1/login", &headers, &body)).await;
    let cookie = answer.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(
        cookie.starts_with("__Host-sandbar=sbw_")
            && cookie.ends_with("; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict; Secure"),
        "{cookie}"
    );
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(bench.tokens(&[("cookie", pair), ("host", "box.example")]).await.status, StatusCode::OK);
    for host in ["other.example", "box.example:8443", "localhost", "sandbar.localhost"] {
        assert_eq!(bench.tokens(&[("cookie", pair), ("host", host)]).await.code(), "unauthenticated", "{host}");
    }
    let unmarked = pair.strip_prefix("__Host-").unwrap();
    assert_eq!(bench.tokens(&[("cookie", unmarked), ("host", "box.example")]).await.code(), "unauthenticated");
}

//! Everything the gateway itself answers, in one place: what was refused, why, and what to do.

use hyper::{
    HeaderMap, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
};
use sandbar_policy::{Decision, Host};
use serde_json::json;

use crate::{
    body::{Body, full},
    dial::DialError,
    gate::Seen,
};

/// How a refusal is written: `application/problem+json` for who asks for JSON, else text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    pub(crate) fn of(request: &HeaderMap) -> Self {
        let json = request
            .get_all(ACCEPT)
            .iter()
            .any(|accept| accept.to_str().is_ok_and(|accept| accept.to_ascii_lowercase().contains("json")));
        if json { Self::Json } else { Self::Text }
    }
}

/// An answer that is not the server's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    /// What was refused and why, a sentence.
    pub(crate) detail: String,
    /// What to do about it, a sentence.
    pub(crate) fix: String,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { status, code, detail: detail.into(), fix: fix.into() }
    }

    /// By a rule, or by there being none.
    pub(crate) fn by_rules(
        sandbox: &str,
        host: &Host,
        port: u16,
        seen: Option<&Seen<'_>>,
        decision: &Decision,
    ) -> Self {
        let place = place(host, port);
        let what =
            seen.map_or_else(|| place.clone(), |seen| format!("{} {} of {place}", seen.method, brief(seen.path)));
        let Some(rule) = &decision.rule else {
            let detail = format!("{what} is refused: no rule allows it.");
            let fix = allow(sandbox, &place);
            return Self::new(StatusCode::FORBIDDEN, "network_denied", detail, fix);
        };
        let detail = format!("{what} is refused by the rule `{rule}`.");
        let fix = "Deny rules come before all others: the operator has to take this one away.";
        Self::new(StatusCode::FORBIDDEN, "network_denied", detail, fix)
    }

    /// By a person, or because nobody answered.
    pub(crate) fn by_answer(sandbox: &str, host: &Host, port: u16, reason: &str) -> Self {
        let place = place(host, port);
        let detail = format!("{place} was asked for and refused: {}", sentence(reason));
        let fix = allow(sandbox, &place);
        Self::new(StatusCode::FORBIDDEN, "network_denied", detail, fix)
    }

    /// The server was allowed, but not reached.
    pub(crate) fn unreachable(host: &Host, port: u16, error: &DialError) -> Self {
        let place = place(host, port);
        let (code, fix) = match error {
            DialError::Refused(_) => {
                ("address_denied", "If it is meant, the operator lists the range among the private ones.")
            }
            DialError::Own => ("address_denied", "What it is to know, its operator tells it another way."),
            DialError::Tls(_) => {
                ("upstream_tls", "The server has to show a certificate that the operator's roots verify.")
            }
            _ => ("upstream_unreachable", "Check the name and the port, and whether the server is up."),
        };
        Self::new(error.status(), code, format!("{place} cannot be reached: {error}."), fix)
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad_request",
            detail,
            "This is an HTTP proxy: use CONNECT for https, and http:// URLs in absolute form.",
        )
    }

    pub(crate) fn response(&self, form: Form) -> Response<Body> {
        let (kind, text) = if form == Form::Json {
            let problem = json!({
                "type": format!("urn:sandbar:problem:{}", self.code),
                "title": self.status.canonical_reason().unwrap_or("refused"),
                "status": self.status.as_u16(),
                "code": self.code,
                "detail": self.detail,
                "fix": self.fix,
            });
            ("application/problem+json", problem.to_string())
        } else {
            ("text/plain; charset=utf-8", format!("sandbar: {}\n{}\n", self.detail, self.fix))
        };
        let mut response = Response::new(full(text));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert("sandbar-refusal", HeaderValue::from_static(self.code));
        response
    }
}

/// A run without a server has nobody to tell later.
fn allow(sandbox: &str, place: &str) -> String {
    format!(
        "The operator can allow it with `sandbar net allow {sandbox} {place}`, or from the start with `--allow {place}`."
    )
}

/// As it stands in a rule: without the ports a rule has by itself.
pub(crate) fn place(host: &Host, port: u16) -> String {
    let host = match host {
        Host::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        host => host.to_string(),
    };
    if matches!(port, 443 | 80) { host } else { format!("{host}:{port}") }
}

/// Long paths say no more than their beginning.
fn brief(path: &str) -> String {
    match path.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &path[..at]),
        None => path.to_owned(),
    }
}

fn sentence(reason: &str) -> String {
    let reason: String = reason.chars().filter(|c| !c.is_control()).collect();
    if reason.ends_with(['.', '!', '?']) { reason } else { format!("{reason}.") }
}

#[cfg(test)]
mod tests {
    use sandbar_policy::Effect;

    use super::*;

    fn denied(rule: Option<&str>) -> Refusal {
        let decision = Decision { effect: Effect::Deny, rule: rule.map(str::to_owned) };
        Refusal::by_rules("sbx-a", &Host::Name("example.org".into()), 8443, None, &decision)
    }

    #[test]
    fn it_says_what_why_and_how_to_ask() {
        let refusal = denied(None);
        assert_eq!(refusal.detail, "example.org:8443 is refused: no rule allows it.");
        assert!(refusal.fix.contains("`sandbar net allow sbx-a example.org:8443`"), "{}", refusal.fix);
        assert!(denied(Some("*.org")).detail.contains("by the rule `*.org`"));
    }

    #[test]
    fn a_request_is_named_as_it_was_seen() {
        let decision = Decision { effect: Effect::Deny, rule: None };
        let path = format!("/{}", "x".repeat(500));
        let seen = Seen { method: "GET", path: &path };
        let refusal = Refusal::by_rules("sbx-a", &Host::Name("example.org".into()), 443, Some(&seen), &decision);
        assert!(refusal.detail.starts_with("GET /xxx") && refusal.detail.len() < 300, "{}", refusal.detail);
        assert!(refusal.detail.ends_with("… of example.org is refused: no rule allows it."), "{}", refusal.detail);
    }

    #[test]
    fn json_only_for_who_asks() {
        let mut headers = HeaderMap::new();
        let kind = |headers: &HeaderMap| denied(None).response(Form::of(headers)).headers()[CONTENT_TYPE].clone();
        assert_eq!(kind(&headers), "text/plain; charset=utf-8");
        headers.insert(ACCEPT, HeaderValue::from_static("text/html, application/JSON;q=0.5"));
        assert_eq!(kind(&headers), "application/problem+json");
    }

    #[test]
    fn an_address_is_written_as_in_a_rule() {
        assert_eq!(place(&Host::Ip("2001:db8::1".parse().expect("v6")), 443), "[2001:db8::1]");
        assert_eq!(place(&Host::Ip("2001:db8::1".parse().expect("v6")), 8080), "[2001:db8::1]:8080");
    }
}

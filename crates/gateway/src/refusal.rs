//! Everything the gateway itself answers, in one place: what was refused, why, and what to do.

use hyper::{
    HeaderMap, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use sandbar_policy::{Decision, Host};
use serde_json::json;

use crate::{
    body::{Body, full},
    dial::DialError,
    gate::Seen,
};

/// Of what a client wrote, in bytes.
const SHOWN: usize = 200;

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
    /// The same as `detail` for the record, which has method and path already.
    recorded: Option<String>,
}

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { status, code, detail: detail.into(), fix: fix.into(), recorded: None }
    }

    /// For the record.
    pub(crate) fn reason(&self) -> String {
        self.recorded.clone().unwrap_or_else(|| self.detail.clone())
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
        let (why, fix) = match &decision.rule {
            None => (": no rule allows it.".to_owned(), allow(sandbox, &place)),
            Some(rule) => (format!(" by the rule `{rule}`."), DENIED.to_owned()),
        };
        let recorded = format!("{place} is refused{why}");
        let detail = match seen {
            Some(seen) => format!("{} {} of {place} is refused{why}", shown(seen.method), shown(seen.path)),
            None => recorded.clone(),
        };
        let refusal = Self::new(StatusCode::FORBIDDEN, "network_denied", detail, fix);
        Self { recorded: Some(recorded), ..refusal }
    }

    /// There are as many requests or connections as there may be.
    pub(crate) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "As many requests and connections are under way as there may be; nothing was sent.",
            "Try again when some of them have ended.",
        )
    }

    /// By a person, or because nobody answered.
    pub(crate) fn by_answer(sandbox: &str, host: &Host, port: u16, reason: &str) -> Self {
        let place = place(host, port);
        let detail = format!("{place} was asked for and refused: {}", sentence(reason));
        // An allow rule would not help: the one that asks goes before it.
        let fix = format!("Try again to ask again; `sandbar net show {sandbox}` shows the rule that asks.");
        Self::new(StatusCode::FORBIDDEN, "network_denied", detail, fix)
    }

    /// The server was allowed, but not reached.
    pub(crate) fn unreachable(host: &Host, port: u16, error: &DialError) -> Self {
        let place = place(host, port);
        let (code, fix) = match error {
            DialError::Refused(_) => {
                ("address_denied", "If it is meant, the operator lists the range among the private ones.")
            }
            DialError::Denied { .. } => ("network_denied", DENIED),
            DialError::Busy => ("busy", "Try again when some of them have ended."),
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
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

const DENIED: &str = "Deny rules come before all others: the operator has to take this one away.";

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

/// What a client wrote, as something that can be read aloud: in ASCII, and no more than its beginning.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        let before = shown.len();
        if c.is_ascii_graphic() {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
        if shown.len() > SHOWN {
            shown.truncate(before);
            return format!("{shown}…");
        }
    }
    shown
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
        assert_eq!(refusal.reason(), "example.org is refused: no rule allows it.", "the record has the path already");
    }

    #[test]
    fn what_a_client_wrote_is_inert() {
        assert_eq!(shown("/a?b=%20"), "/a?b=%20");
        assert_eq!(shown("/\u{1b}[2J\r\n\u{202e}ü"), "/\\u{1b}[2J\\r\\n\\u{202e}\\u{fc}");
        assert!(shown(&"ü".repeat(500)).len() <= SHOWN + '…'.len_utf8());
        assert_eq!(shown(&"x".repeat(SHOWN)).len(), SHOWN);
    }

    #[test]
    fn who_is_to_come_again_is_told_when() {
        let response = Refusal::busy().response(Form::Text);
        assert_eq!(
            (response.status(), &response.headers()[RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &HeaderValue::from_static("1"))
        );
        assert!(!denied(None).response(Form::Text).headers().contains_key(RETRY_AFTER));
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

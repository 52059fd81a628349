//! The one place that turns what went wrong into an answer, in the shape the vendor's own clients read.

use hyper::{Response, StatusCode, header};
use sandbar_policy::Short;
use serde_json::{Map, Value, json};

use super::{Format, Upstream};
use crate::{Refused, body, body::Body};

/// Why a call is not made, or has no answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    code: &'static str,
    pub(super) message: String,
    /// The request's field that is the reason.
    param: Option<String>,
    more: Map<String, Value>,
    retry_after: Option<u64>,
    /// Host and port of the one that would have been asked, if that was known.
    pub(super) upstream: Option<Box<(String, u16)>>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, code, message, param: None, more: Map::new(), retry_after: None, upstream: None }
    }

    /// Of a call that would have gone there.
    pub(super) fn at(self, upstream: &Upstream) -> Self {
        Self { upstream: Some(Box::new((upstream.host.to_string(), upstream.port))), ..self }
    }

    /// The request itself is the reason.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message.into())
    }

    /// One field of the request is.
    pub(super) fn field(field: &str, cause: impl std::fmt::Display) -> Self {
        let refusal = Self::invalid(format!("`{field}`: {cause}"));
        Self { param: Some(field.to_owned()), ..refusal }
    }

    pub(super) fn not_found(message: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn no_model(message: String) -> Self {
        let refusal = Self::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Self { param: Some("model".into()), ..refusal }
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the request is larger than {limit} bytes, the most that is passed on");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    pub(super) fn encoded(encoding: &str) -> Self {
        let message = format!("the request's content-encoding is `{encoding}`; send it as it is: it has to be read");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
    }

    pub(super) fn slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the request did not arrive in time".into())
    }

    pub(super) fn busy(message: String) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
        Self { retry_after: Some(1), ..refusal }
    }

    /// The upstream is not what the configuration says, or not there.
    pub(super) fn upstream(message: String) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "upstream_failed", message)
    }

    pub(super) fn upstream_slow(message: String) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", message)
    }

    pub(super) fn unavailable(message: String) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// There is no memory for the request.
    pub(super) fn crowded() -> Self {
        let refusal = Self::unavailable("too many large requests are under way: try again in a moment".into());
        Self { retry_after: Some(1), ..refusal }
    }

    pub(super) fn ending() -> Self {
        Self::unavailable("the gateway is ending".into())
    }

    /// As the books refuse it.
    pub(super) fn refused(refused: Refused) -> Self {
        let (session, short) = match refused {
            Refused::Unavailable(cause) => {
                return Self::unavailable(format!("the budget cannot be kept, so nothing is spent: {cause}"));
            }
            Refused::Changed => {
                let refusal = Self::unavailable("the budget changed while the call was planned: try again".into());
                return Self { retry_after: Some(1), ..refusal };
            }
            Refused::Short { session, short } => (session, short),
        };
        match short {
            Short::Tokens { used, reserved, asked, limit } => {
                let message = format!("Session budget exceeded: {}/{} tokens", grouped(used), grouped(limit));
                let message = with_rest(message, used, reserved, asked, limit, |n| format!("{} tokens", grouped(n)));
                Self::exceeded(
                    message,
                    [
                        ("tokens_used", used.into()),
                        ("tokens_budget", limit.into()),
                        ("session_id", session.into()),
                        ("reserved", reserved.into()),
                    ],
                )
            }
            Short::Micros { used, reserved, asked, limit } => {
                let message = format!("Session budget exceeded: {}/{}", dollars(used), dollars(limit));
                let message = with_rest(message, used, reserved, asked, limit, dollars);
                Self::exceeded(
                    message,
                    [
                        ("usd_used", in_dollars(used)),
                        ("usd_budget", in_dollars(limit)),
                        ("session_id", session.into()),
                        ("reserved", in_dollars(reserved)),
                    ],
                )
            }
            Short::Rate { limit, asked, retry_after_ms } => {
                let seconds = retry_after_ms.div_ceil(1000).max(1);
                let message = format!(
                    "{session} may use {} tokens a minute, and this call up to {}: try again in {seconds} s",
                    grouped(limit),
                    grouped(asked)
                );
                let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
                Self { retry_after: Some(seconds), ..refusal }
            }
            Short::NeverRate { limit, asked } => Self::invalid(format!(
                "{session} may use {} tokens a minute, and this call alone up to {}: send less, cap its output lower, or \
                 have the rate raised",
                grouped(limit),
                grouped(asked)
            )),
        }
    }

    fn exceeded(message: String, more: [(&str, Value); 4]) -> Self {
        let refusal = Self::new(StatusCode::PAYMENT_REQUIRED, "budget_exceeded", message);
        Self { more: more.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(), ..refusal }
    }

    pub(super) fn response(self, format: Format) -> Response<Body> {
        let mut error = Map::new();
        error.insert("message".into(), self.message.into());
        error.insert("type".into(), kind(format, self.status, self.code).into());
        let top = match format {
            Format::OpenAi => {
                error.insert("code".into(), self.code.into());
                if self.status != StatusCode::PAYMENT_REQUIRED {
                    error.insert("param".into(), self.param.into());
                }
                error.extend(self.more);
                json!({ "error": error })
            }
            Format::Anthropic => {
                if self.status == StatusCode::PAYMENT_REQUIRED {
                    error.insert("code".into(), self.code.into());
                }
                error.extend(self.more);
                json!({ "type": "error", "error": error })
            }
        };
        let mut response = Response::new(body::full(top.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// What the vendor calls such an error.
fn kind(format: Format, status: StatusCode, code: &'static str) -> &'static str {
    match (format, status.as_u16()) {
        (_, 402) => "budget_exceeded",
        (Format::OpenAi, 429) => code,
        (Format::OpenAi, 500..) => "server_error",
        (Format::OpenAi, _) => "invalid_request_error",
        (Format::Anthropic, 404) => "not_found_error",
        (Format::Anthropic, 413) => "request_too_large",
        (Format::Anthropic, 429) => "rate_limit_error",
        (Format::Anthropic, 500..) => "api_error",
        (Format::Anthropic, _) => "invalid_request_error",
    }
}

/// What is left may be too little for this call although the budget is not used up.
fn with_rest(message: String, used: u64, reserved: u64, asked: u64, limit: u64, say: fn(u64) -> String) -> String {
    if used >= limit {
        return message;
    }
    let held = if reserved > 0 { format!(" ({} held by calls under way)", say(reserved)) } else { String::new() };
    let left = limit.saturating_sub(used).saturating_sub(reserved);
    format!(
        "{message}. This call may use up to {}, and {} are left{held}: send less or cap its output",
        say(asked),
        say(left)
    )
}

/// `1,234`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `$1.23`; more digits where there is something to tell.
fn dollars(micros: u64) -> String {
    let fraction = format!("{:06}", micros % 1_000_000);
    let (cents, rest) = fraction.split_at(2);
    format!("${}.{cents}{}", grouped(micros / 1_000_000), rest.trim_end_matches('0'))
}

fn in_dollars(micros: u64) -> Value {
    (micros as f64 / 1e6).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1234, 1_000_000].map(grouped), ["0", "999", "1,234", "1,000,000"]);
        assert_eq!([0, 1, 1_230_000, 1_234_500_000].map(dollars), ["$0.00", "$0.000001", "$1.23", "$1,234.50"]);
    }

    #[test]
    fn over_budget_says_what_kagenti_says_first() {
        let short = |used| Refused::Short {
            session: "ses-1".into(),
            short: Short::Tokens { used, reserved: 100, asked: 500, limit: 1000 },
        };
        assert_eq!(Refusal::refused(short(1234)).message, "Session budget exceeded: 1,234/1,000 tokens");
        let close = Refusal::refused(short(900)).message;
        assert!(close.starts_with("Session budget exceeded: 900/1,000 tokens. This call may use up to 500"), "{close}");
        let short = Short::Micros { used: 1_230_000, reserved: 0, asked: 1, limit: 1_000_000 };
        let refusal = Refusal::refused(Refused::Short { session: "ses-1".into(), short });
        assert_eq!(refusal.message, "Session budget exceeded: $1.23/$1.00");
        assert_eq!(refusal.more["usd_budget"], 1.0);
    }

    #[test]
    fn a_rate_says_when_to_come_again() {
        let refused = |ms| Refused::Short {
            session: "ses-1".into(),
            short: Short::Rate { limit: 10, asked: 5, retry_after_ms: ms },
        };
        for (ms, seconds) in [(0, "1"), (1000, "1"), (1001, "2")] {
            let response = Refusal::refused(refused(ms)).response(Format::OpenAi);
            assert_eq!(
                (response.status().as_u16(), &response.headers()["retry-after"]),
                (429, &seconds.parse().expect("a value"))
            );
        }
    }
}

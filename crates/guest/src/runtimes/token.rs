//! The token that a caller has to bear, where there is one.

use axum::http::{HeaderMap, header::AUTHORIZATION};
use subtle::ConstantTimeEq as _;

/// An empty token asks for nothing.
pub(super) fn is_borne(token: &str, headers: &HeaderMap) -> bool {
    if token.is_empty() {
        return true;
    }
    let borne = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
    borne.is_some_and(|borne| bool::from(borne.as_bytes().ct_eq(token.as_bytes())))
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_token_itself_will_do() {
        let borne = |value: &'static str| {
            is_borne("0123456789abcdef", &HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]))
        };
        assert!(borne("Bearer 0123456789abcdef") && borne("bearer 0123456789abcdef"));
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "0123456789abcdef"]
        {
            assert!(!borne(wrong), "{wrong}");
        }
        assert!(!is_borne("0123456789abcdef", &HeaderMap::new()));
        assert!(is_borne("", &HeaderMap::new()));
    }
}

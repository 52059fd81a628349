//! Secrets on their way back: a server that repeats what it was sent, as redirects do with a query, would hand the value to
//! the sandbox. In the heads of answers it is the placeholder again.

use hyper::{
    HeaderMap,
    header::{CONTENT_LENGTH, HeaderValue},
};

/// Shorter ones are part of too many words to be told from them.
const SHORTEST: usize = 4;

/// Puts the placeholder wherever the value stands, raw or percent-encoded, wholly or in parts.
pub(crate) fn mask(headers: &mut HeaderMap, secret: &str, placeholder: &str) {
    if secret.len() < SHORTEST {
        return;
    }
    for (name, value) in headers.iter_mut() {
        // a number that happens to be the same still says how long the answer is
        if name == CONTENT_LENGTH {
            continue;
        }
        if let Some(masked) = masked(value.as_bytes(), secret.as_bytes(), placeholder.as_bytes()) {
            *value = HeaderValue::from_bytes(&masked).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

fn masked(text: &[u8], secret: &[u8], placeholder: &[u8]) -> Option<Vec<u8>> {
    let (mut found, mut out, mut rest) = (false, Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        if let Some(length) = starts_with(rest, secret) {
            out.extend_from_slice(placeholder);
            rest = &rest[length..];
            found = true;
        } else {
            out.push(*first);
            rest = after;
        }
    }
    found.then_some(out)
}

/// How much of the text is the secret. A `%` of its own may be encoded too, so that both ways are tried.
fn starts_with(text: &[u8], secret: &[u8]) -> Option<usize> {
    let length = |percent_is_encoded: bool| {
        let mut at = 0;
        for wanted in secret {
            at += match text.get(at..)? {
                [byte, ..] if byte == wanted && !(percent_is_encoded && *byte == b'%') => 1,
                [b'%', high, low, ..] if hex(*high, *low) == Some(*wanted) => 3,
                [b'+', ..] if *wanted == b' ' => 1,
                _ => return None,
            };
        }
        Some(at)
    };
    length(true).or_else(|| length(false))
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_however_it_is_encoded() {
        let shown = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", HeaderValue::try_from(text).expect("a header"));
            mask(&mut headers, "a b&c%", "PH");
            headers["location"].to_str().expect("text").to_owned()
        };
        for text in ["a b&c%", "a%20b%26c%25", "a+b%26c%25", "%61%20%62&c%", "a%20b%26%63%25"] {
            assert_eq!(shown(&format!("/x?k={text}&z=1")), "/x?k=PH&z=1", "{text}");
        }
        assert_eq!(shown("a b&c%a b&c%"), "PHPH");
        for text in ["/x?k=a%20b", "a b&C%", "", "%", "a%2"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn what_frames_an_answer_and_short_values_stay() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("12345"));
        headers.insert("x-id", HeaderValue::from_static("a-12345"));
        mask(&mut headers, "12345", "PH");
        assert_eq!(
            (&headers[CONTENT_LENGTH], &headers["x-id"]),
            (&"12345".parse().expect("it"), &"a-PH".parse().expect("it"))
        );
        mask(&mut headers, "a-", "XX");
        assert_eq!(headers["x-id"], "a-PH");
    }
}

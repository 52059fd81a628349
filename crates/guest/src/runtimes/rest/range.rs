//! The `Range` header: one range of bytes. Several, other units and what cannot be read mean the whole file, as HTTP lets
//! a server choose. Pure.

use axum::http::{
    HeaderMap,
    header::{IF_RANGE, RANGE},
};

use crate::files::part::Part;

pub(super) fn asked(headers: &HeaderMap) -> Part {
    // Nothing is known that the condition could be compared with, so it does not hold.
    if headers.contains_key(IF_RANGE) {
        return Part::Whole;
    }
    headers.get(RANGE).and_then(|value| parse(value.to_str().ok()?)).unwrap_or(Part::Whole)
}

fn parse(value: &str) -> Option<Part> {
    let (unit, range) = value.split_once('=')?;
    let (first, last) = range.trim().split_once('-')?;
    let number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    match (first, last) {
        ("", count) => Some(Part::Last(number(count)?)),
        (first, "") => Some(Part::Between(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Part::Between(first, Some(last)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        for (value, wanted) in [
            ("bytes=0-0", Some(Part::Between(0, Some(0)))),
            ("bytes=5-", Some(Part::Between(5, None))),
            ("bytes=-5", Some(Part::Last(5))),
            ("Bytes= 1-2", Some(Part::Between(1, Some(2)))),
            ("bytes=2-1", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("lines=1-2", None),
            ("bytes=99999999999999999999-", None),
            ("bytes", None),
        ] {
            assert_eq!(parse(value), wanted, "{value}");
        }
    }
}

//! Range requests (RFC 9110 §14): one range of bytes, as downloads that resume send it.

/// What a Range header asks of a file of a known size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// No range, several, or one that is not understood: the standard lets us send everything.
    Whole,
    /// `length` is at least 1.
    Part { offset: u64, length: u64 },
    /// Nothing of it exists.
    Beyond,
}

pub(super) fn parse(header: Option<&str>, size: u64) -> Wanted {
    header.and_then(|text| part(text, size)).unwrap_or(Wanted::Whole)
}

fn part(text: &str, size: u64) -> Option<Wanted> {
    let (unit, range) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (offset, end) = if first.is_empty() {
        (size.saturating_sub(number(last)?), size)
    } else {
        let offset = number(first)?;
        let end = if last.is_empty() { size } else { number(last)?.saturating_add(1) };
        if end <= offset && !last.is_empty() {
            return None;
        }
        (offset, end.min(size))
    };
    if offset >= end { Some(Wanted::Beyond) } else { Some(Wanted::Part { offset, length: end - offset }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let part = |offset, length| Wanted::Part { offset, length };
        for (text, size, want) in [
            ("bytes=0-0", 10, part(0, 1)),
            ("bytes=2-5", 10, part(2, 4)),
            ("bytes=2-", 10, part(2, 8)),
            ("bytes=-3", 10, part(7, 3)),
            ("bytes=-30", 10, part(0, 10)),
            ("bytes=5-99", 10, part(5, 5)),
            ("bytes=0-18446744073709551615", 10, part(0, 10)),
            ("Bytes = 1-2", 10, part(1, 2)),
            ("bytes=10-", 10, Wanted::Beyond),
            ("bytes=10-11", 10, Wanted::Beyond),
            ("bytes=-0", 10, Wanted::Beyond),
            ("bytes=0-", 0, Wanted::Beyond),
            ("bytes=-5", 0, Wanted::Beyond),
            ("bytes=5-2", 10, Wanted::Whole),
            ("bytes=0-1,3-4", 10, Wanted::Whole),
            ("bytes=-", 10, Wanted::Whole),
            ("bytes=a-b", 10, Wanted::Whole),
            ("bytes=+1-2", 10, Wanted::Whole),
            ("bytes=99999999999999999999-", 10, Wanted::Whole),
            ("lines=1-2", 10, Wanted::Whole),
            ("nonsense", 10, Wanted::Whole),
        ] {
            assert_eq!(parse(Some(text), size), want, "{text} of {size}");
        }
        assert_eq!(parse(None, 10), Wanted::Whole);
    }
}

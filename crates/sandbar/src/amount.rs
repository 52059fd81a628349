//! Amounts of tokens and dollars, as people write and read them.

/// A limit on the command line: an amount, or `none` to lift it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit<T> {
    None,
    At(T),
}

impl<T> Limit<T> {
    pub(crate) fn value(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::At(amount) => Some(amount),
        }
    }
}

/// A limit that is set and not lifted.
pub(crate) fn tokens_of(text: &str) -> Result<u64, String> {
    set(token_limit(text)?)
}

/// A limit that is set and not lifted.
pub(crate) fn dollars_of(text: &str) -> Result<f64, String> {
    set(dollar_limit(text)?)
}

fn set<T>(limit: Limit<T>) -> Result<T, String> {
    limit.value().ok_or_else(|| "leave the option out for no limit".into())
}

pub(crate) fn token_limit(text: &str) -> Result<Limit<u64>, String> {
    if text == "none" { Ok(Limit::None) } else { tokens(text).map(Limit::At) }
}

pub(crate) fn dollar_limit(text: &str) -> Result<Limit<f64>, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let amount = text.parse::<f64>().ok().filter(|amount| plain && amount.is_finite());
    amount.map(Limit::At).ok_or_else(|| "write dollars, as in 5 or 0.25, or none".into())
}

/// `2M`, `1.5k`, `250000`: decimal, exact, and whole in the end.
fn tokens(text: &str) -> Result<u64, String> {
    let bad = || "write a number of tokens, as in 250000, 100k, 1.5M or 2G, or none".to_owned();
    let (number, zeros) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 3),
        Some(b'M') => (&text[..text.len() - 1], 6),
        Some(b'G') => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return Err(bad()),
        Some(parts) => parts,
        None => (number, ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > zeros {
        return Err(bad());
    }
    format!("{whole}{fraction:0<zeros$}").parse().map_err(|_| bad())
}

/// `1,234,567`
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Cents, or where there are none yet their parts.
pub(crate) fn dollars(amount: f64) -> String {
    if amount == 0.0 || amount >= 1.0 { format!("${amount:.2}") } else { format!("${amount:.6}") }
}

/// How much of a limit is used (█), held by calls under way (▒) and left (░).
pub(crate) fn bar(used: f64, held: f64, limit: f64) -> String {
    const WIDTH: usize = 20;
    let cells = |amount: f64| {
        let share = if limit > 0.0 { (amount / limit).clamp(0.0, 1.0) } else { 1.0 };
        // Rounded up: what was begun is shown, and only an untouched budget looks so.
        (share * WIDTH as f64).ceil() as usize
    };
    let used_cells = cells(used).min(WIDTH);
    let held_cells = cells(used + held).clamp(used_cells, WIDTH) - used_cells;
    let left = WIDTH - used_cells - held_cells;
    let percent = if limit > 0.0 { (used / limit * 100.0).floor() } else { 100.0 };
    format!("{}{}{} {percent} %", "█".repeat(used_cells), "▒".repeat(held_cells), "░".repeat(left))
}

/// One letter a value, as high as its share of the largest.
pub(crate) fn sparkline(values: &[u64]) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let step = |value: u64| {
        let height = u128::from(value) * (STEPS.len() as u128 - 1);
        STEPS[usize::try_from(height.div_ceil(u128::from(most))).unwrap_or(0).min(STEPS.len() - 1)]
    };
    values.iter().copied().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_written_with_decimal_suffixes() {
        for (text, want) in [
            ("0", 0),
            ("250000", 250_000),
            ("100k", 100_000),
            ("100K", 100_000),
            ("2M", 2_000_000),
            ("1.5M", 1_500_000),
            ("0.25k", 250),
            ("3G", 3_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(tokens(text), Ok(want), "{text}");
        }
        for bad in [
            "",
            "k",
            ".5k",
            "1.k",
            "1.5",
            "1.2345k",
            "-1",
            "+1",
            "1 k",
            "2m",
            "2T",
            "2MB",
            "1e6",
            "٣",
            "1_000",
            "none",
            "18446744073709551616",
            "18446744073709552k",
        ] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
        assert_eq!(token_limit("none"), Ok(Limit::None));
        assert_eq!(token_limit("2k"), Ok(Limit::At(2000)));
    }

    #[test]
    fn dollars_are_plain_numbers() {
        assert_eq!(dollar_limit("5"), Ok(Limit::At(5.0)));
        assert_eq!(dollar_limit("0.25"), Ok(Limit::At(0.25)));
        assert_eq!(dollar_limit("none"), Ok(Limit::None));
        for bad in ["", ".", "-1", "$5", "inf", "NaN", "1e3", "five"] {
            assert!(dollar_limit(bad).is_err(), "{bad}");
        }
        assert_eq!(
            (dollars(0.0), dollars(12.345), dollars(0.0012)),
            ("$0.00".into(), "$12.35".into(), "$0.001200".into())
        );
    }

    #[test]
    fn counts_are_grouped() {
        for (number, want) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), want);
        }
    }

    #[test]
    fn a_bar_has_always_the_same_width() {
        assert_eq!(bar(0.0, 0.0, 10.0), format!("{} 0 %", "░".repeat(20)));
        assert_eq!(bar(5.0, 2.5, 10.0), format!("{}{}{} 50 %", "█".repeat(10), "▒".repeat(5), "░".repeat(5)));
        assert_eq!(bar(0.001, 0.0, 10.0), format!("█{} 0 %", "░".repeat(19)));
        assert_eq!(bar(30.0, 5.0, 10.0), format!("{} 300 %", "█".repeat(20)));
        assert_eq!(bar(0.0, 0.0, 0.0), format!("{} 100 %", "█".repeat(20)));
    }

    #[test]
    fn a_sparkline_shows_the_smallest_use() {
        assert_eq!(sparkline(&[0, 1, 500, 1000]), "▁▂▅█");
        assert_eq!(sparkline(&[0, 0]), "▁▁");
        assert_eq!(sparkline(&[u64::MAX]), "█");
        assert_eq!(sparkline(&[]), "");
    }
}

//! Durations as people write them: `90s`, `5m`, `1h30m`, `250ms`, `7d`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
/// A hundred years: beyond it dates overflow somewhere, and nobody means it.
const LONGEST_MS: u64 = 100 * 365 * 86_400_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "1h30m")]
pub struct HumanDuration(pub Duration);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration: write for example 90s, 5m, 1h30m or 7d (units ms, s, m, h, d; at most 100 years)")]
pub struct BadDuration(String);

impl FromStr for HumanDuration {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        let bad = || BadDuration(text.to_owned());
        let mut rest = text;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(bad)?;
            rest = &rest[letters..];
            total = number.checked_mul(*unit).and_then(|ms| total.checked_add(ms)).ok_or_else(bad)?;
        }
        if text.is_empty() || total > LONGEST_MS {
            return Err(bad());
        }
        Ok(Self(Duration::from_millis(total)))
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_millis() as u64;
        if left == 0 {
            return f.write_str("0s");
        }
        for (name, unit) in UNITS.iter().rev() {
            if left >= *unit {
                write!(f, "{}{name}", left / unit)?;
                left %= unit;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for HumanDuration {
    type Error = BadDuration;
    fn try_from(text: String) -> Result<Self, BadDuration> {
        text.parse()
    }
}

impl From<HumanDuration> for String {
    fn from(duration: HumanDuration) -> String {
        duration.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read_and_written_back() {
        for (text, ms) in [("250ms", 250), ("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0s", 0)] {
            let parsed: HumanDuration = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.0.as_millis(), ms);
            assert_eq!(parsed.to_string().parse::<HumanDuration>(), Ok(parsed));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "5", "s", "-5s", "5 s", "1.5h", "5y", "99999999999999999999d", "36501d", "٣s", "1h1"] {
            assert!(text.parse::<HumanDuration>().is_err(), "{text}");
        }
    }
}

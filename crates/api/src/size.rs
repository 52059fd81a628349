//! Sizes as people write them: `512MiB`, `2GiB`, `64k`, or a plain number of bytes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Powers of 1024, whether or not the `iB` is written: nobody sizes memory in powers of ten.
const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
const SHORT: [(&str, u32); 5] = [("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "Written", into = "String")]
#[schema(value_type = String, example = "2GiB")]
pub struct HumanSize(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: write for example 512MiB, 2GiB or 64K, or a number of bytes")]
pub struct BadSize(String);

/// A file may hold a number or a text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a size, for example \"512MiB\", \"2GiB\" or \"64K\", or a number of bytes")]
enum Written {
    Bytes(u64),
    Text(String),
}

impl TryFrom<Written> for HumanSize {
    type Error = BadSize;
    fn try_from(written: Written) -> Result<Self, BadSize> {
        match written {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for HumanSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_owned());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let unit = &text[digits..];
        let known = UNITS.iter().chain(&SHORT).find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, shift) = known.ok_or_else(bad)?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for HumanSize {
    /// The largest unit that says it exactly.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |shift: &u32| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        let (name, shift) = UNITS.iter().rev().find(|(_, shift)| exact(shift)).unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", self.0 >> shift)
    }
}

impl From<HumanSize> for String {
    fn from(size: HumanSize) -> String {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read_and_written_back() {
        for (text, bytes) in
            [("0", 0), ("1", 1), ("64k", 65_536), ("512MiB", 1 << 29), ("2G", 2 << 30), ("1tib", 1 << 40), ("7B", 7)]
        {
            let size: HumanSize = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string().parse(), Ok(size), "{text}");
        }
        assert_eq!(HumanSize(1536 << 20).to_string(), "1536MiB");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "GiB", "-1", "1.5GiB", "1 GiB", "1PB", "99999999999999999999", "99999999999TiB", "٣"] {
            assert!(text.parse::<HumanSize>().is_err(), "{text}");
        }
    }
}

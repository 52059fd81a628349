//! How values are kept in columns, the same in every database: times as microseconds, structured values as JSON text,
//! booleans as 0 and 1.

use std::{collections::BTreeMap, fmt::Display, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Serialize, de::DeserializeOwned};

use crate::store::{Error, Result};

pub(super) fn time(micros: i64) -> Result<DateTime<Utc>> {
    DateTime::from_timestamp_micros(micros).ok_or_else(|| Error::Unreadable(format!("the time {micros}")))
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Database(error.into()))
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Unreadable(format!("{error} in {text}")))
}

pub(super) fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| Error::Unreadable(error.to_string()))
}

/// Offsets and sequence numbers; SQL has no unsigned ones, and none gets near the end of these.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| Error::Unreadable(format!("the number {number}")))
}

pub(super) fn small(number: i64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::Unreadable(format!("the number {number}")))
}

pub(super) fn flag(number: i64) -> bool {
    number != 0
}

/// What somebody wrote. PostgreSQL keeps no NUL in a text; one that could be written here and not there would stop all that
/// is written with it. In JSON it is escaped already.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// As JSON that the database takes apart again, which would bring an escaped NUL back.
pub(super) fn labels(labels: &BTreeMap<String, String>) -> Result<String> {
    json(&labels.iter().map(|(key, value)| (text(key), text(value))).collect::<BTreeMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_nul_is_kept() -> Result<()> {
        assert_eq!(text("a\0b"), "a\u{fffd}b");
        let kept = labels(&BTreeMap::from([("a\0".to_owned(), "\0b".to_owned())]))?;
        assert_eq!(kept, "{\"a\u{fffd}\":\"\u{fffd}b\"}");
        assert!(!json(&"a\0b")?.contains('\0'));
        Ok(())
    }
}

//! How values are kept in columns: times as microseconds, structured values as JSON text.

use std::{fmt::Display, str::FromStr};

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

//! What runtimes answer, brought to one form.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use reqwest::{Response, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use super::RuntimeError;

/// Of an answer that is taken into memory.
pub(super) const MAX_ANSWER: u64 = 256 << 20;
/// Of the text of a refusal.
const MAX_REFUSAL: u64 = 64 << 10;

/// A file or directory, as a listing has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name in the directory.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
    /// When it was last changed.
    pub modified: DateTime<Utc>,
    /// Its permissions; the older API does not tell them.
    pub mode: Option<u32>,
}

/// What an [`Entry`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// Something newer than this crate.
    #[serde(other)]
    Other,
}

/// The three forms of a refusal: sandboxd's, the older API's, the router's.
#[derive(Default, Deserialize)]
struct Refusal {
    message: Option<String>,
    detail: Option<String>,
}

/// The answer, when it is a good one; else the refusal in it.
pub(super) async fn good(response: Response, idle: Duration) -> Result<Response, RuntimeError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status.is_redirection() {
        return Err(RuntimeError::Redirected { status: status.as_u16() });
    }
    let body = collect(response, MAX_REFUSAL, idle).await.unwrap_or_default();
    let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
    let message = refusal.message.or(refusal.detail);
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
    Err(match status {
        StatusCode::BAD_REQUEST => RuntimeError::Invalid(message),
        StatusCode::UNAUTHORIZED => RuntimeError::Unauthenticated(message),
        StatusCode::FORBIDDEN => RuntimeError::Denied(message),
        StatusCode::NOT_FOUND => RuntimeError::NotFound(message),
        StatusCode::CONFLICT => RuntimeError::Conflict(message),
        _ => RuntimeError::Refused { status: status.as_u16().to_string(), message },
    })
}

async fn chunk(response: &mut Response, idle: Duration) -> Result<Option<Bytes>, RuntimeError> {
    let next = timeout(idle, response.chunk()).await.map_err(|_| RuntimeError::TimedOut(idle))?;
    next.map_err(|error| RuntimeError::BadAnswer(format!("it broke off: {}", error.without_url())))
}

pub(super) async fn collect(mut response: Response, limit: u64, idle: Duration) -> Result<Bytes, RuntimeError> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = chunk(&mut response, idle).await? {
        if u64::try_from(bytes.len() + chunk.len()).map_or(true, |length| length > limit) {
            return Err(RuntimeError::TooLarge(limit));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

pub(super) async fn copy(
    mut response: Response,
    to: &mut (impl AsyncWrite + Unpin),
    idle: Duration,
) -> Result<u64, RuntimeError> {
    let mut copied = 0;
    while let Some(chunk) = chunk(&mut response, idle).await? {
        to.write_all(&chunk).await?;
        copied += chunk.len() as u64;
    }
    to.flush().await?;
    Ok(copied)
}

pub(super) async fn json<T: DeserializeOwned>(response: Response, idle: Duration) -> Result<T, RuntimeError> {
    let body = collect(response, MAX_ANSWER, idle).await?;
    serde_json::from_slice(&body).map_err(|error| RuntimeError::BadAnswer(error.to_string()))
}

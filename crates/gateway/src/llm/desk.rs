//! What one sandbox's calls share: how many may be under way, also those whose client has gone, and how much memory their
//! requests may take.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, body::Incoming, header};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    refusal::Refusal,
    room::{self, Room, Share},
};
use crate::Settings;

/// A request beyond this is large.
const LARGE: usize = 1 << 20;

pub(crate) struct Desk {
    most: usize,
    calls: Arc<Semaphore>,
    room: Room,
}

/// A request that was read, and its share of the memory.
pub(super) struct Taken {
    pub(super) body: Bytes,
    pub(super) share: Share,
}

impl Taken {
    pub(super) fn is_large(&self) -> bool {
        self.body.len() > LARGE
    }
}

impl Desk {
    /// As many calls as connections.
    pub(crate) fn new(settings: &Settings) -> Self {
        let most = settings.connections.clamp(1, Semaphore::MAX_PERMITS);
        let room = Room::new(room::HERE.saturating_add(settings.llm_body));
        Self { most, calls: Arc::new(Semaphore::new(most)), room }
    }

    /// A place for a call until it is settled.
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.calls).try_acquire_owned().map_err(|_| {
            Refusal::busy(format!(
                "this sandbox has {} calls under way, which is the most: wait for one to end",
                self.most
            ))
        })
    }

    pub(super) async fn take(
        &self,
        headers: &HeaderMap,
        mut body: Incoming,
        settings: &Settings,
        everywhere: &Room,
    ) -> Result<Taken, Refusal> {
        if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
            return Err(Refusal::encoded(&String::from_utf8_lossy(encoding.as_bytes()).escape_debug().to_string()));
        }
        let (limit, wait) = (settings.llm_body, settings.head_timeout);
        let stated = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if stated.is_some_and(|stated| stated > limit) {
            return Err(Refusal::too_large(limit));
        }
        // all at once where the size is known: those who hold some and wait for more could wait for each other
        let mut share = Share::take(&self.room, everywhere, stated.unwrap_or(LARGE.min(limit)), wait).await?;
        let mut taken = BytesMut::with_capacity(stated.unwrap_or(0).min(LARGE));
        while let Some(frame) = timeout(wait, body.frame()).await.map_err(|_| Refusal::slow())? {
            let frame = frame.map_err(|error| Refusal::invalid(format!("the request broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let size = taken.len().saturating_add(data.len());
            if size > limit {
                return Err(Refusal::too_large(limit));
            }
            if size > share.bytes {
                share.grow(&self.room, everywhere, limit, wait).await?;
            }
            taken.extend_from_slice(&data);
        }
        share.shrink(taken.len());
        Ok(Taken { body: taken.freeze(), share })
    }
}

//! Bodies on their way to and from file workers.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream},
    http::{HeaderMap, header::CONTENT_TYPE},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use multer::Multipart;

use crate::{
    error::{Code, Fault},
    worker::{Frame, Receiver, Worker},
};

/// A refusal is heard by whoever still writes only if somebody reads meanwhile: so much, and so long.
const UNREAD: usize = 1 << 20;
const UNREAD_TIME: Duration = Duration::from_secs(1);

/// How much may come before the part that holds a file.
const BEFORE: usize = 1 << 20;

/// The name of the part that holds a file.
const PART: &str = "file";

/// What comes as a file: all of a body, or one part of it.
pub(super) enum Upload {
    Plain(BodyDataStream),
    Part(Box<multer::Field<'static>>),
}

/// Why there is no part.
pub(super) const NO_PART: &str = "multipart body has no part named file";

impl Upload {
    pub(super) async fn open(headers: &HeaderMap, body: Body) -> Result<Self, Fault> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.trim_start().to_ascii_lowercase().starts_with("multipart/form-data") {
            return Ok(Self::Plain(body.into_data_stream()));
        }
        Self::part(kind, body).await.map(|field| Self::Part(Box::new(field)))
    }

    pub(super) async fn part(kind: &str, body: Body) -> Result<multer::Field<'static>, Fault> {
        let bad = |error: multer::Error| {
            let why = match &error {
                multer::Error::StreamReadFailed(why) => why.to_string(),
                other => other.to_string(),
            };
            Fault::new(Code::BadRequest, format!("the multipart body cannot be read: {why}"))
        };
        let boundary = multer::parse_boundary(kind).map_err(bad)?;
        let found = Arc::new(AtomicBool::new(false));
        let mut parts = Multipart::new(bounded(body.into_data_stream(), Arc::clone(&found)), boundary);
        while let Some(part) = parts.next_field().await.map_err(bad)? {
            if part.name() == Some(PART) {
                found.store(true, Ordering::Relaxed);
                return Ok(part);
            }
        }
        Err(Fault::new(Code::BadRequest, NO_PART))
    }

    async fn next(&mut self) -> Option<Result<Bytes, String>> {
        match self {
            Self::Plain(stream) => stream.next().await.map(|data| data.map_err(|error| error.to_string())),
            Self::Part(field) => field.next().await.map(|data| data.map_err(|error| error.to_string())),
        }
    }

    /// Gives all of it to a worker and returns what that says, which may be before the end.
    pub(super) async fn store(mut self, worker: Worker) -> Result<u64, Fault> {
        let Worker { mut sender, mut receiver } = worker;
        let answer = {
            let feed = async {
                while let Some(data) = self.next().await {
                    let data = data.map_err(|error| {
                        Fault::new(Code::BadRequest, format!("The upload broke off before its end: {error}."))
                    })?;
                    if sender.data(data).await.is_err() {
                        // Why it takes no more is in its answer.
                        return Ok(());
                    }
                }
                // A worker that has ended has answered.
                let _heard = sender.commit().await;
                Ok::<_, Fault>(())
            };
            tokio::pin!(feed);
            tokio::select! {
                biased;
                answer = receiver.done() => answer,
                fed = &mut feed => match fed {
                    Ok(()) => receiver.done().await,
                    Err(fault) => Err(fault),
                },
            }
        };
        if answer.is_err() {
            self.drain().await;
        }
        answer
    }

    /// For a refusal without a worker.
    pub(super) async fn drain(mut self) {
        let mut read = 0;
        let reading = async {
            while let Some(Ok(data)) = self.next().await
                && read < UNREAD
            {
                read += data.len();
            }
        };
        // Whoever is still writing then has to find out by itself.
        let _all = tokio::time::timeout(UNREAD_TIME, reading).await;
    }
}

/// What comes before the part is looked for in memory, where a head without an end would never stop growing.
fn bounded(body: BodyDataStream, found: Arc<AtomicBool>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let mut before = 0;
    body.map(move |data| {
        let data = data.map_err(io::Error::other)?;
        if !found.load(Ordering::Relaxed) {
            before += data.len();
            if before > BEFORE {
                return Err(io::Error::other(format!("no part named {PART} begins within {} MiB", BEFORE >> 20)));
            }
        }
        Ok(data)
    })
}

/// A worker's data as a body, which breaks off where the worker does.
pub(super) fn download(receiver: Receiver) -> Body {
    let data = stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.next().await {
            Ok(Frame::Data(data)) => Some((Ok(data), Some(receiver))),
            Ok(_) => None,
            Err(fault) => Some((Err(fault), None)),
        }
    });
    Body::from_stream(data)
}

/// A worker's entries as a body: between `before` and `after`, each as `item` writes it, with commas.
pub(super) fn listing(
    receiver: Receiver,
    before: String,
    after: &'static str,
    item: fn(&crate::protocol::Entry) -> String,
) -> Body {
    /// Entries are written in pieces about this long.
    const PIECE: usize = 16 * 1024;
    let state = Some((receiver, before, true));
    let pieces = stream::unfold(state, move |state| async move {
        let (mut receiver, mut text, mut first) = state?;
        loop {
            match receiver.next().await {
                Ok(Frame::Entry(entry)) => {
                    if !first {
                        text.push(',');
                    }
                    first = false;
                    text += &item(&entry);
                    if text.len() >= PIECE {
                        return Some((Ok(Bytes::from(text)), Some((receiver, String::new(), first))));
                    }
                }
                Ok(_) => {
                    text += after;
                    return Some((Ok(Bytes::from(text)), None));
                }
                Err(fault) => return Some((Err(fault), None)),
            }
        }
    });
    Body::from_stream(pieces)
}

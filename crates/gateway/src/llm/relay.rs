//! An answer on its way to a client that may be slow, or gone. A few chunks wait for it, no more: then the upstream waits.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::body::BoxError;

const WAITING: usize = 4;

enum Item {
    Chunk(Bytes),
    /// Without it the answer was cut off, and the client has to see that.
    End,
}

pub(super) struct Sender(mpsc::Sender<Item>);

pub(super) struct Relayed {
    items: mpsc::Receiver<Item>,
    length: Option<u64>,
    ended: bool,
}

/// The client has gone, or does not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// `length` if it is known beforehand.
pub(super) fn relay(length: Option<u64>) -> (Sender, Relayed) {
    let (sender, items) = mpsc::channel(WAITING);
    (Sender(sender), Relayed { items, length, ended: false })
}

impl Sender {
    /// Waits while the client is slow.
    pub(super) async fn chunk(&self, chunk: Bytes) -> Result<(), Gone> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.0.send(Item::Chunk(chunk)).await.map_err(|_| Gone)
    }

    pub(super) async fn end(self) -> Result<(), Gone> {
        self.0.send(Item::End).await.map_err(|_| Gone)
    }

    pub(super) async fn gone(&self) {
        self.0.closed().await;
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.items.poll_recv(cx)) {
            Some(Item::Chunk(chunk)) => Some(Ok(Frame::data(chunk))),
            Some(Item::End) => {
                self.ended = true;
                None
            }
            None => {
                self.ended = true;
                Some(Err("the upstream's answer broke off".into()))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.length == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[tokio::test]
    async fn only_what_was_ended_ends() {
        let (sender, body) = relay(None);
        sender.chunk(Bytes::from_static(b"x")).await.expect("there");
        sender.end().await.expect("there");
        assert_eq!(body.collect().await.expect("whole").to_bytes(), "x");
        let (sender, body) = relay(None);
        sender.chunk(Bytes::from_static(b"x")).await.expect("there");
        drop(sender);
        assert!(body.collect().await.is_err());
    }

    #[tokio::test]
    async fn a_slow_client_makes_the_upstream_wait() {
        let (sender, body) = relay(None);
        let mut sent = 0;
        while tokio::time::timeout(std::time::Duration::from_millis(20), sender.chunk(Bytes::from_static(b"x")))
            .await
            .is_ok()
        {
            sent += 1;
        }
        assert_eq!(sent, WAITING);
        drop(body);
        assert_eq!(sender.chunk(Bytes::from_static(b"x")).await, Err(Gone));
    }
}

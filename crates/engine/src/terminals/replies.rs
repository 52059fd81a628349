//! What a terminal itself answers to the queries of its program: typed by the server, in order, once, and only while the
//! question is young. Nobody waits for it: an answer that cannot be typed soon is no answer any more.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sandbar_api::ProcessId;
use sandbar_guest::protocol::{HelloRequest, WriteInputRequest};
use sandbar_provider::Guest;
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use crate::{Inner, handle::Handle};

/// A program that asked has given up waiting, or is another one by now.
pub(super) const YOUNG: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });
/// Replies that may wait for the guest.
const QUEUE: usize = 16;
/// Older guests would count replies as a person's input.
const FIRST_PROTOCOL: u32 = 4;

pub(super) struct Replies {
    process: ProcessId,
    queue: mpsc::Sender<Reply>,
}

struct Reply {
    /// Where the output that asked ends.
    offset: u64,
    data: Bytes,
    made: Instant,
}

impl Replies {
    pub(super) fn new(inner: &Arc<Inner>, handle: Arc<Handle>, process: ProcessId) -> Self {
        let (queue, replies) = mpsc::channel(QUEUE);
        let (halt, id) = (inner.halt.clone(), process.clone());
        inner.tasks.spawn(async move {
            tokio::select! {
                () = halt.cancelled() => {}
                () = type_all(&handle, &id, replies) => {}
            }
        });
        Self { process, queue }
    }

    pub(super) fn give(&self, offset: u64, data: Vec<u8>) {
        if self.queue.try_send(Reply { offset, data: data.into(), made: Instant::now() }).is_err() {
            tracing::debug!(process = %self.process, offset, "a terminal's answer to a query is dropped");
        }
    }
}

async fn type_all(handle: &Handle, process: &ProcessId, mut replies: mpsc::Receiver<Reply>) {
    let mut understood = false;
    while let Some(Reply { offset, data, made }) = replies.recv().await {
        // Also while it is paused, from which this does not wake it.
        let Some(mut guest) = handle.guest() else { continue };
        let typed = time::timeout_at(made + YOUNG, async {
            if !understood {
                understood = guest.hello(HelloRequest {}).await?.into_inner().protocol >= FIRST_PROTOCOL;
            }
            if understood { type_one(&mut guest, process, offset, data).await } else { Ok(()) }
        });
        match typed.await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => {
                let message = status.message();
                tracing::debug!(%process, offset, message, "a terminal's answer to a query was not typed");
            }
            Err(_) => tracing::debug!(%process, offset, "a terminal's answer to a query came too late"),
        }
    }
}

async fn type_one(guest: &mut Guest, process: &ProcessId, offset: u64, data: Bytes) -> Result<(), tonic::Status> {
    let request = WriteInputRequest {
        process_id: process.to_string(),
        data,
        answers_output: Some(offset),
        ..WriteInputRequest::default()
    };
    guest.write_input(request).await.map(drop)
}

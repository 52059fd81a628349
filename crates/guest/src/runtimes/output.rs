//! The output of a command that is answered in one piece, which must fit into memory, with that of all others.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::run::{Broken, Event, Run};
use crate::{
    error::{Code, Fault},
    protocol::{Exit, Stream},
};

/// Of each stream.
pub(super) const MOST: usize = 16 << 20;

pub(super) struct Collected {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    room: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

/// The room that output takes, held as long as an answer made of it is on its way.
#[derive(Clone)]
pub(super) struct Held(Arc<Option<OwnedSemaphorePermit>>);

impl Held {
    pub(super) fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _held = &self.0;
                frame
            }))
        })
    }
}

impl Collected {
    pub(super) fn new(room: &Arc<Semaphore>) -> Self {
        Self { stdout: Vec::new(), stderr: Vec::new(), room: Arc::clone(room), taken: None }
    }

    /// To the command's end. What was collected until it broke stays.
    pub(super) async fn all(&mut self, run: &mut Run) -> Result<Exit, Broken> {
        loop {
            match run.next().await? {
                Some(Event::Output(stream, data)) => self.push(stream, &data)?,
                Some(Event::Exit(exit)) => return Ok(exit),
                None => return Err(Fault::new(Code::Internal, "The process ended twice.").into()),
            }
        }
    }

    pub(super) fn held(&mut self) -> Held {
        Held(Arc::new(self.taken.take()))
    }

    fn push(&mut self, stream: Stream, data: &[u8]) -> Result<(), Fault> {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        if kept.len() + data.len() > MOST {
            let message = format!(
                "The command wrote more than {} MiB to one stream and was killed; let it write to a file.",
                MOST >> 20
            );
            return Err(Fault::new(Code::TooMany, message));
        }
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&self.room).try_acquire_many_owned(count) else {
            let message = "Too much output is held for other commands, so this one was killed; let it write to a file.";
            return Err(Fault::new(Code::TooMany, message));
        };
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        kept.extend_from_slice(data);
        Ok(())
    }
}

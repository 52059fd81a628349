//! A follower of one process's output: sends what is kept from an offset on, then what comes, then the exit.

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Status, Streaming};

use crate::{
    error::{Code, Fault},
    process::{Next, Process},
    protocol::{FollowEvent, FollowFrom, FollowRequest, Output, follow_event::Event, follow_request::Message},
    table::Table,
};

pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<FollowEvent, Status>> + Send>>;

/// The stream is there at once and reads its first request itself, so that a client may open it before it asks.
pub(crate) fn events(table: Arc<Table>, requests: Streaming<FollowRequest>) -> Events {
    Box::pin(stream::unfold(Stage::Opening(table, requests), |stage| async {
        let mut follower = match stage {
            Stage::Opening(table, requests) => match Follower::open(&table, requests).await {
                Ok(follower) => follower,
                Err(status) => return Some((Err(status), Stage::Over)),
            },
            Stage::Following(follower) => follower,
            Stage::Over => return None,
        };
        match follower.next().await {
            Ok(Some(event)) => Some((Ok(FollowEvent { event: Some(event) }), Stage::Following(follower))),
            Ok(None) => None,
            Err(fault) => Some((Err(fault.into()), Stage::Over)),
        }
    }))
}

enum Stage {
    Opening(Arc<Table>, Streaming<FollowRequest>),
    Following(Follower),
    Over,
}

struct Follower {
    process: Arc<Process>,
    changes: watch::Receiver<()>,
    offset: u64,
    exit_sent: bool,
    /// A wrong acknowledgement ends the stream.
    wrong: tokio::sync::oneshot::Receiver<Fault>,
}

impl Follower {
    async fn open(table: &Table, mut requests: Streaming<FollowRequest>) -> Result<Self, Status> {
        let first = requests.message().await?.and_then(|request| request.message);
        let Some(Message::From(FollowFrom { process_id, offset })) = first else {
            return Err(Fault::new(Code::BadRequest, "The first message must say what to follow.").into());
        };
        let process = table.get(&process_id)?;
        let (wrong_sender, wrong) = tokio::sync::oneshot::channel();
        tokio::spawn(acknowledge(Arc::clone(&process), requests, wrong_sender));
        Ok(Self { changes: process.changes(), process, offset, exit_sent: false, wrong })
    }

    async fn next(&mut self) -> Result<Option<Event>, Fault> {
        loop {
            self.changes.borrow_and_update();
            match self.process.next(self.offset, self.exit_sent)? {
                Next::Output(piece) => {
                    self.offset = piece.offset + piece.data.len() as u64;
                    let stream = piece.stream.into();
                    let output = Output { offset: piece.offset, stream, data: piece.data, at_ms: piece.at_ms };
                    return Ok(Some(Event::Output(output)));
                }
                Next::Exit(exit) => {
                    self.exit_sent = true;
                    return Ok(Some(Event::Exit(exit)));
                }
                Next::End => return Ok(None),
                Next::Wait => tokio::select! {
                    // The sender lives in the process that we hold.
                    _ = self.changes.changed() => {}
                    Ok(fault) = &mut self.wrong, if !self.wrong.is_terminated() => return Err(fault),
                },
            }
        }
    }
}

/// Apart from the sending half, so that acknowledgements count while the client does not read.
async fn acknowledge(
    process: Arc<Process>,
    mut requests: Streaming<FollowRequest>,
    wrong: tokio::sync::oneshot::Sender<Fault>,
) {
    // The end and an error mean the same here: this client acknowledges no more, and loses nothing by it.
    while let Ok(Some(request)) = requests.message().await {
        let outcome = match request.message {
            Some(Message::Acknowledge(offset)) => process.acknowledge(offset),
            _ => Err(Fault::new(Code::BadRequest, "After the first message only acknowledgements are expected.")),
        };
        if let Err(fault) = outcome {
            // A follower that is already gone needs no answer.
            let _ = wrong.send(fault);
            return;
        }
    }
}

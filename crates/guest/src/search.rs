//! The guest's side of a search: a worker does it, and one that is stuck in a single line is given up.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tonic::{Response, Status};

use crate::{
    children::Forker,
    error::{Code, Fault},
    files::{self, Job},
    protocol::{SearchReply, SearchRequest},
    service::{Answer, Items, items},
    worker::{self, Frame, Worker},
};

/// Past the worker's own limit, for the rest of a file and for a caller that reads slowly.
const LONGEST: Duration = files::search::LONGEST.saturating_add(Duration::from_secs(15));

/// At once: each may hold the names of a very large tree, outside the workload's limits.
pub(crate) const MOST: usize = 4;

pub(crate) async fn replies(
    forker: &Forker,
    room: &Arc<Semaphore>,
    mut request: SearchRequest,
) -> Answer<Items<SearchReply>> {
    let path = worker::path(std::mem::take(&mut request.path))?;
    let place = Arc::clone(room).acquire_owned().await.map_err(|_| Status::unavailable("the guest has ended"))?;
    let deadline = Instant::now() + LONGEST;
    let mut worker = Worker::start(forker, Job::Search { path, request }).await?;
    worker.receiver.occupy(place);
    let found = items(worker.receiver, |frame| match frame {
        Frame::Found(reply) => Some(reply),
        Frame::Data(_) | Frame::Entry(_) | Frame::Done(_) => None,
    });
    let replies = timeout_at(deadline, found).await.map_err(|_| too_long())??.into_inner();
    // The worker ends with the stream that is dropped here.
    let replies = stream::unfold(Some(replies), move |replies| async move {
        let mut replies = replies?;
        match timeout_at(deadline, replies.next()).await {
            Ok(reply) => reply.map(|reply| (reply, Some(replies))),
            Err(_) => Some((Err(too_long()), None)),
        }
    });
    Ok(Response::new(Box::pin(replies)))
}

fn too_long() -> Status {
    let message = format!("The search did not end within {} s; a simpler expression may.", LONGEST.as_secs());
    Fault::new(Code::TooLarge, message).into()
}

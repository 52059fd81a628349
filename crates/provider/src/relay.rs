//! The gate of a sandbox in whose network the server cannot listen: the guest does, and each connection that it accepts
//! answers a call that the server keeps waiting. What comes while none waits stays in the guest's backlog, so that neither a
//! busy nor a restarting server loses it.

mod carried;

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use sandbar_guest::protocol::DialReply;
use tokio::{
    sync::{Semaphore, mpsc, mpsc::OwnedPermit},
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::{Carried, Guest, Relay};
use carried::Connection;

/// Calls that wait for a connection, and connections that wait to be taken: so many begin in one round trip.
const WAITING: usize = 4;
/// Messages on their way to the guest, for each connection.
const IN_FLIGHT: usize = 1;
/// Connections whose last bytes are still on their way after they were let go of.
const LINGERING: usize = 64;
/// Between attempts while the guest is not there: doubled each time, up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Takes what the guest accepts, until the relay is dropped. `guest` should be a connection of its own: what nobody reads
/// must hold up no call. While the guest is away it is tried again and again.
pub fn relay(guest: Guest, port: u16) -> Relay {
    let (taken, connections) = mpsc::channel(WAITING);
    tokio::spawn(keep(guest, taken));
    Relay { port, connections }
}

async fn keep(guest: Guest, taken: mpsc::Sender<Carried>) {
    let lingering = Arc::new(Semaphore::new(LINGERING));
    let mut waiting = FuturesUnordered::new();
    let mut pause = PAUSE.0;
    let mut until = None;
    let mut told = false;
    let mut asked = Instant::now();
    loop {
        tokio::select! {
            () = taken.closed() => return,
            Some(ended) = waiting.next(), if !waiting.is_empty() => match ended {
                Ok(()) => (pause, until, told) = (PAUSE.0, None, false),
                Err(status) => {
                    if asked.elapsed() > PAUSE.1 {
                        // It was there for a while, so this is another failure than the one before.
                        (pause, told) = (PAUSE.0, false);
                    }
                    if !told {
                        tracing::warn!(%status, "connections of a sandbox are not taken until its guest answers again");
                    }
                    told = true;
                    // All calls fail when the guest goes away, and that is one failure.
                    if until.is_none() {
                        until = Some(Instant::now() + pause);
                        pause = (pause * 2).min(PAUSE.1);
                    }
                }
            },
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => until = None,
            Ok(place) = taken.clone().reserve_owned(), if until.is_none() => {
                asked = Instant::now();
                waiting.push(accept(guest.clone(), place, Arc::clone(&lingering)));
            }
        }
    }
}

/// Returns when there was a connection, which then has its place. Given up, the guest accepts none for it.
async fn accept(mut guest: Guest, place: OwnedPermit<Carried>, lingering: Arc<Semaphore>) -> Result<(), Status> {
    let (requests, receiver) = mpsc::channel(IN_FLIGHT);
    let mut replies = guest.accept(ReceiverStream::new(receiver)).await?.into_inner();
    let first = replies.message().await?;
    let Some(DialReply { data, end }) = first else { return Err(Status::unavailable("the guest accepts nothing")) };
    place.send(Box::new(Connection::new(requests, replies, data, end, lingering)));
    Ok(())
}

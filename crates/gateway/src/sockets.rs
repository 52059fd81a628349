//! How many sockets there may be. Descriptors are shared with the API, the database and the guests, where one that is
//! missing ends more than a request: every connection to a client or a server has a place here before it is made, and one
//! gate has no more than half of them, whatever its sandbox does.

use std::{sync::Arc, time::Duration};

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Left to everything else in the process, beyond a quarter of all descriptors.
const RESERVE: u64 = 256;
/// More than any host has to give.
const MOST: u64 = 1 << 20;
/// Requests under way, and connections to servers, for each connection that a sandbox may have.
const FLIGHTS: usize = 2;
/// For a place; then the client is told to come again.
const WAIT: Duration = Duration::from_secs(5);

/// Of the whole process.
#[derive(Clone)]
pub(crate) struct Sockets {
    all: Arc<Semaphore>,
    most: usize,
}

/// One gate's part of them.
pub(crate) struct Share {
    all: Arc<Semaphore>,
    clients: Arc<Semaphore>,
    servers: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    /// Who waits for a place holds memory too.
    waiting: Arc<Semaphore>,
    most_servers: usize,
}

/// A place for one connection, as long as it is kept.
pub(crate) struct Socket {
    all: Option<OwnedSemaphorePermit>,
    own: Option<OwnedSemaphorePermit>,
}

impl Socket {
    /// One more of the same kind, if one is free at once.
    pub(crate) fn another(&self) -> Option<Self> {
        let more = |permit: &Option<OwnedSemaphorePermit>| match permit {
            Some(permit) => Arc::clone(permit.semaphore()).try_acquire_owned().ok().map(Some),
            None => Some(None),
        };
        Some(Self { own: more(&self.own)?, all: more(&self.all)? })
    }
}

/// A place for one request, as long as it is kept.
pub(crate) struct Flight {
    _own: OwnedSemaphorePermit,
}

/// No place came free in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Busy;

impl Sockets {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(4);
        Self { all: Arc::new(Semaphore::new(most)), most }
    }

    /// As many as the limit of descriptors leaves.
    pub(crate) fn of_process() -> Self {
        Self::new(of_limit(getrlimit(Resource::Nofile).current))
    }

    /// For what the operator chose to connect to.
    pub(crate) async fn server(&self) -> Result<Socket, Busy> {
        let all = tokio::time::timeout(WAIT, Arc::clone(&self.all).acquire_owned()).await;
        Ok(Socket { all: Some(all.map_err(|_| Busy)?.map_err(|_| Busy)?), own: None })
    }

    pub(crate) fn share(&self, connections: usize) -> Share {
        // a quarter for each side, so that clients alone cannot leave none for servers
        let side = self.most / 4;
        let flights = connections.max(1).saturating_mul(FLIGHTS).min(Semaphore::MAX_PERMITS);
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Share {
            all: Arc::clone(&self.all),
            clients: semaphore(side),
            servers: semaphore(side.min(flights)),
            requests: semaphore(flights),
            waiting: semaphore(flights),
            most_servers: side.min(flights),
        }
    }
}

impl Share {
    /// For a client that was accepted; it waits until there is one.
    pub(crate) async fn client(&self) -> Result<Socket, Busy> {
        socket(&self.clients, Some(&self.all)).await
    }

    /// For one whose connection is carried here: it has no descriptor, but takes memory like every other.
    pub(crate) async fn carried(&self) -> Result<Socket, Busy> {
        socket(&self.clients, None).await
    }

    pub(crate) async fn server(&self) -> Result<Socket, Busy> {
        tokio::time::timeout(WAIT, socket(&self.servers, Some(&self.all))).await.map_err(|_| Busy)?
    }

    /// For as long as the request or its answer is under way.
    pub(crate) async fn request(&self) -> Result<Flight, Busy> {
        if let Ok(free) = Arc::clone(&self.requests).try_acquire_owned() {
            return Ok(Flight { _own: free });
        }
        let _waits = self.waiting.try_acquire().map_err(|_| Busy)?;
        let free = tokio::time::timeout(WAIT, Arc::clone(&self.requests).acquire_owned()).await;
        Ok(Flight { _own: free.map_err(|_| Busy)?.map_err(|_| Busy)? })
    }

    /// Whether a connection may be kept in case it is needed again: never one that somebody else waits for.
    pub(crate) fn is_ample(&self) -> bool {
        self.servers.available_permits() > self.most_servers / 2 && self.all.available_permits() > 0
    }
}

/// Of so many descriptors; none: there is no limit.
fn of_limit(descriptors: Option<u64>) -> usize {
    let limit = descriptors.unwrap_or(MOST).min(MOST);
    usize::try_from((limit / 4 * 3).saturating_sub(RESERVE)).unwrap_or(0)
}

async fn socket(own: &Arc<Semaphore>, all: Option<&Arc<Semaphore>>) -> Result<Socket, Busy> {
    // its own first: who has used up its part must not stand in the way of others
    let own = Arc::clone(own).acquire_owned().await.map_err(|_| Busy)?;
    let all = match all {
        Some(all) => Some(Arc::clone(all).acquire_owned().await.map_err(|_| Busy)?),
        None => None,
    };
    Ok(Socket { all, own: Some(own) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_gate_leaves_half_to_the_others() {
        let sockets = Sockets::new(40);
        let (greedy, other) = (sockets.share(512), sockets.share(512));
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(greedy.client().await.expect("a place"));
            held.push(greedy.server().await.expect("a place"));
        }
        assert_eq!(greedy.server().await.err(), Some(Busy));
        assert!(tokio::time::timeout(WAIT, greedy.client()).await.is_err(), "clients wait");
        for _ in 0..10 {
            held.push(other.client().await.expect("a place"));
            held.push(other.server().await.expect("a place"));
        }
        assert_eq!(sockets.server().await.err(), Some(Busy), "all are taken");
        let third = sockets.share(512);
        assert!(third.carried().await.is_ok(), "what is carried needs no socket");
        assert!(tokio::time::timeout(WAIT, greedy.carried()).await.is_err(), "but a place of its gate");
        held.clear();
        assert!(sockets.server().await.is_ok() && greedy.server().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_connections_are_bounded_by_the_setting() {
        let share = Sockets::new(4000).share(3);
        let mut servers = Vec::new();
        for _ in 0..6 {
            servers.push(share.server().await.expect("a place"));
        }
        assert_eq!(share.server().await.err(), Some(Busy));
        assert!(!share.is_ample());
        servers.clear();
        assert!(share.is_ample() && share.server().await.is_ok());

        let mut flights = Vec::new();
        for _ in 0..6 {
            flights.push(share.request().await.expect("a place"));
        }
        assert_eq!(share.request().await.err(), Some(Busy));
        let later = async {
            tokio::time::sleep(WAIT / 2).await;
            flights.pop();
        };
        let (waited, ()) = tokio::join!(share.request(), later);
        assert!(waited.is_ok(), "it waits for a moment");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_bounded_too() {
        let share = Sockets::new(4000).share(1);
        let _held = [share.request().await, share.request().await];
        let began = tokio::time::Instant::now();
        let (one, two, three) = tokio::join!(share.request(), share.request(), async {
            tokio::task::yield_now().await;
            let refused = share.request().await.err();
            (refused, began.elapsed())
        });
        assert!(one.is_err() && two.is_err());
        assert_eq!(three, (Some(Busy), Duration::ZERO), "at once");
    }

    #[test]
    fn a_part_of_the_descriptors_is_left() {
        for (limit, most) in [
            (Some(0), 0),
            (Some(256), 0),
            (Some(1024), 512),
            (Some(4096), 2816),
            (Some(65_536), 48_896),
            (Some(1 << 20), 786_176),
            (Some(u64::MAX), 786_176),
            (None, 786_176),
        ] {
            assert_eq!(of_limit(limit), most, "of {limit:?}");
        }
    }

    #[tokio::test]
    async fn of_few_descriptors_every_side_has_some() {
        let share = Sockets::new(of_limit(Some(0))).share(512);
        let (client, server) = (share.client().await, share.server().await);
        assert!(client.is_ok() && server.is_ok());
    }
}

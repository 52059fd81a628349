//! Memory for requests, by the byte: each sandbox has some, and all of them together. Who finds none waits a little and is
//! told so, so that no sandbox can take what the others need.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::refusal::Refusal;

/// Of all sandboxes.
pub(super) const EVERYWHERE: usize = 256 << 20;
/// Of one, beside its largest request.
pub(super) const HERE: usize = 64 << 20;
/// Large requests that are read at a time, of all sandboxes: what is read takes a multiple of its bytes for a moment.
const READERS: usize = 4;

#[derive(Clone)]
pub(super) struct Room {
    bytes: Arc<Semaphore>,
    all: usize,
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        let all = bytes.min(u32::MAX as usize);
        Self { bytes: Arc::new(Semaphore::new(all)), all }
    }

    /// What is larger than the room has it for itself.
    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let permits = u32::try_from(bytes.min(self.all)).unwrap_or(u32::MAX);
        Arc::clone(&self.bytes).acquire_many_owned(permits).await.map_err(|_| Refusal::ending())
    }
}

/// What a request may take, here and everywhere.
pub(super) struct Share {
    pub(super) bytes: usize,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Share {
    /// Its own sandbox's first: who waits for that holds up nobody else.
    pub(super) async fn take(here: &Room, everywhere: &Room, bytes: usize, wait: Duration) -> Result<Self, Refusal> {
        let permits = async { Ok(vec![here.take(bytes).await?, everywhere.take(bytes).await?]) };
        let permits = timeout(wait, permits).await.map_err(|_| Refusal::crowded())??;
        Ok(Self { bytes, permits })
    }

    pub(super) async fn grow(
        &mut self,
        here: &Room,
        everywhere: &Room,
        bytes: usize,
        wait: Duration,
    ) -> Result<(), Refusal> {
        let more = Self::take(here, everywhere, bytes.saturating_sub(self.bytes), wait).await?;
        for (permit, more) in self.permits.iter_mut().zip(more.permits) {
            permit.merge(more);
        }
        self.bytes = self.bytes.max(bytes);
        Ok(())
    }

    /// Gives back what is not needed after all.
    pub(super) fn shrink(&mut self, bytes: usize) {
        for permit in &mut self.permits {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
        self.bytes = self.bytes.min(bytes);
    }
}

/// What all sandboxes share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) room: Room,
    readers: Arc<Semaphore>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { room: Room::new(EVERYWHERE), readers: Arc::new(Semaphore::new(READERS)) }
    }
}

impl Shared {
    /// A turn to read a large request.
    pub(super) async fn reader(&self, wait: Duration) -> Result<OwnedSemaphorePermit, Refusal> {
        let turn = timeout(wait, Arc::clone(&self.readers).acquire_owned()).await.map_err(|_| Refusal::crowded())?;
        turn.map_err(|_| Refusal::ending())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn one_sandbox_cannot_take_what_another_needs() {
        let (everywhere, one, other) = (Room::new(100), Room::new(60), Room::new(60));
        let mut first = Share::take(&one, &everywhere, 50, WAIT).await.expect("room");
        let refused = Share::take(&one, &everywhere, 20, WAIT).await.err().expect("no room here");
        assert_eq!(refused.status, 503);
        let second = Share::take(&other, &everywhere, 50, WAIT).await.expect("room for another");
        assert!(Share::take(&other, &everywhere, 1, WAIT).await.is_err(), "there is none anywhere");
        first.shrink(30);
        assert_eq!((first.bytes, one.bytes.available_permits(), everywhere.bytes.available_permits()), (30, 30, 20));
        first.grow(&one, &everywhere, 45, WAIT).await.expect("room");
        assert_eq!((first.bytes, one.bytes.available_permits(), everywhere.bytes.available_permits()), (45, 15, 5));
        drop((first, second));
        assert_eq!([&one, &other, &everywhere].map(|room| room.bytes.available_permits()), [60, 60, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_the_room_has_it_for_itself() {
        let (everywhere, here) = (Room::new(10), Room::new(20));
        let share = Share::take(&here, &everywhere, 30, WAIT).await.expect("room");
        assert!(Share::take(&here, &everywhere, 1, WAIT).await.is_err());
        drop(share);
        assert!(Share::take(&here, &everywhere, 1, WAIT).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_what_is_given_back() {
        let (everywhere, here) = (Room::new(10), Room::new(10));
        let share = Share::take(&here, &everywhere, 10, WAIT).await.expect("room");
        let give_back = async {
            tokio::time::sleep(WAIT / 2).await;
            drop(share);
        };
        let (waited, ()) = tokio::join!(Share::take(&here, &everywhere, 10, WAIT), give_back);
        assert!(waited.is_ok());
    }
}

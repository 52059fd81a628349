//! A reservation in hand. Whatever becomes of the call, it is settled exactly once: also when its task is dropped.

use std::{sync::Arc, time::Instant};

use super::Usage;
use crate::{Refused, Reservation, Reserve, Settlement, Warden};

pub(super) struct Hold {
    warden: Arc<dyn Warden>,
    /// Absent when it is settled, or for what is not counted at all.
    reservation: Option<Reservation>,
    started: Instant,
    status: Option<u16>,
    sent: bool,
}

impl Hold {
    pub(super) async fn reserve(warden: &Arc<dyn Warden>, call: Reserve) -> Result<Self, Refused> {
        let mut hold = Self::uncounted(warden);
        hold.reservation = Some(warden.reserve(call).await?);
        Ok(hold)
    }

    pub(super) fn uncounted(warden: &Arc<dyn Warden>) -> Self {
        Self { warden: Arc::clone(warden), reservation: None, started: Instant::now(), status: None, sent: false }
    }

    /// From now on the vendor may have counted it.
    pub(super) fn sending(&mut self) {
        self.sent = true;
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    pub(super) fn settled(&self) -> bool {
        self.reservation.is_none()
    }

    pub(super) fn used(&mut self, usage: Usage) {
        self.settle(Some(usage), false, None);
    }

    /// The vendor refused it, or never got it.
    pub(super) fn free(&mut self, note: impl Into<String>) {
        self.settle(None, true, Some(note.into()));
    }

    /// What it used nobody said: the reservation stands.
    pub(super) fn unknown(&mut self, note: impl Into<String>) {
        self.settle(None, false, Some(note.into()));
    }

    fn settle(&mut self, usage: Option<Usage>, free: bool, note: Option<String>) {
        if let Some(reservation) = self.reservation.take() {
            let end = Settlement { usage, free, status: self.status, elapsed: self.started.elapsed(), note };
            self.warden.settle(reservation, end);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let free = !self.sent;
        self.settle(None, free, Some("the call was cut off".into()));
    }
}

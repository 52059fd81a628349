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
    /// Nothing can have been counted: it was not sent yet, or it was refused.
    costless: bool,
    /// What the upstream answered, if that was no success.
    failure: Option<String>,
}

impl Hold {
    pub(super) async fn reserve(warden: &Arc<dyn Warden>, call: Reserve) -> Result<Self, Refused> {
        let mut hold = Self::uncounted(warden);
        hold.reservation = Some(warden.reserve(call).await?);
        Ok(hold)
    }

    pub(super) fn uncounted(warden: &Arc<dyn Warden>) -> Self {
        Self {
            warden: Arc::clone(warden),
            reservation: None,
            started: Instant::now(),
            status: None,
            costless: true,
            failure: None,
        }
    }

    pub(super) fn counted(&self) -> bool {
        self.reservation.is_some()
    }

    /// From now on the vendor may have counted it.
    pub(super) fn sending(&mut self) {
        self.costless = false;
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.status = Some(status);
        if !(200..300).contains(&status) {
            self.costless = means_refused(status);
            self.failure = Some(format!("the upstream answered {status}"));
        }
    }

    pub(super) fn settled(&self) -> bool {
        self.reservation.is_none()
    }

    pub(super) fn used(&mut self, usage: Usage) {
        let note = self.failure.take();
        self.settle(Some(usage), false, note);
    }

    /// The vendor never got it.
    pub(super) fn free(&mut self, note: impl Into<String>) {
        self.settle(None, true, Some(note.into()));
    }

    /// What it used nobody said: the reservation stands, unless it was refused.
    pub(super) fn unknown(&mut self, note: impl Into<String>) {
        let note = self.failure.take().unwrap_or_else(|| note.into());
        self.settle(None, self.costless, Some(note));
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
        self.unknown("the call was cut off");
    }
}

/// Whether a vendor that answers so has not begun. Whatever else went wrong on its side or between (500, 502, 504, 520 to
/// 524, a time-out, a conflict with a call under way, a client that went) may have gone wrong after it had read or written.
fn means_refused(status: u16) -> bool {
    match status {
        408 | 409 | 499 => false,
        400..=498 | 503 | 529 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_surely_not_begun_is_refused() {
        for status in [400, 401, 402, 403, 404, 413, 422, 429, 498, 503, 529] {
            assert!(means_refused(status), "{status}");
        }
        for status in [301, 304, 408, 409, 499, 500, 501, 502, 504, 507, 520, 522, 524, 530, 599, 999] {
            assert!(!means_refused(status), "{status}");
        }
    }
}

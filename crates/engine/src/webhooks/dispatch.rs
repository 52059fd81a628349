//! One task for each webhook: reads the log after its cursor, hands what is wanted to its channel, one notice at a time and
//! in order, and writes down how far it got. What was handed over and not yet written down is handed over again, with the
//! same id.

use std::{sync::Arc, time::Duration};

use sandbar_api::{Event, WebhookId, WebhookState, WebhookTest};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{
    channel::{Channel, Undelivered},
    notice::Notice,
    patience::Patience,
};
use crate::{
    clock, ids,
    store::{
        self, Store,
        webhook::{WebhookMark, WebhookRow},
    },
};

/// Events read at once.
const PAGE: u32 = 256;
/// How many events that are not for it may be looked at before that is written down.
const STRIDE: u64 = 1000;
/// How long at most it is not written down: far below what retention keeps, so that nothing seems missed after a restart.
const REMEMBER: Duration = Duration::from_secs(3600);
/// For more events to come before the log is read, so that a busy server is not asked for each.
const GATHER: Duration = Duration::from_millis(50);
/// When the store fails.
const RETRY: Duration = Duration::from_secs(5);
/// Of an error, in letters.
const LONGEST_ERROR: usize = 300;

pub(super) type Test = oneshot::Sender<WebhookTest>;

pub(super) struct Dispatcher {
    store: Arc<dyn Store>,
    channel: Arc<dyn Channel>,
    patience: Patience,
    /// The webhook is removed, or the server ends.
    stop: CancellationToken,
    tests: mpsc::Receiver<Test>,
    /// As it was last written down.
    row: WebhookRow,
    /// The last event that was looked at.
    position: u64,
    /// When that was last written down.
    remembered: Instant,
}

/// Why the task does not go on where it is.
enum Cut {
    Stopped,
    Store(store::Error),
}

impl From<store::Error> for Cut {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Missing(_) => Self::Stopped,
            error => Self::Store(error),
        }
    }
}

impl Dispatcher {
    pub(super) fn new(
        store: Arc<dyn Store>,
        channel: Arc<dyn Channel>,
        patience: Patience,
        row: WebhookRow,
        stop: CancellationToken,
        tests: mpsc::Receiver<Test>,
    ) -> Self {
        let position = row.cursor;
        Self { store, channel, patience, stop, tests, row, position, remembered: Instant::now() }
    }

    pub(super) async fn run(mut self) {
        let mut head = self.store.head();
        loop {
            head.mark_unchanged();
            let done = match self.catch_up().await {
                Ok(()) => self.wait(&mut head).await,
                cut => cut,
            };
            match done {
                Ok(()) => {}
                Err(Cut::Stopped) => break,
                Err(Cut::Store(error)) => {
                    self.complain(&error);
                    if self.pause(RETRY).await.is_err() {
                        break;
                    }
                }
            }
        }
        if self.position > self.row.cursor {
            // A removed one has nothing to remember, and what is not written down is only looked at again.
            self.store.mark_webhook(self.id(), WebhookMark::Passed { to: self.position }).await.ok();
        }
    }

    fn id(&self) -> &WebhookId {
        &self.row.webhook.id
    }

    async fn catch_up(&mut self) -> Result<(), Cut> {
        while self.row.webhook.state != WebhookState::Disabled {
            let page = match self.store.events(self.position, PAGE, None).await {
                Err(store::Error::Dropped { from, first_kept }) => {
                    let to = first_kept.saturating_sub(1);
                    self.mark(WebhookMark::Missed { from, to }).await?;
                    self.position = to;
                    continue;
                }
                page => page?,
            };
            if page.is_empty() {
                return Ok(());
            }
            for event in page {
                if self.wants(&event) {
                    self.tell(&event).await?;
                }
                if self.row.webhook.state == WebhookState::Disabled {
                    return Ok(());
                }
                self.position = event.seq;
            }
            if self.is_far_behind() {
                self.remember().await?;
            }
        }
        Ok(())
    }

    /// What is written down, behind what was looked at: by many events, or by few in a long time.
    fn is_far_behind(&self) -> bool {
        let passed = self.position.saturating_sub(self.row.cursor);
        passed >= STRIDE || passed > 0 && self.remembered.elapsed() >= REMEMBER
    }

    /// Nothing about itself: what it cannot be told it cannot be told of.
    fn wants(&self, event: &Event) -> bool {
        let kind = event.kind.as_str();
        let named = |wanted: &String| if wanted.ends_with('.') { kind.starts_with(wanted) } else { kind == wanted };
        self.row.webhook.kinds.iter().any(named) && event.data["webhook"] != self.id().as_str()
    }

    /// Until it is taken, given up, or not wanted any more.
    async fn tell(&mut self, event: &Event) -> Result<(), Cut> {
        let notice = Notice::of(event, &format!("msg_{}", self.id()), &*self.store).await?;
        loop {
            let (cause, after) = match self.deliver(&notice).await? {
                Ok(()) => return self.mark(WebhookMark::Delivered { seq: event.seq }).await,
                Err(Undelivered::Gone { cause }) => {
                    return self.mark(WebhookMark::Disabled { error: shortened(&cause) }).await;
                }
                Err(Undelivered::Later { cause, after }) => (cause, after),
            };
            self.mark(WebhookMark::Failed { error: shortened(&cause) }).await?;
            if self.patience.is_over(self.row.webhook.attempts, self.row.first_failed_at, clock::now()) {
                return self.mark(WebhookMark::GivenUp { seq: event.seq, kind: event.kind.clone() }).await;
            }
            // Without randomness webhooks only fail in step.
            let dice = u16::from_le_bytes(ids::random().unwrap_or([0xff; 2]));
            self.pause(self.patience.pause(self.row.webhook.attempts, after, dice)).await?;
        }
    }

    async fn deliver(&self, notice: &Notice) -> Result<Result<(), Undelivered>, Cut> {
        tokio::select! {
            () = self.stop.cancelled() => Err(Cut::Stopped),
            delivered = self.channel.deliver(notice) => Ok(delivered),
        }
    }

    /// Written down, however long that takes: going on without it would tell the same thing twice.
    async fn mark(&mut self, mark: WebhookMark) -> Result<(), Cut> {
        loop {
            match self.store.mark_webhook(self.id(), mark.clone()).await.map_err(Cut::from) {
                Ok(row) => {
                    self.row = row;
                    return Ok(());
                }
                Err(Cut::Stopped) => return Err(Cut::Stopped),
                Err(Cut::Store(error)) => self.complain(&error),
            }
            self.pause(RETRY).await?;
        }
    }

    async fn remember(&mut self) -> Result<(), Cut> {
        self.row = self.store.mark_webhook(self.id(), WebhookMark::Passed { to: self.position }).await?;
        self.remembered = Instant::now();
        Ok(())
    }

    /// Until there are events again.
    async fn wait(&mut self, head: &mut watch::Receiver<u64>) -> Result<(), Cut> {
        let disabled = self.row.webhook.state == WebhookState::Disabled;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return Err(Cut::Stopped),
                test = self.tests.recv() => self.test(test).await?,
                changed = head.changed(), if !disabled => {
                    changed.map_err(|_| Cut::Stopped)?;
                    return self.pause(GATHER).await;
                }
                () = time::sleep(REMEMBER) => {
                    if self.position > self.row.cursor {
                        self.remember().await?;
                    }
                }
            }
        }
    }

    async fn pause(&mut self, length: Duration) -> Result<(), Cut> {
        let until = Instant::now() + length;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return Err(Cut::Stopped),
                test = self.tests.recv() => self.test(test).await?,
                () = time::sleep_until(until) => return Ok(()),
            }
        }
    }

    /// In turn with all else, so that there is never more than one delivery under way. Changes nothing.
    async fn test(&self, test: Option<Test>) -> Result<(), Cut> {
        // Nobody can ask any more: it was removed.
        let Some(reply) = test else { return Err(Cut::Stopped) };
        let now = clock::now();
        let id = format!("msg_{}_test_{}", self.id(), now.timestamp_micros());
        let error = self.deliver(&Notice::test(id, now)).await?.err();
        let error = error.map(|error| shortened(error.cause()));
        // Who asked may have gone.
        reply.send(WebhookTest { delivered: error.is_none(), error }).ok();
        Ok(())
    }

    fn complain(&self, error: &store::Error) {
        let error = error as &dyn std::error::Error;
        tracing::error!(webhook = %self.id(), error, "a webhook waits for the store");
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST_ERROR).collect()
}

#[cfg(test)]
mod tests;

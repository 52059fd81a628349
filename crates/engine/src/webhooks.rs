//! Webhooks: who outside is told of events. There is no outbox beside the log: each webhook has a cursor into it.
//!
//! `notice` says what is told, `channel` is the seam to how, `post` the way of webhooks, `dispatch` the task that reads the
//! log for one of them, `patience` when it tries again.

mod channel;
mod dispatch;
mod notice;
mod patience;
mod post;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use sandbar_api::{
    Code, CreateWebhook, NewWebhook, Problem, Webhook, WebhookId, WebhookState, WebhookTest,
    webhook::{DEFAULT_KINDS, MAX_WEBHOOKS, check_kinds, check_name},
};
use sandbar_gateway::Target;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::{
    dispatch::{Dispatcher, Test},
    patience::Patience,
    post::Post,
};
use crate::{
    Engine, Inner, clock, ids, problem,
    store::{self, webhook::WebhookRow},
};

/// Tests that may wait for their turn: whoever waits for more waits for longer than a minute.
const TESTS: usize = 1;

/// The tasks of all webhooks there are. In `Inner`.
#[derive(Default)]
pub(crate) struct Webhooks {
    lanes: std::sync::Mutex<BTreeMap<WebhookId, Lane>>,
    /// Held over a change's commit, so that there are never more than there may be.
    changing: Mutex<()>,
}

/// The way to the task of one webhook.
struct Lane {
    stop: CancellationToken,
    tests: mpsc::Sender<Test>,
}

impl Webhooks {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<WebhookId, Lane>) -> T) -> T {
        look(&mut self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Goes on with all webhooks where the last server left them.
pub(crate) async fn start(inner: &Arc<Inner>) -> store::Result<()> {
    for row in inner.store.webhooks().await? {
        begin(inner, row);
    }
    Ok(())
}

fn begin(inner: &Arc<Inner>, row: WebhookRow) {
    let (stop, (tests, asked)) = (inner.closing.child_token(), mpsc::channel(TESTS));
    let Webhook { id, url, .. } = row.webhook.clone();
    let channel = Post { inner: inner.clone(), id: id.clone(), url, sealed: row.sealed.clone() };
    let dispatcher =
        Dispatcher::new(inner.store.clone(), Arc::new(channel), Patience::default(), row, stop.clone(), asked);
    inner.tasks.spawn(dispatcher.run());
    inner.webhooks.with(|lanes| lanes.insert(id, Lane { stop, tests }));
}

impl Engine {
    /// From now on; the answer is the only time its secret is shown.
    pub async fn add_webhook(&self, request: CreateWebhook) -> Result<NewWebhook, Problem> {
        let CreateWebhook { url, name, mut kinds } = request;
        let target: Target = url.parse().map_err(|bad| {
            let fix = "Give one like https://hooks.example.org/path, without user name and fragment.";
            Problem::new(Code::BadWebhook, format!("The URL is not usable: {bad}."), fix)
        })?;
        if let Some(name) = &name {
            check_name(name)?;
        }
        check_kinds(&kinds)?;
        if kinds.is_empty() {
            kinds = DEFAULT_KINDS.map(str::to_owned).to_vec();
        }
        kinds.sort_unstable();
        kinds.dedup();
        let created_at = clock::now();
        let id = ids::webhook(created_at)?;
        let name = name.unwrap_or_else(|| ids::default_webhook_name(&id));
        let (sealed, secret) = post::secret(&self.inner.gates.vault, &id, &url)?;
        let webhook = Webhook {
            id,
            name,
            url,
            kinds,
            state: WebhookState::Ok,
            created_at,
            delivered_at: None,
            failing_since: None,
            attempts: 0,
            last_error: None,
        };
        let inner = self.inner.clone();
        let added = self.inner.finish(async move { add(&inner, &webhook, &sealed, &target.place()).await });
        Ok(NewWebhook { webhook: added.await?, secret })
    }

    pub async fn webhooks(&self) -> Result<Vec<Webhook>, Problem> {
        Ok(self.inner.store.webhooks().await?.into_iter().map(|row| row.webhook).collect())
    }

    /// By id or name.
    pub async fn webhook(&self, text: &str) -> Result<Webhook, Problem> {
        let found = self.webhooks().await?.into_iter().find(|one| one.id.as_str() == text || one.name == text);
        found.ok_or_else(|| unknown(text))
    }

    /// Nothing is sent any more; what is under way is cut off.
    pub async fn remove_webhook(&self, text: &str) -> Result<(), Problem> {
        let (id, inner, text) = (self.webhook(text).await?.id, self.inner.clone(), text.to_owned());
        let removed = self.inner.finish(async move {
            let _alone = inner.webhooks.changing.lock().await;
            inner.store.remove_webhook(&id).await.map_err(|error| match error {
                store::Error::Missing(_) => unknown(&text),
                error => error.into(),
            })?;
            if let Some(lane) = inner.webhooks.with(|lanes| lanes.remove(&id)) {
                lane.stop.cancel();
            }
            Ok(())
        });
        removed.await
    }

    /// Sends a notice of type `webhook.test` when it is its turn, and tells what became of it. Tried once.
    pub async fn test_webhook(&self, text: &str) -> Result<WebhookTest, Problem> {
        let id = self.webhook(text).await?.id;
        let tests = self.inner.webhooks.with(|lanes| lanes.get(&id).map(|lane| lane.tests.clone()));
        let (reply, outcome) = oneshot::channel();
        tests.ok_or_else(|| unknown(text))?.try_send(reply).map_err(|error| match error {
            mpsc::error::TrySendError::Closed(_) => unknown(text),
            mpsc::error::TrySendError::Full(_) => Problem::new(
                Code::TooMany,
                "Another test of this webhook waits already.",
                "Wait until it has ended, a minute at most.",
            ),
        })?;
        outcome.await.map_err(|_| match self.inner.closing.is_cancelled() {
            true => problem::shutting_down(),
            false => unknown(text),
        })
    }
}

async fn add(inner: &Arc<Inner>, webhook: &Webhook, sealed: &[u8], place: &str) -> Result<Webhook, Problem> {
    let _alone = inner.webhooks.changing.lock().await;
    if inner.webhooks.with(|lanes| lanes.len()) >= MAX_WEBHOOKS as usize {
        return Err(Problem::new(
            Code::TooMany,
            format!("There are {MAX_WEBHOOKS} webhooks already."),
            "Remove one first; `sandbar webhook ls` shows them.",
        ));
    }
    let row = inner.store.add_webhook(webhook, sealed, place).await.map_err(|error| match error {
        store::Error::NameTaken(name) => Problem::new(
            Code::NameTaken,
            format!("Another webhook is called `{name}`."),
            "Choose another name, or remove that webhook first.",
        ),
        error => error.into(),
    })?;
    let added = row.webhook.clone();
    begin(inner, row);
    Ok(added)
}

fn unknown(text: &str) -> Problem {
    Problem::new(
        Code::UnknownWebhook,
        format!("There is no webhook `{}`.", text.escape_debug()),
        "`sandbar webhook ls` shows those there are.",
    )
}

//! The task of one webhook over a real log and a scripted channel.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use chrono::{TimeDelta, Utc};
use sandbar_api::{SandboxId, Webhook};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::store::{GateStore as _, WebhookStore as _, gate::FactRow, sqlite::SqliteStore};

type Tested = Result<(), Box<dyn std::error::Error>>;

#[derive(Clone)]
enum Answer {
    Fails,
    Gone,
    /// It has taken the notice, and nobody ever hears of it.
    Hangs,
    After(Duration),
}

/// Takes everything, after the answers it was given.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    seen: Mutex<Vec<(String, String)>>,
    under_way: AtomicUsize,
}

#[async_trait]
impl Channel for Script {
    async fn deliver(&self, notice: &Notice) -> Result<(), Undelivered> {
        assert_eq!(self.under_way.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push((notice.id.clone(), notice.kind.clone()));
        let outcome = match answer {
            None => Ok(()),
            Some(Answer::Fails) => Err(Undelivered::later("nobody is there")),
            Some(Answer::Gone) => Err(Undelivered::Gone { cause: "410".into() }),
            Some(Answer::Hangs) => std::future::pending().await,
            Some(Answer::After(pause)) => {
                time::sleep(pause).await;
                Ok(())
            }
        };
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
}

struct Bed {
    store: Arc<SqliteStore>,
    id: WebhookId,
    _home: TempDir,
}

struct Running {
    script: Arc<Script>,
    stop: CancellationToken,
    tests: mpsc::Sender<Test>,
    task: JoinHandle<()>,
}

fn impatient(in_all: TimeDelta) -> Patience {
    Patience { first: Duration::from_millis(1), most: Duration::from_millis(4), in_all, at_least: 1 }
}

impl Bed {
    async fn new(kinds: &[&str]) -> Result<Self, Box<dyn std::error::Error>> {
        let home = sandbar_test_harness::scratch()?;
        let store = Arc::new(SqliteStore::open(home.path()).await?);
        let id = ids::webhook(clock::now())?;
        let webhook = Webhook {
            id: id.clone(),
            name: "one".into(),
            url: "https://a.example/".into(),
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            state: WebhookState::Ok,
            created_at: clock::now(),
            delivered_at: None,
            failing_since: None,
            attempts: 0,
            last_error: None,
        };
        store.add_webhook(&webhook, b"", "a.example").await?;
        Ok(Self { store, id, _home: home })
    }

    async fn happen(&self, kinds: &[&'static str]) -> store::Result<()> {
        let sandbox = SandboxId::from_parts(1, [1; 10]);
        let fact = |kind: &&'static str| FactRow { kind, sandbox: sandbox.clone(), data: json!({}) };
        self.store.append_facts(kinds.iter().map(fact).collect()).await
    }

    async fn row(&self) -> Result<WebhookRow, Box<dyn std::error::Error>> {
        Ok(self.store.webhook(&self.id).await?.ok_or("it is gone")?)
    }

    async fn run(&self, answers: &[Answer], in_all: TimeDelta) -> Result<Running, Box<dyn std::error::Error>> {
        let script = Arc::new(Script { answers: Mutex::new(answers.iter().cloned().collect()), ..Script::default() });
        let (tests, asked) = mpsc::channel(4);
        let dispatcher = Dispatcher { tests: asked, ..self.dispatcher(script.clone(), in_all).await? };
        Ok(Running { script, stop: dispatcher.stop.clone(), tests, task: tokio::spawn(dispatcher.run()) })
    }

    /// Nobody can ask it for a test.
    async fn dispatcher(
        &self,
        script: Arc<Script>,
        in_all: TimeDelta,
    ) -> Result<Dispatcher, Box<dyn std::error::Error>> {
        let (stop, (_, asked)) = (CancellationToken::new(), mpsc::channel(1));
        Ok(Dispatcher::new(self.store.clone(), script, impatient(in_all), self.row().await?, stop, asked))
    }

    async fn told(&self) -> store::Result<Vec<Event>> {
        self.told_after(0).await
    }

    async fn told_after(&self, after: u64) -> store::Result<Vec<Event>> {
        let mut events = self.store.events(after, 5000, None).await?;
        events.retain(|event| event.kind.starts_with("webhook.") && event.kind != "webhook.added");
        Ok(events)
    }
}

impl Running {
    fn seen(&self) -> Vec<(String, String)> {
        self.script.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn numbers(&self) -> Vec<String> {
        self.seen().into_iter().map(|(id, _)| id.rsplit('_').next().unwrap_or_default().to_owned()).collect()
    }

    async fn until_seen(&self, count: usize) -> Result<(), String> {
        soon(|| async { (self.seen().len() >= count).then_some(()) }).await
    }

    async fn end(self) -> Tested {
        self.stop.cancel();
        Ok(time::timeout(Duration::from_secs(30), self.task).await??)
    }
}

async fn soon<T, F: Future<Output = Option<T>>>(mut look: impl FnMut() -> F) -> Result<T, String> {
    for _ in 0..3000 {
        if let Some(seen) = look().await {
            return Ok(seen);
        }
        time::sleep(Duration::from_millis(10)).await;
    }
    Err("it did not happen within 30 s".into())
}

const DAYS: TimeDelta = TimeDelta::days(3);

#[tokio::test]
async fn what_is_wanted_is_told_in_order_and_remembered() -> Tested {
    let bed = Bed::new(&["approval.", "process.crash_loop"]).await?;
    bed.happen(&["net.opened", "approval.opened", "process.exited", "process.crash_loop", "approvals.x"]).await?;
    let running = bed.run(&[], DAYS).await?;
    running.until_seen(2).await?;
    let expected = [3, 5].map(|seq| format!("msg_{}_{seq}", bed.id));
    let ids: Vec<_> = running.seen().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, expected);
    bed.happen(&["approval.expired"]).await?;
    running.until_seen(3).await?;
    running.end().await?;
    let row = bed.row().await?;
    assert!(row.webhook.delivered_at.is_some() && row.cursor == 7, "{row:?}");
    let again = bed.run(&[], DAYS).await?;
    bed.happen(&["approval.opened"]).await?;
    again.until_seen(1).await?;
    assert_eq!(again.numbers(), ["8"], "nothing twice");
    again.end().await
}

#[tokio::test]
async fn what_was_taken_and_not_written_down_comes_again_with_its_id() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened"]).await?;
    let killed = bed.run(&[Answer::Hangs], DAYS).await?;
    killed.until_seen(1).await?;
    killed.task.abort();
    let next = bed.run(&[], DAYS).await?;
    next.until_seen(1).await?;
    assert_eq!(next.seen(), killed.seen());
    next.end().await
}

#[tokio::test]
async fn a_target_that_is_down_is_tried_until_it_is_back() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened", "approval.expired"]).await?;
    let running = bed.run(&vec![Answer::Fails; 100_000], DAYS).await?;
    let failing = soon(|| async { bed.row().await.ok().filter(|row| row.webhook.attempts >= 3) }).await?;
    assert_eq!(failing.webhook.state, WebhookState::Failing);
    assert_eq!(failing.webhook.last_error.as_deref(), Some("nobody is there"));
    running.script.answers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    soon(|| async { (running.numbers().last().map(String::as_str) == Some("3")).then_some(()) }).await?;
    let numbers = running.numbers();
    let before = numbers.iter().take_while(|number| *number == "2").count();
    assert!(before > 3 && before + 1 == numbers.len(), "nothing overtakes: {numbers:?}");
    running.end().await?;
    let row = bed.row().await?;
    assert_eq!((row.webhook.state, row.webhook.attempts, row.webhook.last_error), (WebhookState::Ok, 0, None));
    assert_eq!(bed.told().await?, []);
    Ok(())
}

#[tokio::test]
async fn how_long_it_fails_counts_over_restarts_and_ends_with_an_event() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened", "approval.expired"]).await?;
    let first = bed.run(&vec![Answer::Fails; 100_000], DAYS).await?;
    first.until_seen(2).await?;
    first.end().await?;
    let failed_at = bed.row().await?.first_failed_at;
    // The next server finds that its time is over.
    let next = bed.run(&[Answer::Fails], TimeDelta::zero()).await?;
    next.until_seen(2).await?;
    assert_eq!(next.numbers(), ["2", "3"], "the next one has its own chance");
    next.end().await?;
    assert!(failed_at.is_some());
    let told = bed.told().await?;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].kind, "webhook.given_up");
    assert_eq!((&told[0].data["seq"], &told[0].data["kind"]), (&json!(2), &json!("approval.opened")));
    assert_eq!(told[0].data["reason"], "nobody is there");
    Ok(())
}

#[tokio::test]
async fn what_was_pruned_is_said_to_be_missed() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened", "net.opened"]).await?;
    bed.store.prune(Utc::now() + TimeDelta::seconds(1)).await?;
    bed.happen(&["approval.expired"]).await?;
    let running = bed.run(&[], DAYS).await?;
    running.until_seen(1).await?;
    assert_eq!(running.numbers(), ["4"]);
    let told = bed.told_after(3).await?;
    assert_eq!(told.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["webhook.missed"]);
    assert_eq!((&told[0].data["from"], &told[0].data["to"]), (&json!(2), &json!(3)));
    running.end().await
}

#[tokio::test]
async fn a_target_that_is_gone_gets_nothing_any_more_but_tests() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened", "approval.opened"]).await?;
    let running = bed.run(&[Answer::Gone], DAYS).await?;
    let disabled = |row: &WebhookRow| row.webhook.state == WebhookState::Disabled;
    soon(|| async { bed.row().await.ok().filter(disabled) }).await?;
    bed.happen(&["approval.opened"]).await?;
    let (reply, outcome) = oneshot::channel();
    running.tests.send(reply).await?;
    assert_eq!(outcome.await?, WebhookTest { delivered: true, error: None });
    assert_eq!(running.seen().last().map(|(_, kind)| kind.as_str()), Some("webhook.test"));
    running.end().await?;
    let next = bed.run(&[], DAYS).await?;
    let (reply, outcome) = oneshot::channel();
    next.tests.send(reply).await?;
    outcome.await?;
    assert_eq!(next.seen().len(), 1, "it stays disabled");
    assert_eq!(bed.told().await?.len(), 1);
    next.end().await
}

#[tokio::test]
async fn tests_take_their_turn_and_change_nothing() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened"]).await?;
    let running = bed.run(&[Answer::After(Duration::from_millis(100)), Answer::Fails], DAYS).await?;
    running.until_seen(1).await?;
    let (reply, outcome) = oneshot::channel();
    running.tests.send(reply).await?;
    let outcome = outcome.await?;
    assert_eq!(outcome, WebhookTest { delivered: false, error: Some("nobody is there".into()) });
    assert_eq!(bed.row().await?.webhook.state, WebhookState::Ok);
    running.end().await
}

#[tokio::test]
async fn whoever_is_removed_or_stopped_lets_go_at_once() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["approval.opened"]).await?;
    let stopped = bed.run(&[Answer::Hangs], DAYS).await?;
    stopped.until_seen(1).await?;
    stopped.end().await?;
    assert_eq!(bed.row().await?.cursor, 1, "it was not told");

    let removed = bed.run(&[Answer::After(Duration::from_millis(50))], DAYS).await?;
    removed.until_seen(1).await?;
    bed.store.remove_webhook(&bed.id).await?;
    time::timeout(Duration::from_secs(30), removed.task).await??;
    Ok(())
}

#[tokio::test]
async fn what_is_not_for_it_is_seldom_written_down() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    bed.happen(&["net.opened"; 20]).await?;
    let running = bed.run(&[], DAYS).await?;
    // Its turn comes after all that was there was looked at.
    let (reply, outcome) = oneshot::channel();
    running.tests.send(reply).await?;
    outcome.await?;
    assert_eq!(bed.row().await?.cursor, 1);
    bed.happen(&["net.opened"; 1500]).await?;
    soon(|| async { bed.row().await.ok().filter(|row| row.cursor >= STRIDE) }).await?;
    running.end().await?;
    assert_eq!(bed.row().await?.cursor, 1521, "at the end it is");
    Ok(())
}

#[tokio::test]
async fn a_little_now_and_then_is_written_down_too() -> Tested {
    let bed = Bed::new(&["approval."]).await?;
    let mut dispatcher = bed.dispatcher(Arc::default(), DAYS).await?;
    // It was never without an event for so long that it would have waited for one.
    dispatcher.remembered = Instant::now().checked_sub(REMEMBER).ok_or("the clock began later")?;
    for (seq, remembered) in [(2, 2), (3, 2)] {
        bed.happen(&["net.opened"]).await?;
        assert!(dispatcher.catch_up().await.is_ok());
        assert_eq!((dispatcher.position, bed.row().await?.cursor), (seq, remembered));
    }
    Ok(())
}

#[tokio::test]
async fn nothing_is_told_about_itself() -> Tested {
    let bed = Bed::new(&["webhook.", "approval."]).await?;
    let sandbox = SandboxId::from_parts(1, [1; 10]);
    let about =
        |id: &str| FactRow { kind: "webhook.given_up", sandbox: sandbox.clone(), data: json!({ "webhook": id }) };
    bed.store.append_facts(vec![about(bed.id.as_str()), about("whk-another")]).await?;
    let running = bed.run(&[], DAYS).await?;
    running.until_seen(1).await?;
    assert_eq!(running.numbers(), ["3"]);
    running.end().await
}

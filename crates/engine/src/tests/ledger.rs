//! The ledger over a real store: nothing passes a limit whatever happens at once, everything is settled once, and a restart forgets nothing.

use std::{path::Path, sync::Arc};

use chrono::Utc;
use sandbar_api::{Event, SandboxId, SessionId, SetBudget};
use sandbar_gateway::{Held, Refused, Reservation, Reserve, Settlement, llm::Usage};
use sandbar_policy::{Amount, Price, Short};
use serde_json::json;
use tokio::task::JoinSet;

use super::{Tested, disk::SmallDisk, elsewhere, soon};
use crate::{
    gate::Ledger,
    store::{
        NewSandbox, Store,
        gate::{CallRow, LedgerEntry},
        sqlite::SqliteStore,
        suite::{Dice, new_sandbox},
    },
};

/// A dollar for a million tokens, whatever they are.
const PRICE: Price = Price { input: 1_000_000, output: 1_000_000, cached_input: 1_000_000, cache_write: 1_000_000 };

struct Books {
    ledger: Ledger,
    store: Arc<dyn Store>,
}

impl Books {
    async fn open(home: &Path) -> Result<Self, crate::store::Error> {
        let store = elsewhere::store(home).await?;
        Ok(Self { ledger: Ledger::open(store.clone()).await?, store })
    }

    async fn session(&self, name: &str, parent: Option<&SessionId>) -> Result<SessionId, crate::store::Error> {
        let new = NewSandbox { parent: parent.cloned(), ..new_sandbox(name) };
        let session = new.row.sandbox.session.clone();
        self.store.create_sandbox(new).await?;
        Ok(session)
    }

    async fn limit(&self, session: &SessionId, tokens: u64) -> Result<(), crate::store::Error> {
        self.ledger.set_budget(session, &SetBudget { tokens: Some(tokens), ..SetBudget::default() }).await
    }

    async fn reserve(&self, session: &SessionId, tokens: u64) -> Result<Reservation, Refused> {
        reserve(&self.ledger, session, tokens).await
    }

    async fn close(self) {
        self.ledger.close().await;
        self.store.close().await;
    }
}

async fn reserve(ledger: &Ledger, session: &SessionId, tokens: u64) -> Result<Reservation, Refused> {
    let bound = Amount { tokens, micros: tokens };
    let call =
        Reserve { model: "m".into(), upstream: "u".into(), bound, price: Some(PRICE), budgeted: true, priced: true };
    ledger.reserve(session, &SandboxId::from_parts(1, [1; 10]), call).await
}

pub(super) fn used(input: u64, output: u64) -> Settlement {
    let usage = Some(Usage { input, output, ..Usage::default() });
    Settlement { usage, status: Some(200), ..Settlement::default() }
}

pub(super) fn free() -> Settlement {
    Settlement { free: true, status: Some(503), ..Settlement::default() }
}

#[tokio::test]
async fn fifty_at_once_never_pass_a_small_budget() -> Tested {
    const LIMIT: u64 = 20_000;
    let home = sandbar_test_harness::scratch()?;
    let books = Arc::new(Books::open(home.path()).await?);
    let session = books.session("a", None).await?;
    books.limit(&session, LIMIT).await?;
    let _known = books.ledger.know(&session).await?;
    let mut tasks = JoinSet::new();
    for number in 0..50 {
        let (books, session) = (books.clone(), session.clone());
        tasks.spawn(async move {
            let (mut dice, mut counted, mut made) = (Dice(number), 0, 0);
            for _ in 0..20 {
                let asked = 1 + dice.roll(400);
                if dice.roll(10) == 0 {
                    // Somebody who gives up, at any time.
                    tokio::select! {
                        biased;
                        reserved = books.reserve(&session, asked) => {
                            if let Ok(reservation) = reserved { books.ledger.settle(reservation, free()) }
                        }
                        () = tokio::task::yield_now() => {}
                    }
                    continue;
                }
                match books.reserve(&session, asked).await {
                    Ok(reservation) => {
                        let spent = books.ledger.spent(&session).map(|spent| spent.used.tokens + spent.reserved.tokens);
                        assert!(spent.is_some_and(|spent| spent <= LIMIT), "{spent:?}");
                        made += 1;
                        tokio::task::yield_now().await;
                        let (end, tokens) = match dice.roll(4) {
                            0 => (free(), 0),
                            1 => (Settlement::default(), asked),
                            _ => {
                                let input = dice.roll(asked + 1);
                                (used(input, 0), input)
                            }
                        };
                        books.ledger.settle(reservation.clone(), end);
                        // A second time changes nothing.
                        books.ledger.settle(reservation, used(1_000_000, 0));
                        counted += tokens;
                    }
                    Err(Refused::Short { short: Short::Tokens { used, reserved, asked, limit }, .. }) => {
                        assert!(used + reserved + asked > limit && used + reserved <= limit);
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            (counted, made)
        });
    }
    let (mut counted, mut made) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let (tokens, calls) = done?;
        (counted, made) = (counted + tokens, made + calls);
    }
    assert!(made > 50, "{made} calls");
    let spent = books.ledger.spent(&session).ok_or("it is known")?;
    assert_eq!((spent.used.tokens, spent.reserved), (counted, Amount::default()));
    assert!(counted <= LIMIT);
    books.ledger.close().await;
    assert_eq!(books.store.used(&session).await?, (counted, counted));
    assert_eq!(books.store.held_calls().await?, []);
    assert!(matches!(books.reserve(&session, 1).await, Err(Refused::Unavailable(_))), "nothing after the end");
    Ok(())
}

#[tokio::test]
async fn a_child_spends_what_all_above_it_have() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let top = books.session("top", None).await?;
    let middle = books.session("middle", Some(&top)).await?;
    let low = books.session("low", Some(&middle)).await?;
    let known = books.ledger.know(&low).await?;
    assert_eq!(books.ledger.budget(&low), Held::Counted);
    books.limit(&top, 1000).await?;
    books.limit(&low, 5000).await?;
    assert_eq!(books.ledger.budget(&low), Held::Budget { left: 1000, priced: false });
    assert_eq!(books.ledger.budget(&middle), Held::Budget { left: 1000, priced: false });

    let held = books.reserve(&low, 600).await.map_err(|refused| format!("{refused:?}"))?;
    let refused = books.reserve(&middle, 500).await;
    let short = Short::Tokens { used: 0, reserved: 600, asked: 500, limit: 1000 };
    assert_eq!(refused, Err(Refused::Short { session: top.to_string(), short }), "whose budget it is");
    assert_eq!(books.ledger.spent(&middle).map(|spent| spent.reserved.tokens), Some(600), "all of them or none");
    books.ledger.settle(held, used(100, 50));
    for session in [&top, &middle, &low] {
        let spent = books.ledger.spent(session).ok_or("it is known")?;
        assert_eq!((spent.used, spent.reserved), (Amount { tokens: 150, micros: 150 }, Amount::default()));
    }
    // The limit may be lower than what was used.
    let held = books.reserve(&middle, 850).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, used(850, 0));
    books.limit(&top, 900).await?;
    assert_eq!(books.ledger.budget(&low), Held::Budget { left: 0, priced: false });
    assert_eq!(books.ledger.spent(&low).map(|spent| spent.used.tokens), Some(150));
    books.limit(&top, 1850).await?;
    assert_eq!(books.ledger.budget(&low), Held::Budget { left: 850, priced: false });

    books.ledger.set_budget(&low, &SetBudget { usd: Some(0.000_2), ..SetBudget::default() }).await?;
    assert_eq!(books.ledger.budget(&low), Held::Budget { left: 850, priced: true });
    let refused = books.reserve(&low, 51).await;
    let short = Short::Micros { used: 150, reserved: 0, asked: 51, limit: 200 };
    assert_eq!(refused, Err(Refused::Short { session: low.to_string(), short }));
    let bound = Amount { tokens: 1, micros: 0 };
    let unpriced =
        Reserve { model: "m".into(), upstream: "u".into(), bound, price: None, budgeted: true, priced: true };
    let refused = books.ledger.reserve(&low, &SandboxId::from_parts(1, [1; 10]), unpriced).await;
    assert!(matches!(&refused, Err(Refused::Unavailable(cause)) if cause.contains("no price")), "{refused:?}");

    // Nobody needs it any more, and the store has it all.
    drop(known);
    let gone = || async { books.ledger.spent(&top).is_none().then_some(()) };
    soon(gone).await?;
    assert_eq!(books.ledger.budget(&low), Held::Budget { left: 0, priced: true }, "fail closed");
    assert!(matches!(books.reserve(&low, 1).await, Err(Refused::Unavailable(_))));
    let _known = books.ledger.know(&middle).await?;
    assert_eq!(books.ledger.spent(&top).map(|spent| spent.used.tokens), Some(1000));
    assert_eq!(books.ledger.spent(&low), None);
    let _low = books.ledger.know(&low).await?;
    assert_eq!(books.ledger.spent(&low).map(|spent| spent.used.micros), Some(150));
    let nobody = new_sandbox("x").row.sandbox.session;
    assert!(books.ledger.know(&nobody).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_vendor_that_reports_too_much_is_clamped_and_told() -> Tested {
    const LIE: u64 = 1 << 40;
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let session = books.session("a", None).await?;
    books.limit(&session, 1000).await?;
    let _known = books.ledger.know(&session).await?;
    let held = books.reserve(&session, 49).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, used(20, 9));
    let mut all = Amount { tokens: 29, micros: 29 };
    let lies = [(LIE, LIE), (u64::MAX, u64::MAX), (0, 50), (50, 0), (49, 1)];
    for (input, output) in lies {
        let held = books.reserve(&session, 49).await.map_err(|refused| format!("{refused:?}"))?;
        books.ledger.settle(held, used(input, output));
        all = Amount { tokens: all.tokens + 49, micros: all.micros + 49 };
        assert_eq!(books.ledger.spent(&session).map(|spent| (spent.used, spent.reserved.tokens)), Some((all, 0)));
    }
    books.ledger.flush().await;
    assert_eq!(books.store.used(&session).await?, (all.tokens, all.micros));
    let events = books.store.events(0, 100, None).await?;
    let calls: Vec<_> = events.iter().filter(|event| event.kind == "llm.call").collect();
    let flags: Vec<_> = calls.iter().map(|call| call.data["estimated"] == true).collect();
    assert_eq!(flags, [false, true, true, true, true, true], "the first one is the control");
    assert!(calls[1].data["note"].as_str().is_some_and(|note| note.contains("reports 2199023255552 tokens")));
    let sums = |call: &&Event| call.data["input_tokens"].as_u64().zip(call.data["output_tokens"].as_u64());
    assert_eq!(calls.iter().map(sums).collect::<Vec<_>>()[1..4], [Some((0, 49)), Some((0, 49)), Some((0, 49))]);
    let told: Vec<_> = events.iter().filter(|event| event.kind == "llm.usage_clamped").collect();
    assert_eq!(told.len(), lies.len());
    assert_eq!((told[0].seq, &told[0].sandbox), (calls[1].seq + 1, &calls[1].sandbox));
    assert_eq!(
        told[0].data,
        json!({
            "call": calls[1].data["call"], "session": session.as_str(), "model": "m", "upstream": "u",
            "reported_tokens": 2 * LIE, "counted_tokens": 49, "reported_usd": 2_199_023.255_552, "counted_usd": 0.000_049,
        })
    );
    Ok(())
}

/// What is held is an estimate then; a call may use more, as one over stored input does.
#[tokio::test]
async fn without_a_budget_only_what_no_model_can_use_is_clamped() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let session = books.session("a", None).await?;
    let _known = books.ledger.know(&session).await?;
    let bound = Amount { tokens: 49, micros: 49 };
    let call =
        Reserve { model: "m".into(), upstream: "u".into(), bound, price: Some(PRICE), budgeted: false, priced: false };
    let mut all = 0;
    for (input, counts) in [(1_000_000, 1_000_000), (1 << 40, 1 << 24)] {
        let reserved = books.ledger.reserve(&session, &SandboxId::from_parts(1, [1; 10]), call.clone()).await;
        books.ledger.settle(reserved.map_err(|refused| format!("{refused:?}"))?, used(input, 0));
        all += counts;
        let used = Amount { tokens: all, micros: all };
        assert_eq!(books.ledger.spent(&session).map(|spent| spent.used), Some(used));
    }
    books.ledger.flush().await;
    let events = books.store.events(0, 100, None).await?;
    assert_eq!(events.iter().filter(|event| event.kind == "llm.usage_clamped").count(), 1);
    Ok(())
}

#[tokio::test]
async fn a_rate_is_kept_across_a_restart() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let session = books.session("a", None).await?;
    books.ledger.set_budget(&session, &SetBudget { per_minute: Some(100), ..SetBudget::default() }).await?;
    let known = books.ledger.know(&session).await?;
    assert_eq!(books.ledger.budget(&session), Held::Budget { left: 100, priced: false });
    let held = books.reserve(&session, 90).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, used(80, 0));
    drop(known);
    books.close().await;

    let books = Books::open(home.path()).await?;
    let _known = books.ledger.know(&session).await?;
    assert_eq!(books.ledger.spent(&session).map(|spent| spent.used), Some(Amount { tokens: 80, micros: 80 }));
    match books.reserve(&session, 21).await {
        Err(Refused::Short { short: Short::Rate { retry_after_ms, .. }, .. }) => {
            assert!((30_000..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
        }
        other => panic!("{other:?}"),
    }
    let held = books.reserve(&session, 20).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, free());
    Ok(())
}

/// A bound that was computed while nothing held is only an estimate.
#[tokio::test]
async fn what_was_planned_before_a_budget_came_is_planned_again() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let top = books.session("a", None).await?;
    let low = books.session("b", Some(&top)).await?;
    let _known = books.ledger.know(&low).await?;
    let sandbox = SandboxId::from_parts(1, [1; 10]);
    let planned = |budgeted, priced| {
        let bound = Amount { tokens: 1, micros: 1 };
        let call = Reserve { model: "m".into(), upstream: "u".into(), bound, price: Some(PRICE), budgeted, priced };
        books.ledger.reserve(&low, &sandbox, call)
    };
    let held = planned(false, false).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, free());
    books.limit(&top, 1000).await?;
    assert_eq!(planned(false, false).await, Err(Refused::Changed), "of a session above it, too");
    let held = planned(true, false).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, free());
    books.ledger.set_budget(&low, &SetBudget { usd: Some(1.0), ..SetBudget::default() }).await?;
    assert_eq!(planned(true, false).await, Err(Refused::Changed), "prices were not looked at");
    let held = planned(true, true).await.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(held, free());
    assert_eq!(books.ledger.spent(&top).map(|spent| spent.reserved), Some(Amount::default()));
    Ok(())
}

/// Where any model is passed on, a sandbox could write books full of its name.
#[tokio::test]
async fn names_are_kept_short() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let session = books.session("a", None).await?;
    let _known = books.ledger.know(&session).await?;
    let (model, bound) = ("\u{fc}x".repeat(1 << 20), Amount::default());
    let call = Reserve { model, upstream: "u".into(), bound, price: None, budgeted: false, priced: false };
    let reserved = books.ledger.reserve(&session, &SandboxId::from_parts(1, [1; 10]), call).await;
    books.ledger.flush().await;
    let held = books.store.held_calls().await?;
    assert_eq!(held.iter().map(|call| call.model.len()).collect::<Vec<_>>(), [255], "whole characters");
    let note = Some("n".repeat(1 << 20));
    let reservation = reserved.map_err(|refused| format!("{refused:?}"))?;
    books.ledger.settle(reservation, Settlement { note, ..used(1, 0) });
    books.ledger.close().await;
    let told = books.store.events(0, 100, None).await?;
    let length = told.last().and_then(|event| event.data["note"].as_str()).map(str::len);
    assert_eq!(length, Some(256));
    Ok(())
}

/// The store never heard of it: the server died before it came to that.
#[tokio::test]
async fn what_only_the_journal_has_stands_too() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let session = books.session("a", None).await?;
    let _known = books.ledger.know(&session).await?;
    // As it was when the server died: before the next commit.
    books.reserve(&session, 700).await.map_err(|refused| format!("{refused:?}"))?;
    let journal = home.path().join("ledger-1.journal");
    let text = std::fs::read(&journal)?;
    books.ledger.flush().await;
    assert_eq!(books.store.held_calls().await?.len(), 1);
    assert_eq!(std::fs::metadata(&journal)?.len(), 0, "the store has it");
    let other = sandbar_test_harness::scratch()?;
    let before = Books::open(other.path()).await?;
    before.close().await;
    std::fs::write(other.path().join("ledger-7.journal"), text)?;

    let books = Books::open(other.path()).await?;
    assert_eq!(books.store.used(&session).await?, (700, 700));
    assert_eq!(books.store.held_calls().await?, []);
    assert!(!other.path().join("ledger-7.journal").exists());
    Ok(())
}

/// A server that dies leaves calls held: they may have been made, so they stand.
#[tokio::test]
async fn what_a_dead_server_held_stands_estimated() -> Tested {
    let home = sandbar_test_harness::scratch()?;
    let books = Books::open(home.path()).await?;
    let top = books.session("top", None).await?;
    let session = books.session("a", Some(&top)).await?;
    books.limit(&top, 1000).await?;
    let known = books.ledger.know(&session).await?;
    books.reserve(&session, 700).await.map_err(|refused| format!("{refused:?}"))?;
    drop((known, books));

    let books = Books::open(home.path()).await?;
    let _known = books.ledger.know(&session).await?;
    assert_eq!(books.ledger.budget(&session), Held::Budget { left: 300, priced: false });
    assert_eq!(books.store.used(&top).await?, (700, 700));
    assert_eq!(books.store.held_calls().await?, []);
    let events = books.store.events(0, 100, None).await?;
    let ended = events.iter().find(|event| event.kind == "llm.call").ok_or("it was told")?;
    assert_eq!((&ended.data["estimated"], &ended.data["total_tokens"]), (&true.into(), &700.into()));
    let head = *books.store.head().borrow();
    drop(_known);
    books.close().await;
    let books = Books::open(home.path()).await?;
    assert_eq!(*books.store.head().borrow(), head, "once");
    Ok(())
}

#[tokio::test]
async fn on_a_full_disk_nothing_begins_and_what_began_ends() -> Tested {
    let Some(disk) = SmallDisk::new("on_a_full_disk_nothing_begins_and_what_began_ends")? else { return Ok(()) };
    let books = Books::open(disk.path()).await?;
    let session = books.session("a", None).await?;
    books.limit(&session, 100_000).await?;
    let _known = books.ledger.know(&session).await?;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(books.reserve(&session, 100).await.map_err(|refused| format!("{refused:?}"))?);
    }
    disk.fill()?;
    // The log may reuse space of its own for a while.
    let refused = loop {
        match books.reserve(&session, 100).await {
            Ok(reservation) => held.push(reservation),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(&refused, Refused::Unavailable(cause) if cause.contains("disk is full")), "{refused:?}");
    let reserved = held.len() as u64 * 100;
    assert_eq!(books.ledger.spent(&session).map(|spent| spent.reserved.tokens), Some(reserved), "refused is not held");
    let count = held.len() as u64;
    for reservation in held {
        disk.fill()?;
        books.ledger.settle(reservation, used(7, 0));
    }
    let written = || async { books.store.used(&session).await.ok().filter(|used| *used == (count * 7, count * 7)) };
    soon(written).await?;
    assert_eq!(books.store.held_calls().await?, []);
    disk.free()?;
    let again = || async { books.reserve(&session, 100).await.ok() };
    let reservation = soon(again).await?;
    books.ledger.settle(reservation, free());
    Ok(())
}

/// Not even the ballast is left when a server starts after one that died: it starts, lets no call through, and counts what
/// was held as soon as there is room.
#[tokio::test]
async fn a_start_on_a_full_disk_counts_what_was_held_when_there_is_room() -> Tested {
    let name = "a_start_on_a_full_disk_counts_what_was_held_when_there_is_room";
    let Some(disk) = SmallDisk::new(name)? else { return Ok(()) };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(disk.path()).await?);
    let new = new_sandbox("a");
    let (session, sandbox) = (new.row.sandbox.session.clone(), new.row.sandbox.id.clone());
    store.create_sandbox(new).await?;
    let call = |number: u64| CallRow {
        id: format!("llm-{number:05}"),
        session: session.clone(),
        sandbox: sandbox.clone(),
        model: "m".into(),
        upstream: "u".into(),
        began_at: Utc::now(),
        held_tokens: 1,
        held_micros: 1,
    };
    // More than fits into what is left of the log.
    store.write_ledger((0..2000).map(|number| LedgerEntry::Begin(call(number))).collect()).await?;
    std::fs::write(disk.path().join("ballast"), "")?;
    disk.fill()?;
    let ledger = Ledger::open(store.clone()).await?;
    let _known = ledger.know(&session).await?;
    if store.held_calls().await?.is_empty() {
        return Err("there was room all the time".into());
    }
    let refused = reserve(&ledger, &session, 1).await;
    assert!(matches!(&refused, Err(Refused::Unavailable(cause)) if cause.contains("disk is full")), "{refused:?}");
    disk.free()?;
    let counted = || async { ledger.spent(&session).filter(|spent| spent.used.tokens == 2000) };
    soon(counted).await?;
    let reserved = || async { reserve(&ledger, &session, 1).await.ok() };
    soon(reserved).await?;
    Ok(())
}

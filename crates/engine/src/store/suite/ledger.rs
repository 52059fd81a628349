//! The ledger: limits, calls and what they add up to.

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use sandbar_api::{SandboxId, SandboxState, SessionId, SetBudget, UsageBy, UsageRow};
use serde_json::json;

use super::{Home, Outcome, all_events, kinds, new_sandbox, now};
use crate::store::{
    Error, LedgerStore as _, NewSandbox, Result, SessionStore as _, Store,
    gate::{CallEnd, CallRow, LedgerEntry, UsageQuery},
    sessions::{SessionMarks, SessionRow},
};

async fn made(store: &impl Store, name: &str, parent: Option<&SessionId>) -> Result<(SandboxId, SessionId)> {
    let new = NewSandbox { parent: parent.cloned(), ..new_sandbox(name) };
    let (id, session) = (new.row.sandbox.id.clone(), new.row.sandbox.session.clone());
    store.create_sandbox(new).await?;
    Ok((id, session))
}

pub(super) fn begin(id: &str, of: &(SandboxId, SessionId), model: &str, at: DateTime<Utc>) -> LedgerEntry {
    LedgerEntry::Begin(CallRow {
        id: id.into(),
        session: of.1.clone(),
        sandbox: of.0.clone(),
        model: model.into(),
        upstream: "vendor".into(),
        began_at: at,
        held_tokens: 1000,
        held_micros: 50,
    })
}

fn end(id: &str, input: u64, output: u64, micros: u64) -> LedgerEntry {
    let (tokens, ended_at) = (input.saturating_add(output), now());
    let status = Some(200);
    LedgerEntry::End(CallEnd { id: id.into(), ended_at, input, output, tokens, micros, status, ..CallEnd::default() })
}

pub(in crate::store) async fn a_session_keeps_its_limits_and_its_model<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (_, parent) = made(&store, "a", None).await?;
    let new = NewSandbox { parent: Some(parent.clone()), ..new_sandbox("b") };
    let (child, created_at) = (new.row.sandbox.session.clone(), new.row.sandbox.created_at);
    store.create_sandbox(new).await?;
    let mut row = SessionRow {
        id: child.clone(),
        owner: "socket".into(),
        marks: SessionMarks::default(),
        parent: Some(parent),
        limits: SetBudget::default(),
        model: None,
        conversation: None,
        created_at,
        deleted_at: None,
    };
    assert_eq!(store.session(&child).await?, Some(row.clone()));
    row.limits = SetBudget { tokens: Some(u64::MAX), usd: Some(0.1), per_minute: Some(0) };
    row.model = Some("small".into());
    store.set_budget(&child, &row.limits).await?;
    store.set_model(&child, Some("small")).await?;
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.session(&child).await?, Some(row.clone()));
    store.set_budget(&child, &SetBudget::default()).await?;
    store.set_model(&child, None).await?;
    (row.limits, row.model) = (SetBudget::default(), None);
    assert_eq!(store.session(&child).await?, Some(row));
    let told: Vec<_> = all_events(&store).await?.into_iter().skip(4).map(|event| (event.kind, event.data)).collect();
    let limits = json!({ "tokens": u64::MAX, "usd": 0.1, "per_minute": 0 });
    let session = child.as_str();
    assert_eq!(
        told,
        [
            ("budget.set".to_owned(), json!({ "session": session, "limits": limits })),
            ("model.switched".to_owned(), json!({ "session": session, "model": "small" })),
            ("budget.set".to_owned(), json!({ "session": session, "limits": {} })),
            ("model.switched".to_owned(), json!({ "session": session, "model": null })),
        ]
    );

    let nobody = new_sandbox("x").row.sandbox.session;
    assert_eq!(store.session(&nobody).await?, None);
    assert!(matches!(store.set_budget(&nobody, &SetBudget::default()).await, Err(Error::Missing(_))));
    assert!(matches!(store.set_model(&nobody, None).await, Err(Error::Missing(_))));
    assert_eq!(kinds(&store).await?.len(), 8, "nothing is told of what was not done");
    Ok(())
}

pub(in crate::store) async fn calls_are_held_until_they_end_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let of = made(&store, "a", None).await?;
    let (at, before) = (now(), *store.head().borrow());
    store.write_ledger(vec![begin("llm-1", &of, "m", at), begin("llm-2", &of, "m", at)]).await?;
    // Written again, as when nobody knows whether it was.
    store.write_ledger(vec![begin("llm-1", &of, "another", at)]).await?;
    store.write_ledger(vec![]).await?;
    assert_eq!(*store.head().borrow(), before, "a beginning is no event");
    drop(store);
    let store = home.open().await?;
    let held: Vec<_> = store.held_calls().await?.into_iter().map(LedgerEntry::Begin).collect();
    assert_eq!(held, [begin("llm-1", &of, "m", at), begin("llm-2", &of, "m", at)]);

    let ended = CallEnd {
        id: "llm-1".into(),
        ended_at: at,
        estimated: true,
        cached_input: 2,
        tokens: 1000,
        micros: 1_250_000,
        elapsed_ms: 17,
        note: Some("why".into()),
        ..CallEnd::default()
    };
    // In one batch: its end, its end again, and a call that begins and ends there.
    let batch = vec![
        LedgerEntry::End(ended),
        end("llm-1", 5, 5, 5),
        begin("llm-3", &of, "m", at),
        end("llm-3", 3, 4, 5),
        end("llm-nobody", 1, 1, 1),
    ];
    store.write_ledger(batch).await?;
    store.write_ledger(vec![end("llm-3", 9, 9, 9)]).await?;
    assert_eq!(store.held_calls().await?.len(), 1);
    assert_eq!(store.used(&of.1).await?, (1007, 1_250_005));
    let told = store.events(before, 100, Some(&of.0)).await?;
    let data = json!({
        "call": "llm-1", "session": of.1.as_str(), "model": "m", "upstream": "vendor", "input_tokens": 0,
        "cached_input_tokens": 2, "output_tokens": 0, "total_tokens": 1000, "usd": 1.25, "estimated": true,
        "status": null, "ms": 17, "note": "why",
    });
    assert_eq!(told.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["llm.call", "llm.call"]);
    assert_eq!(told[0].data, data);
    assert_eq!((&told[1].data["call"], &told[1].data["estimated"]), (&json!("llm-3"), &json!(false)));
    assert_eq!(*store.head().borrow(), before + 2, "ending twice tells nothing");
    Ok(())
}

pub(in crate::store) async fn what_is_used_counts_for_all_above<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let top = made(&store, "top", None).await?;
    let middle = made(&store, "middle", Some(&top.1)).await?;
    let low = made(&store, "low", Some(&middle.1)).await?;
    let beside = made(&store, "beside", Some(&top.1)).await?;
    let start = now();
    for (number, of) in [&top, &middle, &low, &beside].into_iter().enumerate() {
        let (id, held) = (format!("llm-{number}"), format!("llm-{number}-held"));
        let tokens = 10_u64.pow(number as u32);
        store
            .write_ledger(vec![begin(&id, of, "m", start), end(&id, tokens, 0, tokens), begin(&held, of, "m", start)])
            .await?;
    }
    for (of, sum) in [(&top, 1111), (&middle, 110), (&low, 100), (&beside, 1000)] {
        assert_eq!(store.used(&of.1).await?, (sum, sum));
        let recent = store.settled_since(&of.1, start).await?;
        assert_eq!(recent.iter().map(|(_, tokens)| tokens).sum::<u64>(), sum);
        assert_eq!(store.settled_since(&of.1, now() + TimeDelta::seconds(1)).await?, []);
    }
    let orphan = NewSandbox { parent: Some(new_sandbox("x").row.sandbox.session), ..new_sandbox("orphan") };
    assert!(matches!(store.create_sandbox(orphan).await, Err(Error::Missing(_))));
    Ok(())
}

pub(in crate::store) async fn usage_is_summed_by_model_session_and_day<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (one, two) = (made(&store, "one", None).await?, made(&store, "two", None).await?);
    let day = |number: u32| NaiveDate::from_ymd_opt(2026, 3, number).ok_or("no such day");
    let midnight = day(2)?.and_hms_opt(0, 0, 0).ok_or("no midnight")?.and_utc();
    let just_before = midnight - TimeDelta::microseconds(1);
    let mut failed = end("llm-6", 0, 0, 0);
    let empty = end("llm-7", 0, 0, 0);
    let mut guessed = end("llm-4", 0, 0, 40);
    if let (LedgerEntry::End(failed), LedgerEntry::End(guessed)) = (&mut failed, &mut guessed) {
        failed.status = Some(500);
        (guessed.estimated, guessed.tokens, guessed.status) = (true, 1000, None);
    }
    store
        .write_ledger(vec![
            begin("llm-1", &one, "big", just_before),
            end("llm-1", 1, 2, 300_000),
            begin("llm-2", &one, "small", midnight),
            end("llm-2", 10, 20, 3),
            begin("llm-3", &two, "big", midnight),
            end("llm-3", 100, 200, 3),
            begin("llm-4", &two, "big", midnight),
            guessed,
            begin("llm-5-held", &two, "big", midnight),
            begin("llm-6", &two, "big", midnight),
            failed,
            begin("llm-7", &two, "free", midnight),
            empty,
        ])
        .await?;
    let query =
        |by, session: Option<&SessionId>, from, to| UsageQuery { by, session: session.cloned(), model: None, from, to };
    let (always, later) = (DateTime::UNIX_EPOCH, midnight + TimeDelta::days(1));
    let of = |rows: &[UsageRow]| {
        let name = |row: &UsageRow| row.model.clone().or(row.session.clone()).or(row.day.map(|day| day.to_string()));
        rows.iter().map(|row| (name(row).unwrap_or_default(), row.calls, row.total_tokens)).collect::<Vec<_>>()
    };
    let by_model = store.usage(&query(UsageBy::Model, None, always, later)).await?;
    assert_eq!(of(&by_model), [("big".into(), 3, 1303), ("free".into(), 1, 0), ("small".into(), 1, 30)]);
    let big = UsageRow {
        model: Some("big".into()),
        calls: 3,
        estimated: 1,
        input_tokens: 101,
        output_tokens: 202,
        total_tokens: 1303,
        usd: 0.300_043,
        ..UsageRow::default()
    };
    assert_eq!(by_model[0], big);
    let by_session = store.usage(&query(UsageBy::Session, None, always, later)).await?;
    assert_eq!(of(&by_session), [(one.1.to_string(), 2, 33), (two.1.to_string(), 3, 1300)]);
    let by_day = store.usage(&query(UsageBy::Day, None, always, later)).await?;
    assert_eq!(by_day.iter().map(|row| row.day).collect::<Vec<_>>(), [Some(day(1)?), Some(day(2)?)]);
    assert_eq!(of(&by_day), [("2026-03-01".into(), 1, 3), ("2026-03-02".into(), 4, 1330)]);
    for by in [UsageBy::Model, UsageBy::Session, UsageBy::Day] {
        let rows = store.usage(&query(by, Some(&one.1), always, later)).await?;
        assert_eq!(rows.iter().map(|row| row.total_tokens).sum::<u64>(), 33, "{by:?}");
    }
    let first_day = query(UsageBy::Model, None, just_before, midnight);
    assert_eq!(of(&store.usage(&first_day).await?), [("big".into(), 1, 3)], "up to and without the end");
    let small = UsageQuery { model: Some("small".into()), ..query(UsageBy::Session, None, always, later) };
    assert_eq!(of(&store.usage(&small).await?), [(one.1.to_string(), 1, 30)]);
    assert_eq!(store.usage(&query(UsageBy::Day, None, later, later + TimeDelta::days(1))).await?, []);
    Ok(())
}

/// A vendor may report anything.
pub(in crate::store) async fn sums_do_not_overflow<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let of = made(&store, "a", None).await?;
    for number in 0..100 {
        let id = format!("llm-{number}");
        let entries = vec![begin(&id, &of, "m", now()), end(&id, u64::MAX, u64::MAX, u64::MAX)];
        store.write_ledger(entries).await?;
    }
    let (tokens, micros) = store.used(&of.1).await?;
    assert!(tokens >= 1 << 48 && micros >= 1 << 48, "{tokens} {micros}");
    let all = UsageQuery {
        by: UsageBy::Day,
        session: None,
        model: None,
        from: DateTime::UNIX_EPOCH,
        to: now() + TimeDelta::days(1),
    };
    assert_eq!(store.usage(&all).await?.iter().map(|row| row.calls).sum::<u64>(), 100);
    Ok(())
}

/// Else a parent would get back what a child that is pruned has used.
pub(in crate::store) async fn sessions_that_share_a_budget_go_together<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let top = made(&store, "top", None).await?;
    let child = made(&store, "child", Some(&top.1)).await?;
    let long_ago = now() - TimeDelta::days(200);
    store.write_ledger(vec![begin("llm-1", &child, "m", long_ago), end("llm-1", 70, 7, 5)]).await?;
    let soon = || now() + TimeDelta::hours(1);
    store.transition(&child.0, SandboxState::Deleted, None).await?;
    assert_eq!(store.prune(soon()).await?.sandboxes, 1);
    assert_eq!(store.used(&top.1).await?, (77, 5));
    store.transition(&top.0, SandboxState::Deleted, None).await?;
    assert_eq!(store.prune(soon()).await?.sandboxes, 1);
    assert_eq!((store.session(&top.1).await?, store.session(&child.1).await?), (None, None));

    // The other way round: the parent's sandbox goes first.
    let top = made(&store, "top", None).await?;
    let child = made(&store, "child", Some(&top.1)).await?;
    store.transition(&top.0, SandboxState::Deleted, None).await?;
    assert_eq!(store.prune(soon()).await?.sandboxes, 1);
    assert!(store.session(&top.1).await?.is_some(), "its child spends its budget");
    store.write_ledger(vec![begin("llm-2", &child, "m", now()), end("llm-2", 1, 0, 0)]).await?;
    store.transition(&child.0, SandboxState::Deleted, None).await?;
    assert_eq!(store.prune(soon()).await?.sandboxes, 1);
    assert_eq!((store.session(&top.1).await?, store.session(&child.1).await?), (None, None));
    store.prune(soon()).await?;
    let all = UsageQuery { by: UsageBy::Model, session: None, model: None, from: DateTime::UNIX_EPOCH, to: soon() };
    let kept = store.usage(&all).await?;
    assert_eq!(kept.iter().map(|row| row.total_tokens).sum::<u64>(), 1, "months of usage are kept, not more");
    Ok(())
}

pub(in crate::store) async fn what_was_never_made_leaves_nothing<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let of = made(&store, "a", None).await?;
    let before = kinds(&store).await?;
    store.write_ledger(vec![begin("llm-1", &of, "m", now()), begin("llm-2", &of, "m", now())]).await?;
    store.write_ledger(vec![LedgerEntry::Strike("llm-1".into()), LedgerEntry::Strike("llm-0".into())]).await?;
    let held: Vec<_> = store.held_calls().await?.into_iter().map(|call| call.id).collect();
    assert_eq!(held, ["llm-2"]);
    assert_eq!(kinds(&store).await?, before);
    store.write_ledger(vec![end("llm-2", 1, 2, 3), LedgerEntry::Strike("llm-2".into())]).await?;
    assert_eq!(store.used(&of.1).await?, (3, 3), "what ended stands");
    Ok(())
}

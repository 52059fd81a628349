//! Approvals: closed exactly once, whoever is first, and kept over restarts.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use sandbar_api::{
    Approval, ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalState, Choice, Delivery, ProcessId, Role, SandboxId,
    SessionId,
};
use serde_json::json;

use super::{Home, Outcome, all_events, gate_row, kinds, next, now, sandbox};
use crate::store::{
    ApprovalStore as _, Error, GateStore as _, Store as _,
    gate::{ApprovalFilter, Closed, Consequence, RulesAfter},
};

pub(in crate::store) fn new(sandbox: &SandboxId, deadline: DateTime<Utc>) -> Approval {
    let (millis, random) = next();
    Approval {
        id: ApprovalId::from_parts(millis, random),
        kind: ApprovalKind::Network,
        state: ApprovalState::Open,
        session: SessionId::from_parts(1, [1; 10]),
        sandbox: Some(sandbox.clone()),
        question: "Allow \"one\" to connect to api.github.com:443?".into(),
        choices: vec![Choice::new("once", "Allow"), Choice::new("deny", "Deny")],
        takes_text: true,
        context: json!({ "host": "api.github.com", "port": 443 }),
        answerable_by: Role::Operator,
        created_at: now(),
        deadline,
        on_deadline: "deny".into(),
        answer: None,
        delivery: None,
        reason: None,
        closed_at: None,
    }
}

/// What a terminal asks.
fn typed(sandbox: &SandboxId, process: &ProcessId) -> Approval {
    let context =
        json!({ "process": process.as_str(), "screen": "all that is seen", "keys": { "yes": "y" }, "output": 7 });
    Approval { kind: ApprovalKind::Terminal, context, ..new(sandbox, soon()) }
}

fn soon() -> DateTime<Utc> {
    now() + TimeDelta::minutes(10)
}

fn late() -> DateTime<Utc> {
    now() - TimeDelta::seconds(1)
}

fn answer(choice: &str) -> ApprovalAnswer {
    let text = Some("the words of a person".into());
    ApprovalAnswer { choice: choice.into(), text, masked: false, by: "socket".into(), at: now() }
}

pub(in crate::store) async fn approvals_are_opened_listed_and_kept<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (one, two) = (sandbox(&store, "one").await?, sandbox(&store, "two").await?);
    let opened = [new(&one, soon()), new(&two, soon() - TimeDelta::minutes(1)), new(&one, soon())];
    for approval in &opened {
        store.open_approval(approval).await?;
    }
    assert!(store.open_approval(&opened[0]).await.is_err(), "an id is one approval's");
    drop(store);

    let store = home.open().await?;
    let filter = ApprovalFilter { limit: 10, ..ApprovalFilter::default() };
    assert_eq!(store.approvals(&filter).await?, opened);
    assert_eq!(store.approval(&opened[1].id).await?.as_ref(), Some(&opened[1]));
    assert_eq!(store.next_deadline().await?, Some(opened[1].deadline));
    store.answer_approval(&opened[1].id, answer("deny"), None).await?;
    assert_eq!(store.next_deadline().await?, Some(opened[0].deadline));

    let ids = |found: Vec<Approval>| found.into_iter().map(|approval| approval.id).collect::<Vec<_>>();
    let newest = ApprovalFilter { limit: 2, ..ApprovalFilter::default() };
    assert_eq!(ids(store.approvals(&newest).await?), [opened[1].id.clone(), opened[2].id.clone()]);
    let of_one = ApprovalFilter { sandbox: Some(one), ..filter.clone() };
    assert_eq!(ids(store.approvals(&of_one).await?), [opened[0].id.clone(), opened[2].id.clone()]);
    let closed = ApprovalFilter { states: vec![ApprovalState::Answered, ApprovalState::Expired], ..filter.clone() };
    assert_eq!(ids(store.approvals(&closed).await?), [opened[1].id.clone()]);
    let foreign = ApprovalFilter { session: Some(SessionId::from_parts(2, [2; 10])), ..filter };
    assert_eq!(store.approvals(&foreign).await?, []);
    Ok(())
}

pub(in crate::store) async fn an_answer_counts_once_and_its_text_is_not_told<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    let approval = new(&id, soon());
    store.open_approval(&approval).await?;
    let Closed::Now(answered) = store.answer_approval(&approval.id, answer("once"), None).await? else {
        return Err("it was open".into());
    };
    assert_eq!(answered.state, ApprovalState::Answered);
    assert_eq!(answered.closed_at, answered.answer.as_ref().map(|answer| answer.at));
    assert_eq!(answered.answer.as_ref().and_then(|answer| answer.text.as_deref()), Some("the words of a person"));
    drop(store);

    let store = home.open().await?;
    assert_eq!(store.approval(&approval.id).await?.as_ref(), Some(&answered));
    let again = store.answer_approval(&approval.id, answer("deny"), None).await?;
    assert_eq!(again, Closed::Before(answered), "the first answer stands");
    assert_eq!(store.expire_approvals(soon() + TimeDelta::days(1)).await?, []);
    assert_eq!(store.withdraw_approvals(&id).await?, []);
    let missing = store.answer_approval(&ApprovalId::from_parts(9, [9; 10]), answer("once"), None).await;
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    let events = all_events(&store).await?;
    let told = events.last().ok_or("it was told")?;
    assert_eq!((told.kind.as_str(), told.sandbox.as_deref()), ("approval.answered", Some(id.as_str())));
    assert_eq!((&told.data["choice"], &told.data["by"]), (&"once".into(), &"socket".into()));
    assert_eq!(told.data["context"]["host"], "api.github.com");
    assert!(!serde_json::to_string(&events)?.contains("the words"), "{events:?}");
    Ok(())
}

pub(in crate::store) async fn of_fifty_answers_at_once_one_counts<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let id = sandbox(&*store, "one").await?;
    let approval = new(&id, soon());
    store.open_approval(&approval).await?;
    let answers = (0..50).map(|number| {
        let (store, id) = (store.clone(), approval.id.clone());
        tokio::spawn(async move {
            let choice = if number % 2 == 0 { "once" } else { "deny" };
            store.answer_approval(&id, ApprovalAnswer { by: format!("token:{number}"), ..answer(choice) }, None).await
        })
    });
    let (mut winner, mut losers) = (None, vec![]);
    for answer in answers.collect::<Vec<_>>() {
        match answer.await?? {
            Closed::Now(approval) => assert!(winner.replace(approval).is_none(), "two were told that they count"),
            Closed::Before(approval) => losers.push(approval),
        }
    }
    let winner = winner.ok_or("none counted")?;
    assert_eq!(losers.len(), 49);
    assert!(losers.iter().all(|seen| *seen == winner), "every other is told the one that counts");
    assert_eq!(kinds(&*store).await?.iter().filter(|kind| *kind == "approval.answered").count(), 1);
    Ok(())
}

pub(in crate::store) async fn too_late_is_expired_whoever_comes_first<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    let (first, second, third) = (new(&id, late()), new(&id, late()), new(&id, soon()));
    for approval in [&first, &second, &third] {
        store.open_approval(approval).await?;
    }
    let Closed::Before(expired) = store.answer_approval(&first.id, answer("once"), None).await? else {
        return Err("its deadline had passed".into());
    };
    assert_eq!((expired.state, expired.answer), (ApprovalState::Expired, None));
    let due = store.expire_approvals(now()).await?;
    assert_eq!(due.iter().map(|approval| &approval.id).collect::<Vec<_>>(), [&second.id]);
    let again = store.answer_approval(&second.id, answer("once"), None).await?;
    assert_eq!(again, Closed::Before(due.into_iter().next().ok_or("one was due")?));
    assert!(matches!(store.answer_approval(&third.id, answer("once"), None).await?, Closed::Now(_)));
    let told = kinds(&store).await?;
    assert_eq!(told[told.len() - 3..], ["approval.expired", "approval.expired", "approval.answered"]);
    let event = all_events(&store).await?.into_iter().rfind(|event| event.kind == "approval.expired");
    assert_eq!(event.map(|event| event.data["choice"].clone()), Some("deny".into()), "what happened then");
    Ok(())
}

pub(in crate::store) async fn an_answer_and_the_expiry_race_to_one_end<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let id = sandbox(&*store, "one").await?;
    for round in 0..50 {
        let approval = new(&id, now() + TimeDelta::milliseconds(round % 5));
        store.open_approval(&approval).await?;
        let (one, two) = (store.clone(), store.clone());
        let answered = tokio::spawn({
            let id = approval.id.clone();
            async move { one.answer_approval(&id, answer("once"), None).await }
        });
        let expired = tokio::spawn(async move { two.expire_approvals(now() + TimeDelta::seconds(1)).await });
        let (answered, expired) = (answered.await??, expired.await??);
        let end = store.approval(&approval.id).await?.ok_or("it is kept")?;
        match answered {
            Closed::Now(seen) => {
                assert_eq!((&seen, end.state), (&end, ApprovalState::Answered));
                assert_eq!(expired, []);
            }
            Closed::Before(seen) => assert_eq!((&seen, end.state), (&end, ApprovalState::Expired)),
        }
        let closing = |event: &sandbar_api::Event| {
            event.data["approval"] == approval.id.as_str() && event.kind != "approval.opened"
        };
        assert_eq!(all_events(&*store).await?.into_iter().filter(closing).count(), 1);
    }
    Ok(())
}

pub(in crate::store) async fn an_answer_changes_rules_with_itself_or_not_at_all<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    let approval = new(&id, soon());
    store.open_approval(&approval).await?;
    let rules = |sandbox: &SandboxId| RulesAfter {
        sandbox: sandbox.clone(),
        rules: vec![],
        secrets: vec!["TOKEN".into()],
        change: json!({ "by": "socket" }),
    };
    let nobody = SandboxId::from_parts(9, [9; 10]);
    let head = *store.head().borrow();
    let refused =
        store.answer_approval(&approval.id, answer("sandbox"), Some(Consequence::Rules(rules(&nobody)))).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    assert_eq!(*store.head().borrow(), head);
    assert_eq!(store.approval(&approval.id).await?.as_ref(), Some(&approval), "it is open as before");

    let answered = store.answer_approval(&approval.id, answer("sandbox"), Some(Consequence::Rules(rules(&id)))).await?;
    assert!(matches!(answered, Closed::Now(_)));
    assert_eq!(store.gate(&id).await?.map(|gate| gate.secrets), Some(vec!["TOKEN".into()]));
    let told = kinds(&store).await?;
    assert_eq!(told[told.len() - 2..], ["approval.answered", "net.changed"]);

    store.set_network(&id, &[], &[], json!({})).await?;
    let again = store.answer_approval(&approval.id, answer("sandbox"), Some(Consequence::Rules(rules(&id)))).await?;
    assert!(matches!(again, Closed::Before(_)));
    assert_eq!(store.gate(&id).await?, Some(gate_row()), "an answer that does not count changes no rules");
    Ok(())
}

pub(in crate::store) async fn what_an_answer_lets_through_is_spent_once<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let id = sandbox(&*store, "one").await?;
    let approval = new(&id, soon());
    store.open_approval(&approval).await?;
    assert!(!store.spend_approval(&approval.id).await?, "nobody has answered");
    store.answer_approval(&approval.id, answer("once"), None).await?;
    assert_eq!(store.unspent_approvals().await?.len(), 1);
    let spending = (0..20).map(|_| {
        let (store, id) = (store.clone(), approval.id.clone());
        tokio::spawn(async move { store.spend_approval(&id).await })
    });
    let mut spent = 0;
    for spending in spending.collect::<Vec<_>>() {
        spent += usize::from(spending.await??);
    }
    assert_eq!(spent, 1);
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.unspent_approvals().await?, []);
    assert!(!store.spend_approval(&approval.id).await?);
    Ok(())
}

pub(in crate::store) async fn withdrawn_ones_are_closed_and_old_ones_pruned<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (one, two) = (sandbox(&store, "one").await?, sandbox(&store, "two").await?);
    let (gone, stays) = (new(&one, soon()), new(&two, soon()));
    store.open_approval(&gone).await?;
    store.open_approval(&stays).await?;
    let withdrawn = store.withdraw_approvals(&one).await?;
    assert_eq!(
        withdrawn.iter().map(|approval| (&approval.id, approval.state)).collect::<Vec<_>>(),
        [(&gone.id, ApprovalState::Withdrawn)]
    );
    assert_eq!(kinds(&store).await?.last().map(String::as_str), Some("approval.withdrawn"));
    assert!(matches!(store.answer_approval(&gone.id, answer("once"), None).await?, Closed::Before(_)));
    store.prune(now() - TimeDelta::hours(1)).await?;
    assert!(store.approval(&gone.id).await?.is_some(), "it was closed only just now");
    store.prune(now() + TimeDelta::hours(1)).await?;
    assert_eq!(store.approval(&gone.id).await?, None);
    assert_eq!(store.approval(&stays.id).await?, Some(stays), "an open one is never too old");
    Ok(())
}

pub(in crate::store) async fn a_terminal_asks_one_thing_at_a_time<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    let (process, other) = (ProcessId::from_parts(1, [1; 10]), ProcessId::from_parts(2, [2; 10]));
    assert_eq!(store.terminal_approval(&process).await?, None);
    let first = typed(&id, &process);
    store.open_approval(&first).await?;
    store.open_approval(&typed(&id, &other)).await?;
    assert!(store.open_approval(&typed(&id, &process)).await.is_err(), "it asks already");
    assert_eq!(store.terminal_approval(&process).await?.as_ref(), Some(&first));

    let moved = json!({ "process": process.as_str(), "output": 9 });
    let head = *store.head().borrow();
    assert!(store.renew_approval(&first.id, &moved).await?);
    assert_eq!(*store.head().borrow(), head, "where it is seen is no event");
    assert_eq!(store.approval(&first.id).await?.map(|approval| approval.context), Some(moved.clone()));
    drop(store);

    let store = home.open().await?;
    let withdrawn = store.withdraw_approval(&first.id, "moved_on").await?.ok_or("it was open")?;
    assert_eq!((withdrawn.state, withdrawn.reason.as_deref()), (ApprovalState::Withdrawn, Some("moved_on")));
    assert_eq!(store.withdraw_approval(&first.id, "typed_over").await?, None, "the first reason stands");
    assert!(!store.renew_approval(&first.id, &json!({})).await?, "what is closed stays as it was");
    assert_eq!(store.approval(&first.id).await?, Some(withdrawn));
    let second = typed(&id, &process);
    store.open_approval(&second).await?;
    assert_eq!(store.terminal_approval(&process).await?.as_ref(), Some(&second), "the last one");
    let gone = store.withdraw_approvals(&id).await?;
    assert!(gone.iter().all(|approval| approval.reason.as_deref() == Some("sandbox_gone")));
    let events = all_events(&store).await?;
    let told = events.iter().find(|event| event.kind == "approval.withdrawn").ok_or("it was told")?;
    assert_eq!((&told.data["reason"], told.process.as_deref()), (&"moved_on".into(), Some(process.as_str())));
    assert!(!serde_json::to_string(&events)?.contains("all that is seen"), "a screen is for those who ask for it");
    Ok(())
}

pub(in crate::store) async fn how_typing_ended_is_told_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    let typing = || Some(Consequence::Typing("staged".into()));
    for (number, delivery) in [(1, Delivery::Typed), (2, Delivery::Refused)] {
        let approval = typed(&id, &ProcessId::from_parts(number, [1; 10]));
        store.open_approval(&approval).await?;
        let early = store.settle_delivery(&approval.id, delivery).await?;
        assert_eq!((early.state, early.delivery), (ApprovalState::Open, None), "nothing is on its way");
        let Closed::Now(answered) = store.answer_approval(&approval.id, answer("once"), typing()).await? else {
            return Err("it was open".into());
        };
        assert_eq!(answered.delivery, Some(Delivery::Pending));
        assert_eq!(store.pending_deliveries().await?, [(answered.clone(), "staged".to_owned())]);
        assert_eq!(store.unspent_approvals().await?, [], "it lets nothing through");
        let settled = store.settle_delivery(&approval.id, delivery).await?;
        assert_eq!(settled.delivery, Some(delivery));
        for again in Delivery::ALL {
            assert_eq!(store.settle_delivery(&approval.id, again).await?, settled, "the first stands");
        }
        assert_eq!(store.pending_deliveries().await?, []);
    }
    let missing = store.settle_delivery(&ApprovalId::from_parts(9, [9; 10]), Delivery::Typed).await;
    assert!(matches!(missing, Err(Error::Missing(_))), "{missing:?}");
    let told = kinds(&store).await?;
    let count = |kind: &str| told.iter().filter(|told| *told == kind).count();
    assert_eq!((count("approval.typed"), count("approval.refused")), (1, 1));
    drop(store);
    let store = home.open().await?;
    let filter = ApprovalFilter { limit: 10, ..ApprovalFilter::default() };
    let kept: Vec<_> = store.approvals(&filter).await?.into_iter().map(|approval| approval.delivery).collect();
    assert_eq!(kept, [Some(Delivery::Typed), Some(Delivery::Refused)]);
    Ok(())
}

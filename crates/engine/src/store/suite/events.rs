//! The event log: numbers, order, announcements.

use std::sync::Arc;

use sandbar_api::{ProcessState, SandboxState};
use tokio::task::JoinSet;

use super::{Dice, Home, Outcome, all_events, kinds, new_process, new_sandbox, process, sandbox};
use crate::store::{Error, Store as _};

pub(in crate::store) async fn numbers_have_no_gaps_under_fifty_writers_of_whom_some_fail<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let mut writers = JoinSet::new();
    for writer in 0..50 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let (mut dice, mut done) = (Dice(writer), 0u64);
            for round in 0..8 {
                // Few names, so that many are taken; and a sandbox that is not there.
                let name = format!("n{}", dice.roll(40));
                match store.create_sandbox(new_sandbox(&name)).await {
                    Ok(_) => done += 2,
                    Err(Error::NameTaken(taken)) => assert_eq!(taken, name),
                    Err(error) => return Err(error),
                }
                if dice.roll(2) == 0 {
                    let gone = new_sandbox("never-made").row.sandbox.id;
                    let refused = store.create_process(&new_process(&gone)).await;
                    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
                }
                if let Some(row) = store.sandbox_named(&name).await? {
                    let to = SandboxState::ALL[dice.roll(7) as usize];
                    match store.transition(&row.sandbox.id, to, None).await {
                        Ok(_) => done += 1,
                        Err(Error::Illegal { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                if dice.roll(3) == 0 {
                    let left = new_sandbox(&format!("left-{writer}-{round}"));
                    tokio::select! {
                        biased;
                        made = store.create_sandbox(left) => { made?; done += 2 }
                        () = tokio::task::yield_now() => {}
                    }
                }
            }
            Ok(done)
        });
    }
    let mut done = 0;
    while let Some(writer) = writers.join_next().await {
        done += writer??;
    }
    store.check().await?;
    let events = all_events(&*store).await?;
    assert!(events.len() as u64 >= done, "{} events of at least {done}", events.len());
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event.seq, at as u64 + 1);
    }
    assert_eq!(*store.head().borrow(), events.len() as u64);
    assert!(events.windows(2).all(|two| two[0].at <= two[1].at), "the log's order is that of time");
    Ok(())
}

pub(in crate::store) async fn nothing_is_announced_that_cannot_be_read<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let mut head = store.head();
    let writing = Arc::clone(&store);
    let writer = tokio::spawn(async move {
        for number in 0..100 {
            let id = sandbox(&*writing, &format!("s{number}")).await?;
            writing.transition(&id, SandboxState::Ready, None).await?;
        }
        Ok::<_, Error>(())
    });
    let (mut seen, mut announced) = (0, 0);
    while seen < 300 {
        head.changed().await?;
        let newest = *head.borrow_and_update();
        assert!(newest > announced, "it only grows");
        announced = newest;
        let events = store.events(seen, u32::MAX, None).await?;
        let last = events.last().map_or(seen, |event| event.seq);
        assert!(last >= newest, "{newest} was announced and {last} is the newest there is");
        seen = last;
    }
    writer.await??;
    Ok(())
}

pub(in crate::store) async fn a_restart_goes_on_counting<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "one").await?;
    let process = process(&store, &id).await?;
    store.close().await;
    assert!(sandbox(&store, "closed").await.is_err(), "a closed store takes nothing");
    drop(store);

    let store = home.open().await?;
    assert_eq!(*store.head().borrow(), 3);
    store.end_process(&process, ProcessState::Lost, None, super::now()).await?;
    assert_eq!(*store.head().borrow(), 4);
    let told = ["session.created", "sandbox.created", "process.started", "process.lost"];
    assert_eq!(kinds(&store).await?, told);
    Ok(())
}

pub(in crate::store) async fn they_page_and_filter_by_sandbox<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (one, two) = (sandbox(&store, "one").await?, sandbox(&store, "two").await?);
    for id in [&one, &two, &one] {
        process(&store, id).await?;
    }
    let seqs = |events: Vec<sandbar_api::Event>| events.into_iter().map(|event| event.seq).collect::<Vec<_>>();
    assert_eq!(seqs(store.events(0, 3, None).await?), [1, 2, 3]);
    assert_eq!(seqs(store.events(3, 100, None).await?), [4, 5, 6, 7]);
    assert_eq!(seqs(store.events(0, 100, Some(&one)).await?), [2, 5, 7]);
    assert_eq!(seqs(store.events(2, 1, Some(&one)).await?), [5]);
    assert_eq!(store.events(7, 100, None).await?, []);
    assert_eq!(store.events(99, 100, None).await?, [], "a number that is yet to come");
    let text = serde_json::to_string(&all_events(&store).await?)?;
    assert!(!text.contains("of the environment"), "events never tell values of the environment: {text}");
    Ok(())
}

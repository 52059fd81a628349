//! A caller that goes away in the middle of a write.

use std::{future::poll_fn, pin::pin, task::Poll};

use super::{Home, Outcome, all_events, new_sandbox};
use crate::store::Store as _;

/// Polls at most `times`, then drops it where it is.
async fn poll_some<F: Future>(future: F, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let ready = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ready {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

pub(in crate::store) async fn a_dropped_write_is_done_and_told_or_neither<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let mut left = 0;
    for times in (0..300).chain([100_000]) {
        let new = new_sandbox(&format!("dropped-{times}"));
        let id = new.row.sandbox.id.clone();
        if !poll_some(store.create_sandbox(new), times).await {
            left += 1;
        }
        // Whatever the dropped one set going is over when a later write is.
        store.check().await?;
        let events = all_events(&store).await?;
        let told = events.iter().any(|event| event.sandbox.as_deref() == Some(id.as_str()));
        let there = store.sandbox(&id).await?.is_some();
        assert_eq!(there, told, "after {times} polls");
        assert_eq!(*store.head().borrow(), events.len() as u64, "after {times} polls");
    }
    assert!(left > 0, "none was dropped before its end");
    Ok(())
}

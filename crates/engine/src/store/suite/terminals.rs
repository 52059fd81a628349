//! What is kept of terminals beside their output.

use chrono::TimeDelta;
use sandbar_api::TerminalSize;

use super::{Home, Outcome, kinds, now, process, sandbox, stdout};
use crate::store::{Chunk, Error, SizeChange, Store as _, TerminalStore as _};

const KEEP: u64 = 1 << 20;

pub(in crate::store) async fn moments_end_where_time_went_on<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let process = process(&store, &sandbox(&store, "s").await?).await?;
    let begin = now();
    for (number, millis) in [0, 10, 200, 5000].into_iter().enumerate() {
        let at = begin + TimeDelta::milliseconds(millis);
        store.append_output(&process, &Chunk { at, ..stdout(3 * number as u64, "abc") }, KEEP).await?;
    }
    drop(store);
    let store = home.open().await?;
    let (mut moments, mut from) = (vec![], 0);
    while let Some(chunk) = store.read_moment(&process, from, 1 << 20).await? {
        from += chunk.data.len() as u64;
        moments.push(((chunk.at - begin).num_milliseconds(), chunk.data.len()));
    }
    assert_eq!(moments, [(0, 6), (200, 3), (5000, 3)]);
    let inside = store.read_moment(&process, 7, 1).await?.ok_or("it is there")?;
    assert_eq!(((inside.at - begin).num_milliseconds(), inside.data.len()), (200, 1));
    assert!(matches!(store.read_moment(&process, 13, 1).await, Err(Error::Beyond { end: 12, .. })));
    let all = store.read_output(&process, 0, 1 << 20).await?.ok_or("it is there")?;
    assert_eq!(all.data.len(), 12, "of one stream it is one");
    Ok(())
}

pub(in crate::store) async fn sizes_and_screens_are_kept_with_the_output<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let process = process(&store, &id).await?;
    assert_eq!((store.terminal_sizes(&process).await?, store.kept_screen(&process).await?), (vec![], None));
    assert!(store.keep_screen(&process, b"x").await.is_err(), "there is nothing it belongs to");
    let size = |cols| TerminalSize { cols, rows: 24 };
    store.start_terminal(&process, size(80), now()).await?;
    let change = |offset, cols| SizeChange { offset, at: now(), size: size(cols) };
    for change in [change(5, 80), change(7, 100), change(3, 90)] {
        store.resize_terminal(&id, &process, change).await?;
    }
    let told = kinds(&store).await?.iter().filter(|kind| *kind == "process.resized").count();
    assert_eq!(told, 2, "the same size again is no change");
    for screen in [&b"first"[..], b"second"] {
        store.keep_screen(&process, screen).await?;
    }
    drop(store);
    let store = home.open().await?;
    let sizes: Vec<_> = store.terminal_sizes(&process).await?.iter().map(|one| (one.offset, one.size.cols)).collect();
    assert_eq!(sizes, [(0, 80), (7, 100), (7, 90)], "a later change never comes before an earlier one");
    assert_eq!(store.kept_screen(&process).await?.as_deref(), Some(&b"second"[..]));
    store.drop_output(&id).await?;
    assert_eq!((store.terminal_sizes(&process).await?, store.kept_screen(&process).await?), (vec![], None));
    Ok(())
}

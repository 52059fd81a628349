//! Process output: nothing missing, nothing twice, nothing mixed up.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use sandbar_api::{OutputRange, SandboxState, Stream};

use super::{Dice, Home, Outcome, chunk, joined, new_process, process, read_all, sandbox, stdout};
use crate::store::{Error, Store as _};

const KEEP: u64 = 1 << 30;
const KIB: u64 = 1024;

pub(in crate::store) async fn it_comes_back_as_it_was_written<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let process = process(&store, &sandbox(&store, "s").await?).await?;
    assert_eq!(store.read_output(&process, 0, 10).await?, None);
    assert_eq!(store.output_range(&process).await?, OutputRange { start: 0, end: 0 });
    let beyond = store.read_output(&process, 1, 10).await;
    assert!(matches!(beyond, Err(Error::Beyond { from: 1, end: 0 })), "{beyond:?}");

    let (mut dice, mut wanted) = (Dice(1), vec![]);
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..dice.roll(3000)).map(|_| dice.roll(256) as u8).collect();
        let range = store.append_output(&process, &stdout(wanted.len() as u64, bytes.clone()), KEEP).await?;
        wanted.extend(bytes);
        assert_eq!(range, OutputRange { start: 0, end: wanted.len() as u64 });
    }
    assert!(joined(&read_all(&store, &process, 0, 777).await?) == wanted);
    drop(store);
    let store = home.open().await?;
    assert!(joined(&read_all(&store, &process, 0, 64 * 1024).await?) == wanted);
    assert!(joined(&read_all(&store, &process, 1234, usize::MAX).await?) == wanted[1234..]);
    let end = wanted.len() as u64;
    assert_eq!(store.read_output(&process, end, 10).await?, None);
    assert!(matches!(store.read_output(&process, end + 1, 10).await, Err(Error::Beyond { .. })));
    Ok(())
}

pub(in crate::store) async fn what_is_sent_again_is_kept_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let process = process(&store, &sandbox(&store, "s").await?).await?;
    store.append_output(&process, &stdout(0, "0123456789"), KEEP).await?;
    for (offset, text, end) in
        [(0, "0123", 10), (5, "56789", 10), (8, "89ab", 12), (0, "0123456789abcd", 14), (3, "", 14)]
    {
        let range = store.append_output(&process, &stdout(offset, text), KEEP).await?;
        assert_eq!(range.end, end, "{text} at {offset}");
    }
    drop(store);
    let store = home.open().await?;
    store.append_output(&process, &stdout(10, "abcdef"), KEEP).await?;
    assert_eq!(joined(&read_all(&store, &process, 0, 100).await?), b"0123456789abcdef");
    Ok(())
}

pub(in crate::store) async fn a_gap_is_refused<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let process = process(&store, &sandbox(&store, "s").await?).await?;
    for end in [0, 4] {
        let gap = store.append_output(&process, &stdout(end + 1, "x"), KEEP).await;
        assert!(matches!(gap, Err(Error::Output(_))), "{gap:?}");
        assert_eq!(store.output_range(&process).await?.end, end);
        store.append_output(&process, &stdout(end, "1234"), KEEP).await?;
    }
    assert_eq!(joined(&read_all(&store, &process, 0, 100).await?), b"12341234");
    Ok(())
}

pub(in crate::store) async fn chunks_do_not_mix_streams<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let process = process(&store, &sandbox(&store, "s").await?).await?;
    // More changes than any index block holds, then long runs with and without a new record of the time.
    let (mut dice, mut wanted, mut at) = (Dice(2), vec![], super::now());
    for number in 0..3000u64 {
        let stream = if dice.roll(2) == 0 { Stream::Stdout } else { Stream::Stderr };
        let stream = if number > 1500 { Stream::Stderr } else { stream };
        let length = 1 + dice.roll(40) as usize;
        let mut piece = chunk(wanted.len() as u64, stream, vec![number as u8; length]);
        at += chrono::TimeDelta::milliseconds(dice.roll(2000) as i64);
        piece.at = at;
        store.append_output(&process, &piece, KEEP).await?;
        wanted.extend((0..length).map(|_| (stream, number as u8)));
    }
    for limit in [1000, 64 * 1024] {
        let mut from = 0;
        for piece in read_all(&store, &process, 0, limit).await? {
            assert_eq!(piece.offset, from);
            for byte in &piece.data {
                assert_eq!((piece.stream, *byte), wanted[from as usize], "at {from}");
                from += 1;
            }
        }
        assert_eq!(from, wanted.len() as u64);
    }
    for from in [0, 1, 17, 20_000, wanted.len() - 1] {
        let piece = store.read_output(&process, from as u64, 5).await?.ok_or("there is more")?;
        assert_eq!((piece.stream, piece.data[0]), wanted[from]);
    }
    Ok(())
}

pub(in crate::store) async fn the_oldest_goes_when_there_is_too_much<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let process = process(&store, &sandbox(&store, "s").await?).await?;
    let keep = 8 * 64 * KIB;
    let byte = |offset: u64| (offset / 1000 % 251) as u8;
    let mut end = 0;
    // One append that is larger than all that may be kept, too.
    for length in [10_000; 200].into_iter().chain([3_000_000, 1]) {
        let bytes: Vec<u8> = (end..end + length).map(byte).collect();
        end += length;
        let range = store.append_output(&process, &stdout(end - length, bytes), keep).await?;
        assert_eq!(range.end, end);
        assert!(range.end - range.start <= keep, "{range:?} is more than {keep}");
        assert!(range.start == 0 || range.end - range.start > keep - 64 * KIB, "{range:?} is too little");
        let first = store.read_output(&process, range.start, 10).await?.ok_or("there is more")?;
        assert_eq!(first.data[0], byte(range.start));
    }
    let range = store.output_range(&process).await?;
    for from in [0, range.start - 1] {
        let dropped = store.read_output(&process, from, 10).await;
        let Err(Error::Dropped { from: asked, first_kept }) = dropped else { panic!("{dropped:?}") };
        assert_eq!((asked, first_kept), (from, range.start));
    }
    drop(store);
    let store = home.open().await?;
    assert_eq!(store.output_range(&process).await?, range);
    let kept: Vec<u8> = (range.start..range.end).map(byte).collect();
    assert!(joined(&read_all(&store, &process, range.start, 64 * 1024).await?) == kept);
    Ok(())
}

pub(in crate::store) async fn reading_and_appending_at_once<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let process = process(&*store, &sandbox(&*store, "s").await?).await?;
    const TOTAL: u64 = 4_000_000;
    let byte = |offset: u64| (offset / 7 % 251) as u8;
    // On threads of their own: append and read do not wait for anything, so tasks of one thread would take turns.
    let (writing, id) = (Arc::clone(&store), process.clone());
    let runtime = tokio::runtime::Handle::current();
    let writer = tokio::task::spawn_blocking(move || {
        let (mut dice, mut end) = (Dice(3), 0);
        while end < TOTAL {
            let length = (1 + dice.roll(20_000)).min(TOTAL - end);
            let stream = if dice.roll(2) == 0 { Stream::Stdout } else { Stream::Stderr };
            let bytes: Vec<u8> = (end..end + length).map(byte).collect();
            runtime.block_on(writing.append_output(&id, &chunk(end, stream, bytes), 8 << 20))?;
            end += length;
        }
        Ok::<_, Error>(())
    });
    let (reading, id) = (Arc::clone(&store), process.clone());
    let runtime = tokio::runtime::Handle::current();
    let reader = tokio::task::spawn_blocking(move || {
        let mut from = 0;
        while from < TOTAL {
            match runtime.block_on(reading.read_output(&id, from, 64 * 1024))? {
                None => std::thread::yield_now(),
                Some(piece) => {
                    assert!(piece.data.iter().zip(from..).all(|(got, at)| *got == byte(at)), "after {from}");
                    from += piece.data.len() as u64;
                }
            }
        }
        Ok::<_, Error>(())
    });
    writer.await??;
    reader.await??;
    Ok(())
}

pub(in crate::store) async fn hundreds_of_logs_at_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let mut processes = vec![];
    for _ in 0..300 {
        processes.push(process(&store, &id).await?);
    }
    for round in 0..5u64 {
        for (number, process) in processes.iter().enumerate() {
            let text = Bytes::from(format!("{number:04}"));
            store.append_output(process, &stdout(round * 4, text), KEEP).await?;
        }
    }
    let listed: BTreeMap<_, _> =
        store.processes(&id).await?.into_iter().map(|process| (process.id, process.output)).collect();
    for (number, process) in processes.iter().enumerate() {
        assert_eq!(joined(&read_all(&store, process, 0, 100).await?), format!("{number:04}").repeat(5).into_bytes());
        assert_eq!(listed[process], OutputRange { start: 0, end: 20 });
    }
    Ok(())
}

pub(in crate::store) async fn it_goes_with_its_sandbox<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (gone, stays) = (sandbox(&store, "gone").await?, sandbox(&store, "stays").await?);
    let (one, two) = (process(&store, &gone).await?, process(&store, &stays).await?);
    let left = sandbox(&store, "left-by-a-crash").await?;
    let three = process(&store, &left).await?;
    let unknown = new_process(&gone).id;
    for process in [&one, &two, &three, &unknown] {
        store.append_output(process, &stdout(0, "text"), KEEP).await?;
    }
    store.transition(&gone, SandboxState::Deleted, None).await?;
    store.drop_output(&gone).await?;
    store.drop_output(&gone).await?;
    assert_eq!(store.output_range(&one).await?.end, 0);
    assert_eq!(store.processes(&gone).await?.len(), 1, "the row stays");
    assert_eq!(store.output_range(&two).await?.end, 4);
    store.transition(&left, SandboxState::Deleted, None).await?;
    drop(store);

    let store = home.open().await?;
    for (process, end) in [(&one, 0), (&two, 4), (&three, 0)] {
        assert_eq!(store.output_range(process).await?.end, end);
    }
    // Files may be of another database, whose process it is. What a database has without a process was pruned.
    let set_aside: Vec<_> = store.quarantined_output().await?.into_iter().map(|(process, _)| process).collect();
    let kept = store.output_range(&unknown).await?.end > 0;
    assert_eq!(set_aside, if kept { vec![unknown] } else { vec![] });
    Ok(())
}

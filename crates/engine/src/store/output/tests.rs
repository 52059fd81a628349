//! What a crash leaves in the files, made by hand, and what opening makes of it.

use std::{fs, io::Write as _, path::PathBuf};

use sandbar_api::{OutputRange, ProcessId, Stream, TerminalSize};
use tempfile::TempDir;

use super::{
    OPEN_LOGS, Output,
    index::RECORD,
    lock,
    segment::{data_path, index_path},
};
use crate::store::{
    Chunk, Error, Result, SizeChange,
    suite::{Outcome, chunk, stdout},
};

const KEEP: u64 = 1 << 20;
/// `KEEP` in eighths.
const SEGMENT: u64 = 128 * 1024;

struct Fixture {
    home: TempDir,
    process: ProcessId,
}

impl Fixture {
    fn new() -> std::io::Result<Self> {
        Ok(Self { home: sandbar_test_harness::scratch()?, process: ProcessId::from_parts(1, [1; 10]) })
    }

    fn open(&self) -> Result<Output> {
        Output::open(self.home.path())
    }

    fn directory(&self) -> PathBuf {
        self.home.path().join("output").join(self.process.as_str())
    }

    fn append(&self, output: &Output, chunk: &Chunk) -> Result<OutputRange> {
        output.append(&self.process, chunk, KEEP)
    }

    fn text(&self, output: &Output) -> Result<Vec<(Stream, String)>> {
        let (mut pieces, mut from) = (vec![], output.range(&self.process)?.start);
        while let Some(chunk) = output.read(&self.process, from, 1 << 20)? {
            from += chunk.data.len() as u64;
            pieces.push((chunk.stream, String::from_utf8_lossy(&chunk.data).into_owned()));
        }
        Ok(pieces)
    }
}

#[test]
fn a_record_without_its_bytes_is_trimmed() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    at.append(&output, &stdout(0, "out"))?;
    at.append(&output, &chunk(3, Stream::Stderr, "err"))?;
    drop(output);
    let index = index_path(&at.directory(), 0);
    let whole = fs::read(&index)?;
    assert_eq!(whole.len(), 2 * RECORD);
    // The bytes of stderr never came, nor those of a third record, of which only half is there.
    fs::File::options().write(true).open(data_path(&at.directory(), 0))?.set_len(3)?;
    let mut stray = fs::File::options().append(true).open(&index)?;
    stray.write_all(&whole[RECORD..])?;
    stray.write_all(&whole[..RECORD / 2])?;

    let output = at.open()?;
    assert_eq!(output.range(&at.process)?, OutputRange { start: 0, end: 3 });
    // The guest sends again from there, and this time it is of the other stream.
    at.append(&output, &stdout(3, "more"))?;
    assert_eq!(at.text(&output)?, [(Stream::Stdout, "outmore".to_owned())]);
    assert_eq!(fs::read(&index)?, whole[..RECORD]);
    Ok(())
}

#[test]
fn data_cut_short_is_sent_again() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    at.append(&output, &stdout(0, "hello world"))?;
    drop(output);
    fs::File::options().write(true).open(data_path(&at.directory(), 0))?.set_len(5)?;
    let output = at.open()?;
    assert!(matches!(at.append(&output, &stdout(6, "world")), Err(Error::Output(_))), "a gap");
    at.append(&output, &stdout(0, "hello world"))?;
    assert_eq!(at.text(&output)?, [(Stream::Stdout, "hello world".to_owned())]);

    drop(output);
    fs::File::options().write(true).open(data_path(&at.directory(), 0))?.set_len(0)?;
    let output = at.open()?;
    assert_eq!(at.append(&output, &chunk(0, Stream::Stderr, "hi"))?.end, 2);
    assert_eq!(at.text(&output)?, [(Stream::Stderr, "hi".to_owned())]);
    Ok(())
}

#[test]
fn a_segment_that_was_only_begun_is_begun_again() -> Outcome {
    for (data, index) in [(false, true), (true, true)] {
        let at = Fixture::new()?;
        let output = at.open()?;
        at.append(&output, &stdout(0, vec![b'a'; SEGMENT as usize]))?;
        drop(output);
        if index {
            fs::write(index_path(&at.directory(), SEGMENT), "")?;
        }
        if data {
            fs::write(data_path(&at.directory(), SEGMENT), "")?;
        }
        let output = at.open()?;
        assert_eq!(output.range(&at.process)?, OutputRange { start: 0, end: SEGMENT });
        assert_eq!(output.read(&at.process, SEGMENT, 10)?, None);
        at.append(&output, &chunk(SEGMENT, Stream::Stderr, "b"))?;
        let last = output.read(&at.process, SEGMENT, 10)?.ok_or("it was appended")?;
        assert_eq!((last.stream, &last.data[..]), (Stream::Stderr, b"b".as_slice()));
    }
    Ok(())
}

#[test]
fn a_half_removed_segment_is_gone() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    at.append(&output, &stdout(0, vec![b'a'; 3 * SEGMENT as usize]))?;
    drop(output);
    fs::remove_file(data_path(&at.directory(), 0))?;
    let output = at.open()?;
    assert_eq!(output.range(&at.process)?, OutputRange { start: SEGMENT, end: 3 * SEGMENT });
    at.append(&output, &stdout(3 * SEGMENT, "b"))?;
    assert!(!index_path(&at.directory(), 0).exists());
    Ok(())
}

#[test]
fn bytes_before_a_gap_are_called_dropped() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    at.append(&output, &stdout(0, vec![b'a'; 3 * SEGMENT as usize]))?;
    drop(output);
    fs::File::options().write(true).open(data_path(&at.directory(), SEGMENT))?.set_len(100)?;
    let output = at.open()?;
    assert_eq!(output.range(&at.process)?, OutputRange { start: 2 * SEGMENT, end: 3 * SEGMENT });
    let dropped = output.read(&at.process, 0, 10);
    assert!(matches!(dropped, Err(Error::Dropped { from: 0, first_kept }) if first_kept == 2 * SEGMENT), "{dropped:?}");
    Ok(())
}

#[test]
fn bytes_outlive_their_index() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    at.append(&output, &chunk(0, Stream::Stderr, "kept"))?;
    drop(output);
    for broken in [None, Some(vec![]), Some(vec![0; 2 * RECORD])] {
        match broken {
            None => fs::remove_file(index_path(&at.directory(), 0))?,
            Some(bytes) => fs::write(index_path(&at.directory(), 0), bytes)?,
        }
        assert_eq!(at.text(&at.open()?)?, [(Stream::Stdout, "kept".to_owned())]);
    }
    Ok(())
}

#[test]
fn a_chatty_process_does_not_bloat_the_index() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    let time = chrono::Utc::now();
    for offset in 0..5000 {
        at.append(&output, &Chunk { at: time, ..stdout(offset, "x") })?;
    }
    assert_eq!(fs::metadata(index_path(&at.directory(), 0))?.len(), RECORD as u64);
    Ok(())
}

#[test]
fn few_files_stay_open() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    for number in 0..3 * OPEN_LOGS as u64 {
        output.append(&ProcessId::from_parts(number, [0; 10]), &stdout(0, "x"), KEEP)?;
    }
    assert_eq!(lock(&output.open).slots.len(), OPEN_LOGS);
    Ok(())
}

#[test]
fn directories_made_in_advance_are_used() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    let spares = at.home.path().join("output/.ready");
    let ready = || fs::read_dir(&spares).map_or(0, Iterator::count);
    let write = |output: &Output, number: u64| -> Result<()> {
        let process = ProcessId::from_parts(number, [9; 10]);
        assert_eq!(
            output.append(&process, &stdout(0, format!("{number}")), KEEP)?.end,
            number.to_string().len() as u64
        );
        let chunk = output.read(&process, 0, 10)?.map(|chunk| chunk.data);
        assert_eq!(chunk, Some(number.to_string().into()));
        Ok(())
    };
    write(&output, 1)?;
    assert!(!output.wants_spares(), "not for one command");
    for number in 2..10 {
        write(&output, number)?;
    }
    assert!(output.wants_spares());
    assert!(!output.wants_spares(), "one maker is enough");
    output.make_spares();
    assert_eq!(ready(), 8);
    write(&output, 10)?;
    assert_eq!(ready(), 7);
    drop(output);

    let output = at.open()?;
    write(&output, 11)?;
    assert_eq!(ready(), 6, "those of an earlier server are used too");
    assert_eq!(output.processes()?.len(), 11);
    fs::remove_dir_all(&spares)?;
    write(&output, 12)?;
    output.close();
    output.make_spares();
    assert_eq!(ready(), 0, "none are made after closing");
    Ok(())
}

#[test]
fn a_moment_ends_where_time_went_on() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    let begin = crate::store::suite::now();
    let times = [0, 10, 200, 5000];
    for (number, millis) in times.iter().enumerate() {
        let time = begin + chrono::TimeDelta::milliseconds(*millis);
        at.append(&output, &Chunk { at: time, ..stdout(3 * number as u64, "abc") })?;
    }
    for output in [output, at.open()?] {
        let (mut moments, mut from) = (vec![], 0);
        while let Some(chunk) = output.read_moment(&at.process, from, 1 << 20)? {
            from += chunk.data.len() as u64;
            moments.push(((chunk.at - begin).num_milliseconds(), chunk.data.len()));
        }
        assert_eq!(moments, [(0, 6), (200, 3), (5000, 3)]);
        let inside = output.read_moment(&at.process, 7, 1)?.ok_or("it is there")?;
        assert_eq!(((inside.at - begin).num_milliseconds(), inside.data.len()), (200, 1));
        assert!(matches!(output.read_moment(&at.process, 13, 1), Err(Error::Beyond { end: 12, .. })));
    }
    Ok(())
}

#[test]
fn sizes_are_kept_beside_the_output_and_never_without_bound() -> Outcome {
    let at = Fixture::new()?;
    let output = at.open()?;
    let change =
        |offset, cols| SizeChange { offset, at: crate::store::suite::now(), size: TerminalSize { cols, rows: 24 } };
    assert_eq!((output.sizes(&at.process)?, output.kept_screen(&at.process)?), (vec![], None));
    assert!(output.keep_screen(&at.process, b"x").is_err(), "it must not bring a removed directory back");
    let first = change(0, 80);
    assert!(output.record_size(&at.process, &first)?);
    assert!(!output.record_size(&at.process, &change(5, 80))?);
    at.append(&output, &stdout(0, "hello"))?;
    output.keep_screen(&at.process, b"checkpoint")?;
    drop(output);
    let output = at.open()?;
    assert_eq!(at.text(&output)?, [(Stream::Stdout, "hello".to_owned())]);
    assert_eq!(output.kept_screen(&at.process)?.as_deref(), Some(&b"checkpoint"[..]));
    // Half a line, as the death of a host leaves it, and one that came late.
    fs::File::options().append(true).open(at.directory().join("sizes"))?.write_all(b"99 12")?;
    fs::File::options().append(true).open(at.directory().join("sizes"))?.write_all(b"\n7 0 100 24\n3 0 90 24\n")?;
    let sizes = output.sizes(&at.process)?;
    assert_eq!(
        sizes.iter().map(|size| (size.offset, size.size.cols)).collect::<Vec<_>>(),
        [(0, 80), (7, 100), (7, 90)]
    );
    assert_eq!(sizes[0], first);
    for round in 0..4000u16 {
        output.record_size(&at.process, &change(u64::from(round) + 10, 100 + round % 7))?;
    }
    let sizes = output.sizes(&at.process)?;
    assert_eq!(sizes.last().map(|size| size.offset), Some(4009));
    assert!(fs::metadata(at.directory().join("sizes"))?.len() < 80_000);
    output.remove(&at.process)?;
    assert!(!at.directory().exists());
    Ok(())
}

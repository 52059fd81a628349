//! Reading output: by the index, never across a change of stream.

use bytes::Bytes;
use sandbar_api::{OutputRange, Process, ProcessId, Stream};
use sqlx::Row as _;

use super::{
    super::{DbRow, columns},
    Rows,
};
use crate::store::{Chunk, Error, Result};

/// No chunk is larger, whatever was asked for.
const LARGEST: usize = 1024 * 1024;
/// Rows a question; what is not read with them is asked for next.
const ROWS: i64 = 256;

// From the row that has the byte on.
const READ: &str = "
    SELECT start, stream, at, data FROM output
    WHERE process = $1 AND start < $3 AND stop > $2
      AND start >= (SELECT start FROM output WHERE process = $1 AND start <= $2 ORDER BY start DESC LIMIT 1)
    ORDER BY start LIMIT $4";

const RANGES: &str = "
    SELECT p.id,
           (SELECT start FROM output WHERE process = p.id ORDER BY start LIMIT 1) AS first,
           (SELECT stop FROM output WHERE process = p.id ORDER BY start DESC LIMIT 1) AS last
    FROM unnest($1) WITH ORDINALITY AS p (id, number) ORDER BY p.number";

/// How far a chunk goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    Stream,
    Moment,
}

impl Rows {
    pub(in crate::store::postgres) async fn range(&self, process: &ProcessId) -> Result<OutputRange> {
        let found = self.ranges_of(&[process.as_str()]).await?;
        Ok(found.first().copied().unwrap_or(OutputRange { start: 0, end: 0 }))
    }

    /// Fills in what is kept of their output.
    pub(in crate::store::postgres) async fn ranges(&self, mut processes: Vec<Process>) -> Result<Vec<Process>> {
        let ids: Vec<&str> = processes.iter().map(|process| process.id.as_str()).collect();
        let ranges = if ids.is_empty() { Vec::new() } else { self.ranges_of(&ids).await? };
        for (process, range) in processes.iter_mut().zip(ranges) {
            process.output = range;
        }
        Ok(processes)
    }

    async fn ranges_of(&self, processes: &[&str]) -> Result<Vec<OutputRange>> {
        let rows = sqlx::query(RANGES).bind(processes).fetch_all(&self.readers).await?;
        let range = |row: &DbRow| {
            let number = |name: &str| columns::unsigned(row.try_get::<Option<i64>, _>(name)?.unwrap_or(0));
            Ok(OutputRange { start: number("first")?, end: number("last")? })
        };
        rows.iter().map(range).collect()
    }

    pub(in crate::store::postgres) async fn read(
        &self,
        process: &ProcessId,
        from: u64,
        limit: usize,
    ) -> Result<Option<Chunk>> {
        self.read_run(process, from, limit, Run::Stream).await
    }

    pub(in crate::store::postgres) async fn read_moment(
        &self,
        process: &ProcessId,
        from: u64,
        limit: usize,
    ) -> Result<Option<Chunk>> {
        self.read_run(process, from, limit, Run::Moment).await
    }

    async fn read_run(&self, process: &ProcessId, from: u64, limit: usize, run: Run) -> Result<Option<Chunk>> {
        let limit = limit.clamp(1, LARGEST);
        loop {
            let rows = sqlx::query(READ)
                .bind(process.as_str())
                .bind(columns::signed(from))
                .bind(columns::signed(from.saturating_add(limit as u64)))
                .bind(ROWS)
                .fetch_all(&self.readers)
                .await?;
            if let Some(chunk) = join(&rows, from, limit, run)? {
                return Ok(Some(chunk));
            }
            let OutputRange { start, end } = self.range(process).await?;
            if from < start {
                return Err(Error::Dropped { from, first_kept: start });
            }
            if from > end {
                return Err(Error::Beyond { from, end });
            }
            if from == end {
                return Ok(None);
            }
            // It came between the two questions.
        }
    }
}

fn join(rows: &[DbRow], from: u64, limit: usize, run: Run) -> Result<Option<Chunk>> {
    let Some(first) = rows.first() else { return Ok(None) };
    let (stream_of, at_of): (i64, i64) = (first.try_get("stream")?, first.try_get("at")?);
    let mut data = Vec::new();
    for row in rows {
        let (stream, at): (i64, i64) = (row.try_get("stream")?, row.try_get("at")?);
        if stream != stream_of || run == Run::Moment && at != at_of {
            break;
        }
        let (start, bytes): (i64, &[u8]) = (row.try_get("start")?, row.try_get("data")?);
        let skip = from.saturating_sub(columns::unsigned(start)?);
        let bytes = usize::try_from(skip).ok().and_then(|skip| bytes.get(skip..)).unwrap_or_default();
        data.extend_from_slice(&bytes[..bytes.len().min(limit - data.len())]);
    }
    Ok(Some(Chunk { offset: from, stream: stream(stream_of)?, at: columns::time(at_of)?, data: Bytes::from(data) }))
}

pub(super) fn stream_number(stream: Stream) -> i64 {
    match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
    }
}

pub(super) fn stream(number: i64) -> Result<Stream> {
    match number {
        1 => Ok(Stream::Stdout),
        2 => Ok(Stream::Stderr),
        other => Err(Error::Unreadable(format!("the stream {other}"))),
    }
}

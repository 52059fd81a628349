//! The state at an offset as bytes, so that attaching after much history reads one checkpoint and what came after it.

use serde::{Deserialize, Serialize};

use super::Screen;
use crate::scan::Scanner;

const VERSION: u32 = 1;

/// The first line of a checkpoint; painting follows.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    offset: u64,
    cols: u16,
    rows: u16,
    scrollback: usize,
    titles: Vec<String>,
    synchronised: bool,
    last: Option<char>,
    scanner: Scanner,
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("a checkpoint of a terminal has no header; replay the transcript instead")]
    NoHeader,
    #[error("the header of a terminal's checkpoint cannot be read; replay the transcript instead")]
    Header(#[source] serde_json::Error),
    #[error("a terminal's checkpoint is of version {found}, this reads {VERSION}; replay the transcript instead")]
    Version { found: u32 },
}

impl Screen {
    /// The state after `offset` bytes of output, which is only carried along.
    pub fn checkpoint(&self, offset: u64) -> Result<Vec<u8>, serde_json::Error> {
        let (cols, rows) = self.size();
        let header = Header {
            version: VERSION,
            offset,
            cols,
            rows,
            scrollback: self.scrollback,
            titles: self.tracked.titles.clone(),
            synchronised: self.tracked.synchronised,
            last: self.tracked.last,
            scanner: self.scanner.clone(),
        };
        let mut bytes = serde_json::to_vec(&header)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.snapshot_with_scrollback());
        Ok(bytes)
    }

    /// The screen of a checkpoint and its offset: what came from there on is to be fed.
    pub fn restore(bytes: &[u8]) -> Result<(Self, u64), RestoreError> {
        let split = bytes.iter().position(|byte| *byte == b'\n').ok_or(RestoreError::NoHeader)?;
        let (header, painting) = bytes.split_at(split);
        let header: Header = serde_json::from_slice(header).map_err(RestoreError::Header)?;
        if header.version != VERSION {
            return Err(RestoreError::Version { found: header.version });
        }
        let mut screen = Self::new(header.cols, header.rows, header.scrollback);
        screen.feed(painting.get(1..).unwrap_or_default());
        screen.scanner = header.scanner;
        screen.tracked.titles = header.titles;
        screen.tracked.synchronised = header.synchronised;
        screen.tracked.last = header.last;
        Ok((screen, header.offset))
    }
}

//! A screen that stands at an offset of the output, with every size applied where it began to hold.

use sandbar_api::{CursorView, ProcessId, ScreenView, TerminalSize};
use sandbar_terminal::{Screen, prompt::Tty};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Look,
    keeper::{Painting, Scene},
};
use crate::{guard::guarded, store::SizeChange};

/// Rows above the screen that a checkpoint carries along; the transcript has all of them.
const SCROLLBACK: usize = 500;
const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

pub(super) struct Shown {
    screen: Screen,
    offset: u64,
    sizes: Vec<SizeChange>,
    /// Its part of the room that all screens have.
    _room: Option<OwnedSemaphorePermit>,
}

impl Shown {
    /// Before the byte at `offset`, where nothing is known of what came earlier.
    pub(super) fn blank(offset: u64, sizes: Vec<SizeChange>, room: Option<OwnedSemaphorePermit>) -> Self {
        let TerminalSize { cols, rows } = size_at(&sizes, offset);
        Self { screen: Screen::new(cols, rows, SCROLLBACK), offset, sizes, _room: room }
    }

    pub(super) fn restored(
        screen: Screen,
        offset: u64,
        sizes: Vec<SizeChange>,
        room: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let mut shown = Self { screen, offset, sizes, _room: room };
        shown.settle();
        shown
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether output was taken in that another size holds for: a program may paint for a size sooner than it is written down.
    pub(super) fn is_misdrawn(&self, sizes: &[SizeChange]) -> bool {
        let late = |change: &&SizeChange| change.offset < self.offset && !self.sizes.contains(change);
        sizes.iter().filter(late).any(|change| change.size != size_at(&self.sizes, change.offset))
    }

    /// What is known of sizes by now.
    pub(super) fn learn(&mut self, sizes: Vec<SizeChange>) {
        self.sizes = sizes;
        self.settle();
    }

    /// Output up to here is gone.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.offset = self.offset.max(offset);
        self.settle();
    }

    /// Returns what the terminal answers to queries, which is nobody's input when the output is old.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut replies = vec![];
        while !bytes.is_empty() {
            let next = self.sizes.iter().map(|change| change.offset).find(|offset| *offset > self.offset);
            let room = next.map_or(u64::MAX, |next| next - self.offset);
            let (now, later) = bytes.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len()));
            replies.extend(self.survive(|screen| screen.feed(now)).unwrap_or_default());
            self.offset += now.len() as u64;
            self.settle();
            bytes = later;
        }
        replies
    }

    fn settle(&mut self) {
        if !self.sizes.is_empty() {
            let TerminalSize { cols, rows } = size_at(&self.sizes, self.offset);
            self.survive(|screen| screen.resize(cols, rows));
        }
    }

    /// A sandbox writes what it likes, and the emulator is not ours: where it trips, the screen begins anew.
    fn survive<T>(&mut self, work: impl FnOnce(&mut Screen) -> T) -> Option<T> {
        let done = guarded(|| work(&mut self.screen));
        if done.is_none() {
            tracing::warn!(offset = self.offset, "a terminal's screen could not be followed and is cleared");
            let TerminalSize { cols, rows } = size_at(&self.sizes, self.offset);
            self.screen = Screen::new(cols, rows, SCROLLBACK);
        }
        done
    }

    pub(super) fn checkpoint(&mut self) -> Option<Vec<u8>> {
        let offset = self.offset;
        self.survive(|screen| screen.checkpoint(offset).ok()).flatten()
    }

    pub(super) fn look(&mut self, process: &ProcessId) -> Look {
        let seen = self.survive(|screen| (screen.view(), screen.as_ansi()));
        let (view, ansi) = seen.unwrap_or_else(|| (self.screen.view(), self.screen.as_ansi()));
        let view = ScreenView {
            process: process.clone(),
            size: TerminalSize { cols: view.cols, rows: view.rows },
            lines: view.lines,
            cursor: CursorView { row: view.cursor.row, col: view.cursor.col, visible: view.cursor.visible },
            title: view.title,
            alternate_screen: view.alternate_screen,
            offset: self.offset,
            ended: false,
        };
        Look { view, ansi }
    }

    pub(super) fn paint(&mut self) -> Painting {
        let painted = self.survive(|screen| screen.snapshot_with_scrollback());
        let bytes = painted.unwrap_or_else(|| self.screen.snapshot_with_scrollback());
        let (cols, rows) = self.screen.size();
        // It is made from text.
        let data = String::from_utf8_lossy(&bytes).into_owned();
        // What is unfinished is not painted: it comes with the output.
        let offset = self.offset.saturating_sub(self.screen.waiting());
        Painting { data, offset, size: TerminalSize { cols, rows } }
    }

    pub(super) fn scene(&mut self) -> Scene {
        let unknown = Tty { echo: true, canonical: true, quiet_ms: 0, blocked_read: None };
        let seen = self.survive(|screen| sandbar_terminal::Look::of(screen, unknown));
        let seen = seen.unwrap_or_else(|| sandbar_terminal::Look::of(&self.screen, unknown));
        Scene { offset: self.offset, seen }
    }
}

/// The size that holds for the byte at `offset`; the first one known, if that is of later.
pub(super) fn size_at(sizes: &[SizeChange], offset: u64) -> TerminalSize {
    let after = sizes.partition_point(|change| change.offset <= offset);
    sizes.get(after.saturating_sub(1)).map_or(DEFAULT_SIZE, |change| change.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(offset: u64, cols: u16, rows: u16) -> SizeChange {
        SizeChange { offset, at: chrono::DateTime::UNIX_EPOCH, size: TerminalSize { cols, rows } }
    }

    fn process() -> ProcessId {
        ProcessId::from_parts(1, [1; 10])
    }

    #[test]
    fn each_size_holds_from_its_offset_on_wherever_pieces_end() {
        let output = b"0123456789abcdefghij";
        let sizes = vec![change(0, 10, 4), change(4, 5, 4), change(16, 20, 3)];
        let mut whole = Shown::blank(0, sizes.clone(), None);
        whole.feed(output);
        for split in 0..=output.len() {
            let mut shown = Shown::blank(0, sizes.clone(), None);
            shown.feed(&output[..split]);
            let saved = shown.checkpoint().unwrap_or_default();
            let (screen, offset) = Screen::restore(&saved).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(offset, split as u64);
            for mut shown in [shown, Shown::restored(screen, offset, sizes.clone(), None)] {
                shown.feed(&output[split..]);
                assert_eq!(shown.look(&process()).view, whole.look(&process()).view, "at {split}");
            }
        }
        assert_eq!(whole.look(&process()).view.size, TerminalSize { cols: 20, rows: 3 });
    }

    #[test]
    fn a_size_that_is_known_too_late_is_noticed() {
        let known = vec![change(0, 10, 4), change(3, 20, 4)];
        let mut shown = Shown::blank(0, known.clone(), None);
        shown.feed(b"0123456789");
        for (late, wanted) in [
            (None, false),
            (Some(change(10, 5, 4)), false),
            (Some(change(9, 5, 4)), true),
            (Some(change(9, 20, 4)), false),
            (Some(change(3, 5, 4)), true),
        ] {
            let sizes: Vec<_> = known.iter().copied().chain(late).collect();
            assert_eq!(shown.is_misdrawn(&sizes), wanted, "{late:?}");
        }
    }

    #[test]
    fn an_emulator_that_trips_begins_anew_and_goes_on() {
        let mut shown = Shown::blank(0, vec![change(0, 10, 4)], None);
        shown.feed(b"before");
        assert_eq!(shown.survive(|_| -> u8 { panic!("over an escape sequence") }), None);
        shown.feed(b"after");
        let view = shown.look(&process()).view;
        assert_eq!((view.lines.first().map(String::as_str), view.offset), (Some("after"), 11));
    }

    #[test]
    fn a_size_is_found_for_every_offset() {
        assert_eq!(size_at(&[], 7), DEFAULT_SIZE);
        let sizes = [change(5, 50, 5), change(9, 90, 9)];
        for (offset, cols) in [(0, 50), (5, 50), (8, 50), (9, 90), (100, 90)] {
            assert_eq!(size_at(&sizes, offset).cols, cols, "{offset}");
        }
    }
}

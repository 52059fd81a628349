//! The sizes that a viewer has yet to be told of, each where it begins to hold.

use std::collections::VecDeque;

use sandbar_api::TerminalSize;

use super::shown::size_at;
use crate::store::SizeChange;

#[derive(Default)]
pub(super) struct Sizes {
    all: Vec<SizeChange>,
    /// The last one it was told of, or begins with.
    told: Option<SizeChange>,
    coming: VecDeque<SizeChange>,
    seen: u64,
}

impl Sizes {
    /// How many changes there had been when it learned of them.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn learn(&mut self, all: Vec<SizeChange>, seen: u64) {
        let after = match self.told {
            Some(told) => match all.iter().rposition(|change| *change == told) {
                Some(index) => index + 1,
                // So many came since that it is gone: the last one is what matters.
                None => all.len().saturating_sub(1),
            },
            None => 0,
        };
        self.coming = all[after..].iter().copied().collect();
        (self.all, self.seen) = (all, seen);
    }

    /// What holds at `offset` is known from elsewhere.
    pub(super) fn go_to(&mut self, offset: u64) {
        let after = self.all.partition_point(|change| change.offset <= offset);
        self.told = after.checked_sub(1).and_then(|last| self.all.get(last).copied());
        self.coming = self.all[after..].iter().copied().collect();
    }

    pub(super) fn now(&self) -> TerminalSize {
        self.told.map_or_else(|| size_at(&self.all, 0), |told| told.size)
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.coming.front().map(|change| change.offset)
    }

    /// One that holds at `offset` and was not told.
    pub(super) fn due(&mut self, offset: u64) -> Option<SizeChange> {
        let due = self.coming.pop_front_if(|change| change.offset <= offset)?;
        self.told = Some(due);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(offset: u64, cols: u16) -> SizeChange {
        SizeChange { offset, at: chrono::DateTime::UNIX_EPOCH, size: TerminalSize { cols, rows: 5 } }
    }

    #[test]
    fn each_size_is_told_once_where_it_holds() {
        let mut sizes = Sizes::default();
        sizes.learn(vec![change(0, 10), change(4, 20), change(9, 30)], 0);
        sizes.go_to(5);
        assert_eq!((sizes.now().cols, sizes.next(), sizes.due(8)), (20, Some(9), None));
        sizes.learn(vec![change(0, 10), change(4, 20), change(9, 30), change(9, 40)], 1);
        assert_eq!([sizes.due(9), sizes.due(9), sizes.due(9)], [Some(change(9, 30)), Some(change(9, 40)), None]);
        // One that was recorded after output beyond it had been read.
        sizes.learn(vec![change(4, 20), change(9, 30), change(9, 40), change(12, 50)], 2);
        assert_eq!((sizes.due(30), sizes.due(30)), (Some(change(12, 50)), None));
        sizes.learn(vec![change(60, 1), change(70, 2)], 3);
        assert_eq!((sizes.due(100), sizes.due(100)), (Some(change(70, 2)), None), "of very many the last");
    }
}

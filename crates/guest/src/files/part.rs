//! Which bytes of a file are asked for, before anybody knows how many it has. Pure.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// From the first to the last, that one included.
    Between(u64, Option<u64>),
    /// As many as these, from the end.
    Last(u64),
}

impl Part {
    /// Where it starts and how long it is; nothing when the file has no such bytes.
    pub(crate) fn within(self, size: u64) -> Option<(u64, u64)> {
        match self {
            Self::Whole => Some((0, size)),
            Self::Between(first, _) if first >= size => None,
            Self::Between(first, last) => {
                let last = last.unwrap_or(u64::MAX).min(size - 1);
                Some((first, last.checked_sub(first)? + 1))
            }
            Self::Last(0) => None,
            Self::Last(_) if size == 0 => None,
            Self::Last(count) => Some((size.saturating_sub(count), count.min(size))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Part::{Between, Last, Whole};

    #[test]
    fn a_part_is_cut_to_what_there_is() {
        for (part, size, wanted) in [
            (Whole, 0, Some((0, 0))),
            (Whole, 7, Some((0, 7))),
            (Between(0, None), 7, Some((0, 7))),
            (Between(2, Some(4)), 7, Some((2, 3))),
            (Between(2, Some(99)), 7, Some((2, 5))),
            (Between(6, Some(6)), 7, Some((6, 1))),
            (Between(7, None), 7, None),
            (Between(4, Some(2)), 7, None),
            (Between(0, None), 0, None),
            (Last(3), 7, Some((4, 3))),
            (Last(99), 7, Some((0, 7))),
            (Last(0), 7, None),
            (Last(1), 0, None),
            (Between(u64::MAX - 1, Some(u64::MAX)), u64::MAX, Some((u64::MAX - 1, 1))),
        ] {
            assert_eq!(part.within(size), wanted, "{part:?} of {size}");
        }
    }
}

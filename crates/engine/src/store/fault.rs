//! What the errors of databases mean to those above, whichever database it was.

use super::{Error, postgres, sqlite};

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if sqlite::is_full(&error) || postgres::is_full(&error) {
            return Self::DiskFull;
        }
        Self::Database(postgres::told(error))
    }
}

/// Replies that get lost on their way from the database, as tests have it: what was asked for is done.
#[cfg(test)]
pub(crate) mod lost {
    use std::cell::Cell;

    use super::super::{Result, postgres};

    thread_local! {
        // A test and the engine it opens share a thread.
        static NEXT: Cell<u32> = const { Cell::new(0) };
    }

    /// The next so many.
    pub(crate) fn lose(replies: u32) {
        NEXT.set(replies);
    }

    pub(crate) fn left() -> u32 {
        NEXT.get()
    }

    pub(in crate::store) fn lost<T>(reply: Result<T>) -> Result<T> {
        match NEXT.get().checked_sub(1) {
            Some(left) => {
                NEXT.set(left);
                Err(postgres::unknown())
            }
            None => reply,
        }
    }
}

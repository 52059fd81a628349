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

//! What SQLite's errors mean to those above.

use sqlx::{migrate::MigrateError, sqlite::SqliteError};

use crate::store::{Error, output};

/// `SQLITE_FULL`: no space for the database or its log.
const FULL: i32 = 13;
/// `SQLITE_IOERR_SHMSIZE`: the log's shared index could not grow, which only a full disk refuses.
const IOERR_SHMSIZE: i32 = 4874;

pub(in crate::store) fn is_full(error: &sqlx::Error) -> bool {
    let of_sqlite =
        |error: &&(dyn sqlx::error::DatabaseError + 'static)| error.try_downcast_ref::<SqliteError>().is_some();
    let code = error.as_database_error().filter(of_sqlite).and_then(|error| error.code()?.parse::<i32>().ok());
    // The low byte is the primary code; the rest says where it happened.
    code.is_some_and(|code| code & 0xff == FULL || code == IOERR_SHMSIZE)
}

/// Whether it is this column that has to be unique and would not have been.
pub(super) fn not_unique(error: &sqlx::Error, column: &str) -> bool {
    error.as_database_error().is_some_and(|error| error.is_unique_violation() && error.message().contains(column))
}

/// Whether it is a pool's member that was not there.
pub(super) fn no_such_member(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.is_check_violation() && error.message().contains("one = 1"))
}

/// `ROLLBACK` found that SQLite had rolled back by itself, as it does after some failures.
pub(super) fn nothing_to_roll_back(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("no transaction is active"))
}

/// The database's file, seen by ourselves rather than by SQLite.
pub(super) fn file(error: std::io::Error) -> Error {
    if output::is_full(&error) { Error::DiskFull } else { Error::Database(error.into()) }
}

pub(super) fn migration(error: MigrateError, known: i64) -> Error {
    match error {
        MigrateError::VersionMissing(found) if found > known => Error::Unreadable(format!(
            "it was written by a newer version of Sandbar (schema {found}, this one knows {known}); \
             start that version, or use another home"
        )),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) if is_full(&error) => Error::DiskFull,
        error => Error::Migrate(error.into()),
    }
}

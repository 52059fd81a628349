//! What PostgreSQL's errors mean to those above. None of them holds the URL, which may hold a password.

use sqlx::{
    migrate::MigrateError,
    postgres::{PgConnectOptions, PgDatabaseError},
};

use crate::store::{Error, Source};

#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the connection to PostgreSQL was lost; what was being written was not")]
    Lost(#[source] sqlx::Error),
    #[error("the connection to PostgreSQL was lost at a commit; whether it was written is not known")]
    Unknown,
    #[error("another server leads now; this one may write nothing any more")]
    Fenced,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Database(fault.into())
    }
}

fn code(error: &sqlx::Error) -> Option<&str> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    Some(error.code())
}

/// `disk_full`.
pub(in crate::store) fn is_full(error: &sqlx::Error) -> bool {
    code(error) == Some("53100")
}

pub(in crate::store) fn told(error: sqlx::Error) -> Source {
    if is_lost(&error) { Fault::Lost(error).into() } else { error.into() }
}

/// Whether it is not known what became of a transaction.
pub(in crate::store) fn is_unknown(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(Fault::Unknown))
}

/// As if the answer to a commit had been lost.
#[cfg(test)]
pub(in crate::store) fn unknown() -> Error {
    Fault::Unknown.into()
}

/// Whether there is no connection any more: the server went, was told to go, or ended this one.
pub(super) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        // `idle_in_transaction_session_timeout` and `idle_session_timeout` end it too.
        error => code(error).is_some_and(|code| {
            code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "25P03" | "57P05" | "25P04")
        }),
    }
}

/// `cannot_connect_now`: it is being started, or is recovering.
pub(super) fn is_starting(error: &sqlx::Error) -> bool {
    code(error) == Some("57P03")
}

/// Whether it is this column that has to be unique and would not have been: its index has its name.
pub(super) fn not_unique(error: &sqlx::Error, column: &str) -> bool {
    let name = column.replace('.', "_");
    error
        .as_database_error()
        .is_some_and(|error| error.is_unique_violation() && error.constraint() == Some(name.as_str()))
}

/// Whether it is a pool's member that was not there.
pub(super) fn no_such_member(error: &sqlx::Error) -> bool {
    let rule = Some("event_counter_one_check");
    error.as_database_error().is_some_and(|error| error.is_check_violation() && error.constraint() == rule)
}

pub(super) fn url(error: sqlx::Error) -> Error {
    let what = match error {
        sqlx::Error::Configuration(cause) => format!("the URL of PostgreSQL is not one: {cause}"),
        _ => "the URL of PostgreSQL is not one".into(),
    };
    Error::Unusable { what, fix: "Write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full.".into() }
}

/// Why there is no connection, and what to do.
pub(super) fn connecting(error: sqlx::Error, options: &PgConnectOptions) -> Error {
    let place = place(options);
    let user = options.get_username();
    let database = options.get_database().unwrap_or(user);
    let (what, fix) = match (&error, code(&error)) {
        (_, Some("28P01" | "28000")) => (
            format!(
                "PostgreSQL at {place} does not let the user `{user}` in: wrong password, or not allowed from here"
            ),
            "Correct user and password of the URL, or `pg_hba.conf` of the server.".into(),
        ),
        (_, Some("3D000")) => (
            format!("PostgreSQL at {place} has no database `{database}`"),
            format!("Make it (`CREATE DATABASE \"{database}\"`), or correct the URL."),
        ),
        (_, Some("57P03")) => (
            format!("PostgreSQL at {place} is being started or stopped"),
            "Wait until it is ready, and try again.".into(),
        ),
        (_, Some("53300")) => (
            format!("PostgreSQL at {place} has no connection left"),
            "Raise its `max_connections`; a server of Sandbar takes up to 12.".into(),
        ),
        (sqlx::Error::Tls(cause), _) => (
            format!("no TLS with PostgreSQL at {place}: {cause}"),
            "Correct `sslmode` and `sslrootcert` of the URL, or the server's certificate.".into(),
        ),
        (sqlx::Error::Io(cause), _) => (
            format!("PostgreSQL at {place} cannot be reached: {cause}"),
            "Start it, or correct host and port of the URL.".into(),
        ),
        _ => return error.into(),
    };
    Error::Unusable { what, fix }
}

pub(super) fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

pub(super) fn migration(error: MigrateError, known: i64) -> Error {
    match error {
        MigrateError::VersionMissing(found) if found > known => Error::Unusable {
            what: format!(
                "the database was written by a newer version of Sandbar (schema {found}, this one knows {known})"
            ),
            fix: "Start that version, or use another database.".into(),
        },
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) if is_full(&error) => Error::DiskFull,
        error => Error::Migrate(error.into()),
    }
}

//! The store on SQLite: one file for state and events, segments beside it for process output.
//!
//! One connection writes (`writer`), up to three read. Each of the rooms in `../rows` holds the statements of one kind of row;
//! they are compiled here with the words of SQLite, and once more with those of PostgreSQL.

/// The elements of a JSON array.
macro_rules! list {
    ($json:literal) => {
        concat!("(SELECT value FROM json_each(", $json, "))")
    };
}
/// Keys and values of a JSON object.
macro_rules! pairs {
    ($json:literal) => {
        concat!("json_each(", $json, ")")
    };
}
/// A parameter that is compared with columns of text.
macro_rules! collated {
    ($text:literal) => {
        $text
    };
}

#[path = "../rows/approvals.rs"]
mod approvals;
#[path = "../rows/births.rs"]
mod births;
#[path = "../rows/conversations.rs"]
mod conversations;
#[path = "../rows/events.rs"]
mod events;
mod fault;
mod files;
#[path = "../rows/found.rs"]
mod found;
#[path = "../rows/gates.rs"]
mod gates;
#[path = "../rows/instance.rs"]
mod instance;
#[path = "../rows/ledger.rs"]
mod ledger;
mod open;
#[path = "../rows/pools.rs"]
mod pools;
#[path = "../rows/processes.rs"]
mod processes;
#[path = "../rows/prune.rs"]
mod prune;
#[path = "../rows/restarts.rs"]
mod restarts;
#[path = "../rows/sandboxes.rs"]
mod sandboxes;
mod scripts;
#[path = "../rows/secrets.rs"]
mod secrets;
#[path = "../rows/sessions.rs"]
mod sessions;
#[path = "../rows/snapshots.rs"]
mod snapshots;
#[path = "../rows/store.rs"]
mod store;
mod terminals;
#[cfg(test)]
mod tests;
#[path = "../rows/tokens.rs"]
mod tokens;
mod turns;
#[path = "../rows/usage.rs"]
mod usage;
#[path = "../rows/webhooks.rs"]
mod webhooks;
#[path = "../rows/writer.rs"]
mod writer;

use sqlx::SqliteExecutor as Executor;
use tokio::sync::watch;

pub(super) use self::fault::is_full;
use self::{files::Files, writer::Writer};
use super::{columns, gate::Reservations};

type This = SqliteStore;
type Db = sqlx::Sqlite;
type DbRow = sqlx::sqlite::SqliteRow;
type Connection = sqlx::SqliteConnection;
type Pool = sqlx::SqlitePool;

pub struct SqliteStore {
    writer: Writer,
    readers: Pool,
    head: watch::Receiver<u64>,
    output: Files,
    home: std::path::PathBuf,
}

impl SqliteStore {
    /// The home is locked by whoever opened it.
    async fn let_go(&self) {}

    fn keeps_reservations(&self) -> Reservations {
        Reservations::Journal(self.home.clone())
    }
}

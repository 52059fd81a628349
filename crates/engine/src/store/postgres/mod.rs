//! The store on PostgreSQL: everything in its tables, so that any server has all of it. One server at a time may write
//! (`lead`), which every transaction makes sure of.
//!
//! One connection writes state (`writer`), one process output (`output`), some read. The rooms in `../rows` are those of
//! SQLite, compiled with the words of PostgreSQL.

#![expect(clippy::duplicate_mod, reason = "the rooms are compiled for each database, with its own types and macros")]

/// The elements of a JSON array.
macro_rules! list {
    ($json:literal) => {
        concat!("(SELECT jsonb_array_elements_text(CAST(", $json, " AS jsonb)))")
    };
}
/// Keys and values of a JSON object.
macro_rules! pairs {
    ($json:literal) => {
        concat!("jsonb_each_text(CAST(", $json, " AS jsonb))")
    };
}
/// A parameter that is compared with columns of text, byte by byte.
macro_rules! collated {
    ($text:literal) => {
        concat!("CAST(", $text, " AS TEXT) COLLATE \"C\"")
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
#[path = "../rows/found.rs"]
mod found;
#[path = "../rows/gates.rs"]
mod gates;
#[path = "../rows/instance.rs"]
mod instance;
pub mod lead;
#[path = "../rows/ledger.rs"]
mod ledger;
mod open;
mod output;
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
pub(crate) mod tests;
#[path = "../rows/tokens.rs"]
mod tokens;
mod turns;
#[path = "../rows/usage.rs"]
mod usage;
#[path = "../rows/webhooks.rs"]
mod webhooks;
#[path = "../rows/writer.rs"]
mod writer;

use sqlx::PgExecutor as Executor;
use tokio::sync::watch;

#[cfg(test)]
pub(super) use self::fault::unknown;
pub(super) use self::fault::{is_full, is_unknown, told};
use self::{output::Rows, writer::Writer};
use super::{columns, gate::Reservations};

type This = PostgresStore;
type Db = sqlx::Postgres;
type DbRow = sqlx::postgres::PgRow;
type Connection = sqlx::PgConnection;
type Pool = sqlx::PgPool;

pub struct PostgresStore {
    writer: Writer,
    readers: Pool,
    head: watch::Receiver<u64>,
    output: Rows,
    /// Given up with the store.
    lead: lead::Lead,
}

impl PostgresStore {
    /// Another may lead at once.
    async fn let_go(&self) {
        self.lead.release().await;
    }

    fn keeps_reservations(&self) -> Reservations {
        Reservations::Committed
    }
}

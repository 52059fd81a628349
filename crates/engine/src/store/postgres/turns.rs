//! The writers' turns on PostgreSQL: how a connection is made, and how a transaction begins and ends on it.
//!
//! It begins by holding still who leads, so that a server that was overtaken commits nothing any more; and where the answer
//! to a commit was lost with the connection, the database is asked what became of it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::{Instant, sleep};

use super::{
    Connection,
    fault::{self, Fault},
    lead::Lead,
    open::{self, Use},
};
use crate::store::{Error, Result};

/// A server that is being started again is back within this.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Turns {
    pub(super) lead: Lead,
}

pub(super) struct Turn {
    /// Its number, by which its fate can be asked for.
    transaction: String,
}

impl Turns {
    pub(super) async fn connect(&self) -> Result<Connection> {
        let until = Instant::now() + PATIENCE;
        loop {
            match open::connect(self.lead.options(), Use::Writing).await {
                Err(_) if Instant::now() < until && !self.lead.is_lost() => sleep(RETRY).await,
                connected => return connected,
            }
        }
    }

    /// The database's disk is another's: what is full is known when it is written to.
    pub(super) fn has_room(&mut self) -> bool {
        true
    }

    pub(super) fn make_room(&mut self) -> bool {
        false
    }

    pub(super) async fn begin(&self, connection: &mut Connection, _whole: bool) -> Result<Turn> {
        // Both in one trip. Who takes over has to change this row, and waits until this transaction is over.
        let sql = format!(
            "BEGIN; SELECT CAST(pg_current_xact_id() AS TEXT) FROM leadership WHERE one = 1 AND epoch = {} FOR SHARE",
            self.lead.epoch()
        );
        let found = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(connection).await?;
        let Some(row) = found else {
            self.lead.overtaken();
            return Err(Fault::Fenced.into());
        };
        Ok(Turn { transaction: row.try_get(0)? })
    }

    pub(super) async fn commit(&self, connection: &mut Connection, turn: Turn) -> Result<()> {
        match sqlx::raw_sql("COMMIT").execute(&mut *connection).await {
            Ok(_) => Ok(()),
            Err(error) if fault::is_lost(&error) => {
                *connection = self.was_committed(&turn, error).await?;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Another connection, if it was.
    async fn was_committed(&self, turn: &Turn, lost: sqlx::Error) -> Result<Connection> {
        let mut connection = self.connect().await.map_err(|_| Error::from(Fault::Unknown))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let asked = sqlx::query_scalar("SELECT pg_xact_status(CAST($1 AS xid8))").bind(&turn.transaction);
            let fate: Option<String> =
                asked.fetch_one(&mut connection).await.map_err(|_| Error::from(Fault::Unknown))?;
            match fate.as_deref() {
                Some("committed") => return Ok(connection),
                Some("aborted") => return Err(Fault::Lost(lost).into()),
                // The backend has not noticed yet.
                Some(_) if Instant::now() < until => sleep(RETRY).await,
                _ => return Err(Fault::Unknown.into()),
            }
        }
    }

    /// The connection, if it can be used again.
    pub(super) async fn roll_back(&self, mut connection: Connection) -> Option<Connection> {
        match sqlx::raw_sql("ROLLBACK").execute(&mut connection).await {
            Ok(_) => Some(connection),
            Err(error) => {
                tracing::warn!(%error, "failed to roll back; connecting to the database again");
                None
            }
        }
    }
}

//! The writer's turns on SQLite: how its connection is made, how a transaction begins and ends on it, and the ballast. While
//! that is not whole the disk counts as full, and only what is essential is done.

use sqlx::{ConnectOptions as _, sqlite::SqliteConnectOptions};

use super::{Connection, fault};
use crate::store::{Result, ballast::Ballast};

pub(super) struct Turns {
    pub(super) options: SqliteConnectOptions,
    pub(super) ballast: Ballast,
}

/// Whether the work brings its own `BEGIN IMMEDIATE` and `COMMIT`.
pub(super) struct Turn {
    whole: bool,
}

impl Turns {
    pub(super) async fn connect(&self) -> Result<Connection> {
        Ok(self.options.connect().await?)
    }

    pub(super) fn has_room(&mut self) -> bool {
        self.ballast.refill().unwrap_or_else(|error| {
            // It is then a matter of luck whether a full disk can be freed, but this one is not known to be full.
            tracing::warn!(%error, "the ballast cannot be refilled");
            true
        })
    }

    /// Whether trying again may help.
    pub(super) fn make_room(&mut self) -> bool {
        self.ballast.give()
    }

    pub(super) async fn begin(&self, connection: &mut Connection, whole: bool) -> Result<Turn> {
        if !whole {
            // IMMEDIATE: a transaction that starts by reading could otherwise fail when it comes to writing.
            sqlx::query("BEGIN IMMEDIATE").execute(connection).await?;
        }
        Ok(Turn { whole })
    }

    pub(super) async fn commit(&self, connection: &mut Connection, turn: Turn) -> Result<()> {
        if !turn.whole {
            sqlx::query("COMMIT").execute(connection).await?;
        }
        Ok(())
    }

    /// The connection, if it can be used again.
    pub(super) async fn roll_back(&self, mut connection: Connection) -> Option<Connection> {
        match sqlx::query("ROLLBACK").execute(&mut connection).await {
            Ok(_) => Some(connection),
            Err(error) if fault::nothing_to_roll_back(&error) => Some(connection),
            Err(error) => {
                tracing::warn!(%error, "failed to roll back; opening the database again");
                None
            }
        }
    }
}

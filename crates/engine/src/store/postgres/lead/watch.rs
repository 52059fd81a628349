//! Who leads now, for servers that stand by and pass connections on.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::{sync::watch, time::sleep};

use super::{
    super::{
        Connection,
        open::{self, Use},
    },
    LOCK, Leader,
};
use crate::store::Result;

const LOOK: Duration = Duration::from_millis(250);

// Who holds the lock; between taking it and saying so, nobody leads.
const LEADER: &str = "
    SELECT server, address FROM leadership WHERE one = 1 AND EXISTS (
        SELECT 1 FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND pid = leadership.backend AND objsubid = 1
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND (CAST(CAST(classid AS BIGINT) << 32 AS BIGINT) | CAST(objid AS BIGINT)) = $1)";

/// None while nobody does, and while the database cannot be asked. Looks for as long as somebody holds what is returned.
pub async fn watch(url: &str) -> Result<watch::Receiver<Option<Leader>>> {
    let options = open::parse(url)?;
    let mut connection = Some(open::connect(&options, Use::Reading).await?);
    let (told, leader) = watch::channel(look(&mut connection, &options).await);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = told.closed() => return,
                () = sleep(LOOK) => {}
            }
            let now = look(&mut connection, &options).await;
            told.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
        }
    });
    Ok(leader)
}

async fn look(connection: &mut Option<Connection>, options: &PgConnectOptions) -> Option<Leader> {
    if connection.is_none() {
        *connection = open::connect(options, Use::Reading).await.ok();
    }
    let is_new = sqlx::query_scalar("SELECT to_regclass('leadership') IS NULL");
    let found: sqlx::Result<Option<(String, String)>> = async {
        let connection = connection.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        if is_new.fetch_one(&mut *connection).await? {
            return Ok(None);
        }
        sqlx::query_as(LEADER).bind(LOCK).fetch_optional(connection).await
    }
    .await;
    match found {
        Ok(found) => found.map(|(server, address)| Leader { server, address }),
        Err(error) => {
            tracing::debug!(%error, "who leads is not known");
            *connection = None;
            None
        }
    }
}

//! Which of several servers leads. It holds a lock of the database on a connection of its own, and counted the epoch on when
//! it took it: what an earlier leader still tries to write is refused by that number (`turns`).

mod keep;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;
use tokio::{
    sync::watch as channel,
    time::{Duration, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Connection, columns, fault,
    open::{self, Use},
};
use crate::{
    clock,
    store::{Result, migrations},
};

pub use self::watch::watch;

/// Of advisory locks in the database; nobody else may use this number there.
const LOCK: i64 = 0x5361_6e64_6261_7201;
/// How often those who stand by try.
const TRY: Duration = Duration::from_millis(250);

/// A server, as others know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its id.
    pub server: String,
    /// Where others pass connections on to: host and port.
    pub address: String,
}

/// This server leads, as far as it knows. Given up when the last clone goes.
#[derive(Clone)]
pub struct Lead(Arc<Held>);

struct Held {
    options: PgConnectOptions,
    epoch: i64,
    lost: channel::Sender<bool>,
    release: CancellationToken,
    _dropped: DropGuard,
}

impl Lead {
    /// Resolves when it may be another that leads: the server must end then, since it can write nothing any more.
    pub async fn lost(&self) {
        // An error would mean that nobody can tell any more, which is as good as lost.
        self.0.lost.subscribe().wait_for(|lost| *lost).await.ok();
    }

    pub fn is_lost(&self) -> bool {
        *self.0.lost.borrow()
    }

    pub fn epoch(&self) -> i64 {
        self.0.epoch
    }

    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.0.options
    }

    /// Gives it up now, whoever else has a clone; returns when another may take it.
    pub async fn release(&self) {
        self.0.release.cancel();
        self.lost().await;
    }

    /// A write was refused by the epoch.
    pub(super) fn overtaken(&self) {
        self.0.lost.send_replace(true);
    }
}

/// Leads, unless another does.
pub async fn try_lead(url: &str, about: &Leader) -> Result<Option<Lead>> {
    let options = open::parse(url)?;
    let mut connection = contend(&options).await?;
    match lock(&mut connection).await? {
        true => take_over(options, connection, about).await.map(Some),
        false => Ok(None),
    }
}

/// Waits until it may lead. Fails at once where it never could; a database that goes away meanwhile is waited for.
pub async fn wait_to_lead(url: &str, about: &Leader) -> Result<Lead> {
    let options = open::parse(url)?;
    let mut connection = Some(contend(&options).await?);
    loop {
        match &mut connection {
            Some(contending) => match lock(contending).await {
                Ok(true) => {
                    if let Some(connection) = connection.take() {
                        return take_over(options, connection, about).await;
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "waiting for the database, to lead when it is back");
                    connection = None;
                }
            },
            None => connection = contend(&options).await.ok(),
        }
        sleep(TRY).await;
    }
}

async fn contend(options: &PgConnectOptions) -> Result<Connection> {
    let mut connection = open::connect(options, Use::Leading).await?;
    open::fits(&mut connection, options).await?;
    Ok(connection)
}

async fn lock(connection: &mut Connection) -> Result<bool> {
    Ok(sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(LOCK).fetch_one(connection).await?)
}

/// With the lock: shuts earlier leaders out, then brings the database up to date. Only a leader may do that: another
/// version may have led until now.
async fn take_over(options: PgConnectOptions, mut connection: Connection, about: &Leader) -> Result<Lead> {
    let known = migrations::POSTGRES.iter().map(|migration| migration.version).max().unwrap_or(0);
    let is_new: bool =
        sqlx::query_scalar("SELECT to_regclass('leadership') IS NULL").fetch_one(&mut connection).await?;
    if !is_new {
        count_on(&mut connection, about).await?;
    }
    let migrated = migrations::POSTGRES.run_direct(None, &mut connection, false).await;
    migrated.map_err(|error| fault::migration(error, known))?;
    let epoch = count_on(&mut connection, about).await?;
    keep::give_up_if_silent(&mut connection).await?;
    let (lost, release) = (channel::Sender::new(false), CancellationToken::new());
    tokio::spawn(keep::keep(connection, lost.clone(), release.clone()));
    tracing::info!(epoch, "this server leads");
    Ok(Lead(Arc::new(Held { options, epoch, lost, release: release.clone(), _dropped: release.drop_guard() })))
}

/// Waits for the transaction of an earlier leader that is under way.
async fn count_on(connection: &mut Connection, about: &Leader) -> Result<i64> {
    let epoch = sqlx::query_scalar(
        "UPDATE leadership SET epoch = epoch + 1, server = $1, address = $2, backend = pg_backend_pid(), since = $3
         WHERE one = 1 RETURNING epoch",
    )
    .bind(columns::text(&about.server))
    .bind(columns::text(&about.address))
    .bind(clock::now().timestamp_micros())
    .fetch_one(connection);
    Ok(epoch.await?)
}

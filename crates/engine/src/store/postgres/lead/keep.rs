//! Keeps the connection that holds the lock, and notices when it is gone.

use std::time::Duration;

use sqlx::Connection as _;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::super::Connection;
use crate::store::Result;

const BEAT: Duration = Duration::from_millis(500);
/// Shorter than the database takes to give the lock to another after a host has vanished.
const SILENCE: Duration = Duration::from_secs(6);

/// Longer than that, so that a server which lives has given up by itself.
const HANGS: Duration = Duration::from_secs(15);

/// The database ends the connection of a server that hangs, whose kernel still answers for it, and the lock goes with it.
/// Versions before 14 cannot: there it is for a supervisor to end the server.
pub(super) async fn give_up_if_silent(connection: &mut Connection) -> Result<()> {
    sqlx::query("SELECT set_config(name, $1, false) FROM pg_settings WHERE name = 'idle_session_timeout'")
        .bind(HANGS.as_millis().to_string())
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn keep(mut connection: Connection, lost: watch::Sender<bool>, release: CancellationToken) {
    let cause = loop {
        tokio::select! {
            () = release.cancelled() => {
                // The lock goes with the connection, however that ends.
                connection.close().await.ok();
                lost.send_replace(true);
                return;
            }
            () = sleep(BEAT) => {}
        }
        match timeout(SILENCE, connection.ping()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => break error.to_string(),
            Err(_) => break "the database does not answer".into(),
        }
    };
    tracing::error!(cause, "this server does not lead any more");
    lost.send_replace(true);
    // What still comes of the lock goes now, so that nobody waits for it.
    connection.close_hard().await.ok();
}

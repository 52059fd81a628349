//! Opening: the file and who may read it, its connections, its version, and what a crash left behind.

use std::{
    fs::{OpenOptions, Permissions},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use sandbar_api::ProcessId;
use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::watch;

use super::{
    Pool, SqliteStore, columns, fault,
    files::Files,
    turns::Turns,
    writer::{self, Writer},
};
use crate::store::{Error, Result, ballast::Ballast, migrations, output::Output};

/// It holds environments and digests of tokens: nobody's but the owner's.
const OWNER_ONLY: u32 = 0o600;
const READERS: u32 = 3;
/// A reader's thread and cache are given back when nobody asks anything.
const READER_IDLE: Duration = Duration::from_secs(60);
const BUSY: Duration = Duration::from_secs(5);
/// Directories of output compared with the database at a time.
const SWEEP: usize = 500;

impl SqliteStore {
    /// The caller holds the home's lock: two stores on one home would number events twice.
    pub async fn open(home: &Path) -> Result<Self> {
        let mut ballast = Ballast::find(home).map_err(fault::file)?;
        let (connection, options, newest) = loop {
            match connect(home).await {
                // Opening needs room for the log's index, and it is by opening that room can be made.
                Err(Error::DiskFull) if ballast.give() => {}
                connected => break connected?,
            }
        };
        let (announce, head) = watch::channel(newest);
        let reading = self::options(home).read_only(true).pragma("cache_size", "-500").statement_cache_capacity(24);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .idle_timeout(READER_IDLE)
            .max_lifetime(None)
            // There is no network in between that could have gone away.
            .test_before_acquire(false)
            .connect_lazy_with(reading);
        match ballast.refill() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the home's disk is full: until there is room, nothing new can be made"),
            Err(error) => tracing::warn!(%error, "no room can be kept for when the home's disk is full"),
        }
        let store = Self {
            writer: Writer::start(connection, Turns { options, ballast }, announce),
            readers,
            head,
            output: Files(Arc::new(Output::open(home)?)),
            home: home.to_owned(),
        };
        store.sweep().await?;
        Ok(store)
    }

    /// Removes output whose process was pruned or whose sandbox was deleted just before the server died.
    async fn sweep(&self) -> Result<()> {
        let found = self.output.elsewhere(Output::processes).await?;
        for some in found.chunks(SWEEP) {
            let living = living(&self.readers, some).await?;
            let gone = some.iter().filter(|id| !living.contains(id)).cloned().collect();
            self.output.remove(gone).await?;
        }
        Ok(())
    }
}

fn options(home: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(home.join("sandbar.db"))
        .busy_timeout(BUSY)
        .foreign_keys(true)
        .disable_statement_logging()
}

/// The writing connection, to a database of this version, and how to make another; and the newest event's number.
async fn connect(home: &Path) -> Result<(SqliteConnection, SqliteConnectOptions, u64)> {
    private(&home.join("sandbar.db")).map_err(fault::file)?;
    let writing = options(home)
        .journal_mode(SqliteJournalMode::Wal)
        // The log is synced at every commit: what was announced survives a power cut.
        .synchronous(SqliteSynchronous::Full)
        // After a burst the log shrinks back to this.
        .pragma("journal_size_limit", "16777216")
        .pragma("cache_size", "-2000")
        .statement_cache_capacity(48);
    let mut connection = writing.connect().await?;
    let known = migrations::SQLITE.iter().map(|migration| migration.version).max().unwrap_or(0);
    // `run` is the same for an executor of any kind, and for that its future is not `Send`.
    let migrated = migrations::SQLITE.run_direct(None, &mut connection, false).await;
    migrated.map_err(|error| fault::migration(error, known))?;
    let newest = writer::newest(&mut connection).await?;
    Ok((connection, writing, newest))
}

/// Makes the file before SQLite does, whose own would be readable to others; its log and index get the same mode.
fn private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).mode(OWNER_ONLY).open(path)?;
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))
}

/// Those of `ids` whose output is to be kept.
async fn living(readers: &Pool, ids: &[ProcessId]) -> Result<Vec<ProcessId>> {
    let ids: Vec<String> = sqlx::query_scalar(concat!(
        "SELECT p.id FROM processes AS p JOIN sandboxes AS s ON s.id = p.sandbox
         WHERE s.state <> 'deleted' AND p.id IN ",
        list!("$1")
    ))
    .bind(columns::json(&ids)?)
    .fetch_all(readers)
    .await?;
    ids.iter().map(|id| columns::parse(id)).collect()
}

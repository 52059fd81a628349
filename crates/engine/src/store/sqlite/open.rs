//! Opening: the file and who may read it, its connections, its version, and what a crash left behind.

use std::{
    collections::HashMap,
    fs::{self, OpenOptions, Permissions},
    io::ErrorKind,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures_util::future::try_join_all;
use sandbar_api::ProcessId;
use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::watch;

use super::{
    Pool, SqliteStore, columns, fault,
    files::Files,
    instance,
    turns::Turns,
    writer::{self, Writer},
};
use crate::{
    clock,
    store::{Error, Identity, Result, ballast::Ballast, migrations, output::Output},
};

const FILE: &str = "sandbar.db";
/// It holds environments and digests of tokens: nobody's but the owner's.
const OWNER_ONLY: u32 = 0o600;
const READERS: u32 = 3;
const BUSY: Duration = Duration::from_secs(5);
/// Directories of output compared with the database at a time.
const SWEEP: usize = 500;

impl SqliteStore {
    /// The caller holds the home's lock: two stores on one home would number events twice.
    pub async fn open(home: &Path) -> Result<Self> {
        let mut ballast = Ballast::find(home).map_err(fault::file)?;
        let (mut connection, options) = reach(home, &mut ballast).await?;
        let newest = loop {
            match migrate(&mut connection).await {
                Err(Error::DiskFull) if ballast.give() => {}
                migrated => break migrated?,
            }
        };
        let (announce, head) = watch::channel(newest);
        let reading = self::options(home).read_only(true).pragma("cache_size", "-500").statement_cache_capacity(24);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            // Each has a thread, which is not to be had where the process table is full: they are made now, and stay.
            .idle_timeout(None)
            .max_lifetime(None)
            // There is no network in between that could have gone away.
            .test_before_acquire(false)
            .connect_lazy_with(reading);
        match ballast.refill() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the home's disk is full: until there is room, nothing new can be made"),
            Err(error) => tracing::warn!(%error, "no room can be kept for when the home's disk is full"),
        }
        reserve(&readers).await?;
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

    /// Which store the home has; none where its file is missing, or empty. Changes nothing.
    pub async fn identity(home: &Path) -> Result<Option<Identity>> {
        match fs::metadata(home.join(FILE)) {
            Ok(found) if found.len() > 0 => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault::file(error)),
        }
        let mut ballast = Ballast::find(home).map_err(fault::file)?;
        let (mut connection, _) = reach(home, &mut ballast).await?;
        let tables: Vec<String> =
            sqlx::query_scalar("SELECT name FROM sqlite_master WHERE name IN ('instance', 'event_counter')")
                .fetch_all(&mut connection)
                .await?;
        let has = |name: &str| tables.iter().any(|table| table == name);
        let identity = match (has("event_counter"), has("instance")) {
            (false, _) => None,
            (true, false) => Some(Identity { instance: None, epoch: writer::newest(&mut connection).await? }),
            (true, true) => Some(instance::identity(&mut connection).await?),
        };
        connection.close().await?;
        Ok(identity)
    }

    /// Whether the home has output of any process.
    pub fn has_output(home: &Path) -> Result<bool> {
        Output::is_any(home)
    }

    /// Removes output whose sandbox was deleted just before the server died. What is of no process of this store is not its
    /// to remove.
    async fn sweep(&self) -> Result<()> {
        let found = self.output.elsewhere(Output::processes).await?;
        for some in found.chunks(SWEEP) {
            let known = known(&self.readers, some).await?;
            let gone: Vec<_> = known.iter().filter(|(_, gone)| **gone).map(|(id, _)| id.clone()).collect();
            self.output.remove(gone).await?;
            let some = some.to_vec();
            self.output.elsewhere(move |output| sort(output, &some, &known)).await?;
        }
        Ok(())
    }
}

fn sort(output: &Output, found: &[ProcessId], known: &HashMap<ProcessId, bool>) -> Result<()> {
    for process in found {
        match known.get(process) {
            Some(true) => {}
            Some(false) => {
                if output.take_back(process)? {
                    tracing::info!(%process, "output is out of quarantine: the database knows its process");
                }
            }
            None => {
                if output.set_aside(process, clock::now(), "the database does not know its process")? {
                    tracing::warn!(%process, "the output of a process that the database does not know is in quarantine");
                }
            }
        }
    }
    Ok(())
}

fn options(home: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(home.join(FILE))
        .busy_timeout(BUSY)
        .foreign_keys(true)
        .disable_statement_logging()
}

/// The writing connection, and how to make another. Opening needs room for the log's index, and it is by opening that room can
/// be made.
async fn reach(home: &Path, ballast: &mut Ballast) -> Result<(SqliteConnection, SqliteConnectOptions)> {
    loop {
        match connect(home).await {
            Err(Error::DiskFull) if ballast.give() => {}
            connected => return connected,
        }
    }
}

async fn connect(home: &Path) -> Result<(SqliteConnection, SqliteConnectOptions)> {
    private(&home.join(FILE)).map_err(fault::file)?;
    let writing = options(home)
        .journal_mode(SqliteJournalMode::Wal)
        // The log is synced at every commit: what was announced survives a power cut.
        .synchronous(SqliteSynchronous::Full)
        // After a burst the log shrinks back to this.
        .pragma("journal_size_limit", "16777216")
        .pragma("cache_size", "-2000")
        .statement_cache_capacity(48);
    Ok((writing.connect().await?, writing))
}

/// Opens all connections of those who read.
async fn reserve(readers: &Pool) -> Result<()> {
    try_join_all((0..READERS).map(|_| readers.acquire())).await?;
    Ok(())
}

/// Brings it to this version; the newest event's number.
async fn migrate(connection: &mut SqliteConnection) -> Result<u64> {
    let known = migrations::SQLITE.iter().map(|migration| migration.version).max().unwrap_or(0);
    // `run` is the same for an executor of any kind, and for that its future is not `Send`.
    let migrated = migrations::SQLITE.run_direct(None, connection, false).await;
    migrated.map_err(|error| fault::migration(error, known))?;
    writer::newest(connection).await
}

/// Makes the file before SQLite does, whose own would be readable to others; its log and index get the same mode.
fn private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).mode(OWNER_ONLY).open(path)?;
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))
}

/// Those of `ids` that it knows, and whether their sandbox was deleted.
async fn known(readers: &Pool, ids: &[ProcessId]) -> Result<HashMap<ProcessId, bool>> {
    let rows: Vec<(String, bool)> = sqlx::query_as(concat!(
        "SELECT p.id, s.state = 'deleted' FROM processes AS p JOIN sandboxes AS s ON s.id = p.sandbox WHERE p.id IN ",
        list!("$1")
    ))
    .bind(columns::json(&ids)?)
    .fetch_all(readers)
    .await?;
    rows.iter().map(|(id, gone)| Ok((columns::parse(id)?, *gone))).collect()
}

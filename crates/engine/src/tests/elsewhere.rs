//! The same tests over PostgreSQL: what a home is to SQLite, a database is there. Chosen by a variable, so that they are
//! written once.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use super::Tested;
use crate::{
    StoreAt,
    store::{
        Error, Store,
        postgres::{
            PostgresStore, lead,
            tests::{KEY, cluster, leader},
        },
        sqlite::SqliteStore,
    },
};

const CHOICE: &str = "SANDBAR_TEST_STORE";
const POSTGRES: &str = "postgres";

/// The database of a home; None where it is SQLite.
async fn url(home: &Path) -> Option<String> {
    static KNOWN: LazyLock<Mutex<HashMap<PathBuf, String>>> = LazyLock::new(Mutex::default);
    if std::env::var(CHOICE).as_deref() != Ok(POSTGRES) {
        return None;
    }
    let cluster = cluster::shared()?;
    let mut known = KNOWN.lock().await;
    if let Some(url) = known.get(home) {
        return Some(url.clone());
    }
    let url = cluster.database().await.unwrap_or_else(|error| panic!("no database for the test: {error}"));
    known.insert(home.to_owned(), url.clone());
    Some(url)
}

pub(super) async fn store_at(home: &Path) -> Result<StoreAt, Error> {
    match url(home).await {
        Some(url) => Ok(StoreAt::Postgres(lead::wait_to_lead(&url, &leader("a")).await?)),
        None => Ok(StoreAt::Home),
    }
}

pub(super) async fn store(home: &Path) -> Result<Arc<dyn Store>, Error> {
    match store_at(home).await? {
        StoreAt::Home => Ok(Arc::new(SqliteStore::open(home).await?)),
        StoreAt::Postgres(lead) => Ok(Arc::new(PostgresStore::open(lead, KEY).await?)),
    }
}

/// Where nearly nothing is said of files in the home.
const ROOMS: [&str; 12] = [
    "tests::budgets::",
    "tests::forks::",
    "tests::ledger::",
    "tests::life::",
    "tests::network::",
    "tests::pools::",
    "tests::processes::",
    "tests::restart::",
    "tests::restarts::",
    "tests::sessions::",
    "tests::terminals::",
    "tests::workspaces::",
];

/// These look at those files, or at what a full disk under them does, or open a home twice.
const OF_SQLITE: [&str; 5] = [
    "tests::ledger::on_a_full_disk_nothing_begins_and_what_began_ends",
    "tests::ledger::what_only_the_journal_has_stands_too",
    "tests::restart::a_home_has_one_engine_at_a_time",
    "tests::terminals::a_screen_survives_the_server_and_its_process",
    "tests::terminals::checkpoints_show_what_all_of_the_output_shows",
];

#[test]
fn the_engine_does_the_same_on_postgresql() -> Tested {
    if cluster::shared().is_none() {
        return Ok(());
    }
    let log = tempfile::NamedTempFile::new()?;
    let mut same = Command::new(std::env::current_exe()?);
    let passed_over = OF_SQLITE.iter().flat_map(|name| ["--skip", name]);
    same.args(ROOMS).args(passed_over).env(CHOICE, POSTGRES).stdin(Stdio::null());
    let out = log.reopen()?;
    let mut running = same.stderr(out.try_clone()?).stdout(out).spawn()?;
    let until = Instant::now() + Duration::from_secs(1200);
    let ended = loop {
        if let Some(ended) = running.try_wait()? {
            break ended;
        }
        if Instant::now() > until {
            running.kill()?;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let told = std::fs::read_to_string(log.path())?;
    assert!(ended.success(), "{told}");
    let passed = told.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed > 50), "{told}");
    Ok(())
}

//! Opening: connections and what is asked of the server, its version, the key that the database was made with.

use std::time::Duration;

use sqlx::{
    ConnectOptions as _, Connection as _,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    Connection, PostgresStore, fault, instance,
    lead::Lead,
    output::Rows,
    turns::Turns,
    writer::{self, Writer},
};
use crate::store::{Error, Identity, Result};

const OLDEST: i64 = 13;
const CONNECTING: Duration = Duration::from_secs(5);
/// A server that is being started is waited for.
const STARTING: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);
pub(super) const READERS: u32 = 8;
/// A connection that nobody used for so long is asked for a sign of life first.
const FRESH: Duration = Duration::from_secs(5);
const ACQUIRE: Duration = Duration::from_secs(10);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Reading,
    Writing,
    /// Holding the lead, and bringing the database up to date.
    Leading,
}

impl PostgresStore {
    /// Which it is. Leading has given it its tables.
    pub async fn identity(lead: &Lead) -> Result<Identity> {
        let mut connection = connect(lead.options(), Use::Reading).await?;
        let identity = instance::identity(&mut connection).await?;
        // It has read what it was for.
        connection.close().await.ok();
        Ok(identity)
    }

    /// Of a server that leads. The fingerprint is of the key that secrets are sealed with.
    pub async fn open(lead: Lead, key_fingerprint: [u8; 32]) -> Result<Self> {
        let turns = Turns { lead: lead.clone() };
        let mut connection = connect(lead.options(), Use::Writing).await?;
        same_key(&turns, &mut connection, key_fingerprint).await?;
        let (announce, head) = watch::channel(writer::newest(&mut connection).await?);
        let readers = PgPoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(ACQUIRE)
            .test_before_acquire(false)
            .before_acquire(|connection, told| {
                Box::pin(async move {
                    if told.idle_for >= FRESH {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(of(lead.options(), Use::Reading));
        let output = Rows::start(turns.clone(), readers.clone());
        let writer = Writer::start(connection, turns, announce);
        let store = Self { writer, readers, head, output, lead };
        store.output.sweep().await?;
        Ok(store)
    }
}

/// What is sealed under one key does not open with another, and is found out only when it is needed.
async fn same_key(turns: &Turns, connection: &mut Connection, fingerprint: [u8; 32]) -> Result<()> {
    let turn = turns.begin(connection, false).await?;
    sqlx::query("INSERT INTO secret_key (one, fingerprint) VALUES (1, $1) ON CONFLICT (one) DO NOTHING")
        .bind(fingerprint.as_slice())
        .execute(&mut *connection)
        .await?;
    turns.commit(connection, turn).await?;
    let known: Vec<u8> =
        sqlx::query_scalar("SELECT fingerprint FROM secret_key WHERE one = 1").fetch_one(&mut *connection).await?;
    if known != fingerprint {
        return Err(Error::Unusable {
            what: "the database was made with another key than the `secret.key` of this home".into(),
            fix: "Copy `secret.key` from the home of a server that used this database, or use another database.".into(),
        });
    }
    Ok(())
}

/// The password is in it, hence it is never printed.
pub(super) fn parse(url: &str) -> Result<PgConnectOptions> {
    // The driver takes a URL of anything for one of PostgreSQL.
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(fault::url(sqlx::Error::Configuration("it does not begin with postgres://".into())));
    }
    let options: PgConnectOptions = url.parse().map_err(fault::url)?;
    Ok(options.application_name("sandbar").disable_statement_logging())
}

pub(super) async fn connect(options: &PgConnectOptions, for_what: Use) -> Result<Connection> {
    let (asked, until) = (of(options, for_what), Instant::now() + STARTING);
    loop {
        let connected = timeout(CONNECTING, asked.connect()).await;
        match connected.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))) {
            Err(error) if fault::is_starting(&error) && Instant::now() < until => sleep(RETRY).await,
            connected => return connected.map_err(|error| fault::connecting(error, options)),
        }
    }
}

fn of(options: &PgConnectOptions, for_what: Use) -> PgConnectOptions {
    // A host that vanished is noticed by the server within 15 s, so that what it held is free again.
    let options = options.clone().options([
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "3"),
        ("tcp_keepalives_count", "3"),
        ("tcp_user_timeout", "15000"),
    ]);
    match for_what {
        Use::Reading => options.options([("default_transaction_read_only", "on"), ("statement_timeout", "30000")]),
        Use::Writing => options.options([
            // What was announced survives a power cut, whatever the server's own setting is.
            ("synchronous_commit", "on"),
            ("statement_timeout", "30000"),
            ("idle_in_transaction_session_timeout", "10000"),
        ]),
        Use::Leading => options.options([("synchronous_commit", "on"), ("lock_timeout", "60000")]),
    }
}

/// Whether the server can hold the store at all.
pub(super) async fn fits(connection: &mut Connection, options: &PgConnectOptions) -> Result<()> {
    let row: (String, String, String) = sqlx::query_as(
        "SELECT current_setting('server_version_num'), current_setting('server_version'),
                current_setting('server_encoding')",
    )
    .fetch_one(connection)
    .await?;
    let (number, version, encoding) = row;
    judged(&number, &version, &encoding, &fault::place(options))
}

fn judged(number: &str, version: &str, encoding: &str, place: &str) -> Result<()> {
    if number.parse::<i64>().unwrap_or(0) / 10_000 < OLDEST {
        return Err(Error::Unusable {
            what: format!("PostgreSQL at {place} is {version}, which is too old"),
            fix: format!("Use version {OLDEST} or newer."),
        });
    }
    if encoding != "UTF8" {
        return Err(Error::Unusable {
            what: format!("the database at {place} is encoded in {encoding}"),
            fix: "Make one with ENCODING 'UTF8'.".into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_and_other_encodings_are_refused() {
        assert!(judged("130001", "13.1", "UTF8", "db:5432").is_ok());
        let told = |judged: Result<()>| judged.err().map(|error| error.to_string());
        let old = told(judged("120022", "12.22", "UTF8", "db:5432"));
        assert_eq!(old.as_deref(), Some("PostgreSQL at db:5432 is 12.22, which is too old"));
        let latin = told(judged("150000", "15.0", "LATIN1", "db:5432"));
        assert_eq!(latin.as_deref(), Some("the database at db:5432 is encoded in LATIN1"));
    }
}

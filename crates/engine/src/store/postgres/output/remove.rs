//! Removing output, some rows at a time; and what a crash left of processes that are gone.

use sandbar_api::ProcessId;
use tokio::sync::oneshot;

use super::{
    super::{Connection, columns, turns::Turns},
    Rows,
};
use crate::store::Result;

/// Rows a transaction.
const ROWS: i64 = 256;
/// Processes asked about at a time.
const PROCESSES: usize = 500;

pub(super) struct Removal {
    pub(super) processes: Vec<ProcessId>,
    pub(super) reply: oneshot::Sender<Result<()>>,
}

/// The oldest first, so that what is left has an end as before.
const SOME: &str = "
    DELETE FROM output WHERE (process, start) IN (
        SELECT process, start FROM output WHERE process = ANY($1) ORDER BY process, start LIMIT $2)";

/// Whether that was all.
pub(super) async fn some(turns: &Turns, connection: &mut Connection, processes: &[ProcessId]) -> Result<bool> {
    let ids: Vec<&str> = processes.iter().map(ProcessId::as_str).collect();
    let turn = turns.begin(connection, false).await?;
    let gone = sqlx::query(SOME).bind(&ids).bind(ROWS).execute(&mut *connection).await?.rows_affected();
    let all = columns::signed(gone) < ROWS;
    if all {
        for sql in ["DELETE FROM terminal_sizes WHERE process = ANY($1)", "DELETE FROM screens WHERE process = ANY($1)"]
        {
            sqlx::query(sql).bind(&ids).execute(&mut *connection).await?;
        }
    }
    turns.commit(connection, turn).await?;
    Ok(all)
}

// From process to process by the index, not over all their rows.
const GONE: &str = "
    WITH RECURSIVE known (id) AS (
        SELECT min(process) FROM output
        UNION ALL SELECT (SELECT min(process) FROM output WHERE process > known.id) FROM known WHERE known.id IS NOT NULL),
    everyone (id) AS (
        SELECT id FROM known WHERE id IS NOT NULL
        UNION SELECT process FROM terminal_sizes UNION SELECT process FROM screens)
    SELECT id FROM everyone WHERE NOT EXISTS (
        SELECT 1 FROM processes AS p JOIN sandboxes AS s ON s.id = p.sandbox WHERE p.id = everyone.id AND s.state <> 'deleted')
    ORDER BY id";

impl Rows {
    /// Removes output whose process was pruned or whose sandbox was deleted just before a server died.
    pub(in crate::store::postgres) async fn sweep(&self) -> Result<()> {
        let gone: Vec<String> = sqlx::query_scalar(GONE).fetch_all(&self.readers).await?;
        let gone = gone.iter().map(|id| columns::parse(id)).collect::<Result<Vec<ProcessId>>>()?;
        for some in gone.chunks(PROCESSES) {
            self.remove(some.to_vec()).await?;
        }
        Ok(())
    }
}

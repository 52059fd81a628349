//! What is done most often, as one statement each: every trip to the server and back is paid for by whoever waits. All of
//! the parts of a statement see what was there before it; foreign keys are looked at when it is done.

use super::{columns, writer::Transaction};
use crate::store::{Result, gate::FactRow};

/// There and back: only a commit reaches the disk, and only of pages that changed.
pub(super) const CHECK: &str = "UPDATE event_counter SET seq = seq + 1; UPDATE event_counter SET seq = seq - 1";

// A number is taken exactly when its event is there.
pub(super) const EVENT: &str = "
    WITH counter AS (UPDATE event_counter SET seq = seq + 1 WHERE one = 1 RETURNING seq)
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $1, $2, $3, $4, $5 FROM counter
    RETURNING seq";

// The first part breaks the rule that there is one counter, and with it the statement, if there is no such member.
pub(super) const BIRTH: &str = "
    WITH member AS (
        INSERT INTO event_counter (one, seq)
        SELECT 2, 0 WHERE $25 = 1 AND NOT EXISTS (SELECT 1 FROM pool_members WHERE id = $1)),
    taken AS (DELETE FROM pool_members WHERE $25 = 1 AND id = $1),
    session AS (
        INSERT INTO sessions (id, owner, created_at, parent, name, labels, budget)
        SELECT $3, $16, $12, $27, $32, $33, $35 WHERE $17 = 1),
    sandbox AS (
        INSERT INTO sandboxes (id, name, session, state, reason, template_name, template, provider, labels, env,
                               workspace, created_at, changed_at, expires_at, from_snapshot, lease)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $34)),
    gate AS (INSERT INTO gates (sandbox, rules, secrets, certificate, key) VALUES ($1, $28, $29, $30, $31)),
    labels AS (
        INSERT INTO sandbox_labels (sandbox, key, value)
        SELECT $1, key, value FROM jsonb_each_text(CAST($9 AS jsonb))),
    key AS (
        INSERT INTO idempotency_keys (owner, key, digest, sandbox, created_at)
        SELECT $26, $20, $21, $1, $18 WHERE $20 IS NOT NULL),
    counter AS (UPDATE event_counter SET seq = seq + 1 + $17 + $23 WHERE one = 1 RETURNING seq),
    told AS (
        INSERT INTO events (seq, at, kind, sandbox, process, data)
        SELECT seq - $23 - 1, $18, 'session.created', NULL, NULL, $19 FROM counter WHERE $17 = 1
        UNION ALL SELECT seq - $23, $18, 'sandbox.created', $1, NULL, $22 FROM counter
        UNION ALL SELECT seq, $18, 'sandbox.ready', $1, NULL, $24 FROM counter WHERE $23 = 1)
    SELECT seq FROM counter";

// The state that was read is asked for once more inside the transaction, so that nothing can come between. What waits to be
// started again in a sandbox that ends is not.
pub(super) const TRANSITION: &str = "
    WITH changed AS (
        UPDATE sandboxes SET state = $3, reason = $4, changed_at = $5 WHERE id = $1 AND state = $2 RETURNING id),
    ended AS (
        UPDATE restarts SET state = 'ended', due = NULL
        WHERE sandbox = $1 AND state = 'waiting' AND $3 IN ('stopping', 'stopped', 'failed', 'deleted')),
    counter AS (UPDATE event_counter SET seq = seq + 1 WHERE EXISTS (SELECT 1 FROM changed) RETURNING seq)
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $5, 'sandbox.' || $3, $1, NULL, $6 FROM counter
    RETURNING seq";

// Selecting from the sandbox keeps a process from starting in one that is deleted; then there is no event either.
pub(super) const PROCESS_START: &str = "
    WITH started AS (
        INSERT INTO processes (id, sandbox, argv, cwd, terminal, state, exit, started_at, exited_at)
        SELECT $1, id, $3, $4, $5, $6, $7, $8, $9 FROM sandboxes WHERE id = $2 AND state <> 'deleted' RETURNING id),
    counter AS (UPDATE event_counter SET seq = seq + 1 WHERE EXISTS (SELECT 1 FROM started) RETURNING seq)
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $10, 'process.started', $2, $1, $11 FROM counter
    RETURNING seq";

pub(super) const PROCESS_END: &str = "
    WITH ended AS (
        UPDATE processes SET state = $2, exit = $3, exited_at = $4 WHERE id = $1 AND state = 'running'
        RETURNING id, sandbox),
    counter AS (UPDATE event_counter SET seq = seq + 1 WHERE EXISTS (SELECT 1 FROM ended) RETURNING seq)
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $5, $6, sandbox, id, $7 FROM counter, ended
    RETURNING seq";

// The event is made of the row, and only if this is what ended it.
pub(super) const CALL_END: &str = "
    WITH ended AS (
        UPDATE llm_calls SET ended_at = $2, estimated = $3, input = $4, cached_input = $5, cache_write = $6, output = $7,
            tokens = $8, micros = $9, status = $10, elapsed_ms = $11, note = $12
        WHERE id = $1 AND ended_at IS NULL RETURNING *),
    counter AS (UPDATE event_counter SET seq = seq + 1 WHERE EXISTS (SELECT 1 FROM ended) RETURNING seq)
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $13, 'llm.call', sandbox, NULL, CAST(json_build_object(
        'call', id, 'session', session, 'model', model, 'upstream', upstream,
        'input_tokens', input, 'cached_input_tokens', cached_input, 'output_tokens', output, 'total_tokens', tokens,
        'usd', CAST(micros AS DOUBLE PRECISION) / 1000000, 'estimated', estimated = 1,
        'status', status, 'ms', elapsed_ms, 'note', note) AS TEXT)
    FROM counter, ended
    RETURNING seq";

// The data as it is, not by way of the database's own JSON, which has no NUL.
const FACTS: &str = "
    WITH counter AS (UPDATE event_counter SET seq = seq + $1 WHERE one = 1 RETURNING seq),
    told AS (
        INSERT INTO events (seq, at, kind, sandbox, process, data)
        SELECT counter.seq - $1 + fact.number, $2, fact.kind, fact.sandbox, NULL, fact.data
        FROM counter, unnest($3, $4, $5) WITH ORDINALITY AS fact (kind, sandbox, data, number))
    SELECT seq FROM counter";

pub(super) async fn append_facts(transaction: &mut Transaction, facts: Vec<FactRow>) -> Result<()> {
    let kinds: Vec<&str> = facts.iter().map(|fact| fact.kind).collect();
    let sandboxes: Vec<&str> = facts.iter().map(|fact| fact.sandbox.as_str()).collect();
    let data = facts.iter().map(|fact| columns::json(&fact.data)).collect::<Result<Vec<_>>>()?;
    let seq = sqlx::query_scalar(FACTS)
        .bind(columns::signed(facts.len() as u64))
        .bind(transaction.now.timestamp_micros())
        .bind(kinds)
        .bind(sandboxes)
        .bind(data)
        .fetch_one(&mut transaction.connection)
        .await?;
    transaction.appended(seq)
}

//! What is done most often, as scripts of several statements: each trip to the database's thread and back costs about as much
//! as the statement it carries. Those with a `BEGIN` are transactions of their own.

use serde_json::{Value, json};

use super::{
    columns::{self, signed},
    writer::Transaction,
};
use crate::store::{Result, gate::FactRow};

/// There and back: only a commit reaches the disk, and only of pages that changed.
pub(super) const CHECK: &str = "UPDATE event_counter SET seq = seq + 1; UPDATE event_counter SET seq = seq - 1";

// A number is taken exactly when its event is there.
pub(super) const EVENT: &str = "
    UPDATE event_counter SET seq = seq + 1 WHERE one = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $1, $2, $3, $4, $5 FROM event_counter WHERE one = 1
    RETURNING seq";

// The first statement breaks the rule that there is one counter, and with it the script, if there is no such member.
pub(super) const BIRTH: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO event_counter (one, seq) SELECT 2, 0 WHERE $25 AND NOT EXISTS (SELECT 1 FROM pool_members WHERE id = $1);
    DELETE FROM pool_members WHERE $25 AND id = $1;

    INSERT INTO sessions (id, owner, created_at, parent, name, labels, budget)
    SELECT $3, $16, $12, $27, $32, $33, $35 WHERE $17;
    INSERT INTO sandboxes (id, name, session, state, reason, template_name, template, provider, labels, env,
                           workspace, created_at, changed_at, expires_at, from_snapshot, lease)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $34);
    INSERT INTO gates (sandbox, rules, secrets, certificate, key) VALUES ($1, $28, $29, $30, $31);
    INSERT INTO sandbox_labels (sandbox, key, value) SELECT $1, key, value FROM json_each($9);
    INSERT INTO idempotency_keys (owner, key, digest, sandbox, created_at)
    SELECT $26, $20, $21, $1, $18 WHERE $20 IS NOT NULL;

    UPDATE event_counter SET seq = seq + 1 WHERE $17;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $18, 'session.created', NULL, NULL, $19 FROM event_counter WHERE $17;
    UPDATE event_counter SET seq = seq + 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $18, 'sandbox.created', $1, NULL, $22 FROM event_counter;
    UPDATE event_counter SET seq = seq + 1 WHERE $23;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $18, 'sandbox.ready', $1, NULL, $24 FROM event_counter WHERE $23;
    SELECT seq FROM event_counter;
    COMMIT";

// The state that was read is asked for once more inside the transaction, so that nothing can come between. What waits to be
// started again in a sandbox that ends is not.
pub(super) const TRANSITION: &str = "
    BEGIN IMMEDIATE;
    UPDATE sandboxes SET state = $3, reason = $4, changed_at = $5 WHERE id = $1 AND state = $2;
    UPDATE event_counter SET seq = seq + 1 WHERE changes() = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $5, 'sandbox.' || $3, $1, NULL, $6 FROM event_counter WHERE changes() = 1
    RETURNING seq;
    UPDATE restarts SET state = 'ended', due = NULL
    WHERE sandbox = $1 AND state = 'waiting' AND $3 IN ('stopping', 'stopped', 'failed', 'deleted');
    COMMIT";

// Selecting from the sandbox keeps a process from starting in one that is deleted; then there is no event either.
pub(super) const PROCESS_START: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO processes (id, sandbox, argv, cwd, terminal, state, exit, started_at, exited_at)
    SELECT $1, id, $3, $4, $5, $6, $7, $8, $9 FROM sandboxes WHERE id = $2 AND state <> 'deleted';
    UPDATE event_counter SET seq = seq + 1 WHERE changes() = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $10, 'process.started', $2, $1, $11 FROM event_counter WHERE changes() = 1
    RETURNING seq;
    COMMIT";

pub(super) const PROCESS_END: &str = "
    BEGIN IMMEDIATE;
    UPDATE processes SET state = $2, exit = $3, exited_at = $4 WHERE id = $1 AND state = 'running';
    UPDATE event_counter SET seq = seq + 1 WHERE changes() = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT c.seq, $5, $6, p.sandbox, p.id, $7 FROM event_counter AS c, processes AS p WHERE p.id = $1 AND changes() = 1
    RETURNING seq;
    COMMIT";

// The event is made of the row, and only if this is what ended it.
pub(super) const CALL_END: &str = "
    UPDATE llm_calls SET ended_at = $2, estimated = $3, input = $4, cached_input = $5, cache_write = $6, output = $7,
        tokens = $8, micros = $9, status = $10, elapsed_ms = $11, note = $12
    WHERE id = $1 AND ended_at IS NULL;
    UPDATE event_counter SET seq = seq + 1 WHERE changes() = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $13, 'llm.call', sandbox, NULL, json_object(
        'call', id, 'session', session, 'model', model, 'upstream', upstream,
        'input_tokens', input, 'cached_input_tokens', cached_input, 'output_tokens', output, 'total_tokens', tokens,
        'usd', micros / 1000000.0, 'estimated', json(iif(estimated, 'true', 'false')),
        'status', status, 'ms', elapsed_ms, 'note', note)
    FROM event_counter, llm_calls WHERE changes() = 1 AND llm_calls.id = $1
    RETURNING seq";

const FACTS: &str = "
    UPDATE event_counter SET seq = seq + $1 WHERE one = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT counter.seq - $1 + 1 + fact.key, $2, fact.value ->> 'kind', fact.value ->> 'sandbox', NULL, fact.value -> 'data'
    FROM event_counter AS counter, json_each($3) AS fact WHERE counter.one = 1 ORDER BY fact.key;
    SELECT seq FROM event_counter WHERE one = 1";

pub(super) async fn append_facts(transaction: &mut Transaction, facts: Vec<FactRow>) -> Result<()> {
    let told = |fact: &FactRow| json!({ "kind": fact.kind, "sandbox": fact.sandbox.as_str(), "data": fact.data });
    let all: Vec<Value> = facts.iter().map(told).collect();
    let seq = sqlx::query_scalar(FACTS)
        .bind(signed(all.len() as u64))
        .bind(transaction.now.timestamp_micros())
        .bind(columns::json(&all)?)
        .fetch_all(&mut transaction.connection)
        .await?;
    seq.last().map_or(Ok(()), |seq| transaction.appended(*seq))
}

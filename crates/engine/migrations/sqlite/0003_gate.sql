-- The gate: where sandboxes may talk to, secrets, approvals, budgets and what was used.

-- A sub-session spends its parent's budget too.
ALTER TABLE sessions ADD COLUMN parent TEXT REFERENCES sessions (id);
-- JSON of the limits; absent: none.
ALTER TABLE sessions ADD COLUMN budget TEXT;
-- The model it was switched to.
ALTER TABLE sessions ADD COLUMN model TEXT;
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;

-- The session an agent's token is bound to.
ALTER TABLE tokens ADD COLUMN session TEXT;

-- What a sandbox has beyond its template's rules, and its certificate authority. The key is sealed.
CREATE TABLE gates (
    sandbox     TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    rules       TEXT NOT NULL,
    secrets     TEXT NOT NULL,
    certificate TEXT NOT NULL,
    key         BLOB NOT NULL
) STRICT;

-- Values are sealed with the key beside the database, bound to the name they are kept under.
CREATE TABLE secrets (
    name       TEXT NOT NULL PRIMARY KEY,
    hosts      TEXT NOT NULL,
    placement  TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE approvals (
    id            TEXT NOT NULL PRIMARY KEY,
    kind          TEXT NOT NULL,
    state         TEXT NOT NULL,
    session       TEXT NOT NULL,
    sandbox       TEXT,
    question      TEXT NOT NULL,
    choices       TEXT NOT NULL,
    takes_text    INTEGER NOT NULL,
    context       TEXT NOT NULL,
    answerable_by TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    deadline      INTEGER NOT NULL,
    on_deadline   TEXT NOT NULL,
    answer        TEXT,
    closed_at     INTEGER,
    -- An answer that lets one thing through, once, and has done so.
    spent         INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX approvals_open ON approvals (deadline) WHERE state = 'open';
CREATE INDEX approvals_sandbox ON approvals (sandbox, id) WHERE sandbox IS NOT NULL;

-- One row a call, from its reservation on. While `ended_at` is absent the reservation is held.
CREATE TABLE llm_calls (
    id           TEXT NOT NULL PRIMARY KEY,
    session      TEXT NOT NULL,
    sandbox      TEXT NOT NULL,
    model        TEXT NOT NULL,
    upstream     TEXT NOT NULL,
    began_at     INTEGER NOT NULL,
    ended_at     INTEGER,
    held_tokens  INTEGER NOT NULL,
    held_micros  INTEGER NOT NULL,
    -- How it was settled: by what the vendor reported, or (estimated) by what was held.
    estimated    INTEGER NOT NULL DEFAULT 0,
    input        INTEGER NOT NULL DEFAULT 0,
    cached_input INTEGER NOT NULL DEFAULT 0,
    cache_write  INTEGER NOT NULL DEFAULT 0,
    output       INTEGER NOT NULL DEFAULT 0,
    tokens       INTEGER NOT NULL DEFAULT 0,
    micros       INTEGER NOT NULL DEFAULT 0,
    status       INTEGER,
    elapsed_ms   INTEGER,
    note         TEXT
) STRICT;

CREATE INDEX llm_calls_session ON llm_calls (session, began_at);
CREATE INDEX llm_calls_time ON llm_calls (began_at);
CREATE INDEX llm_calls_held ON llm_calls (id) WHERE ended_at IS NULL;

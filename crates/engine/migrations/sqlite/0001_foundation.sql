-- Times are microseconds since 1970, UTC. Only shapes that PostgreSQL has too: its own folder will say BIGINT and BYTEA.

CREATE TABLE sessions (
    id         TEXT NOT NULL PRIMARY KEY,
    owner      TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE sandboxes (
    id            TEXT NOT NULL PRIMARY KEY,
    name          TEXT NOT NULL,
    session       TEXT NOT NULL REFERENCES sessions (id),
    state         TEXT NOT NULL,
    reason        TEXT,
    template_name TEXT NOT NULL,
    template      TEXT NOT NULL,
    provider      TEXT NOT NULL,
    labels        TEXT NOT NULL,
    env           TEXT NOT NULL,
    workspace     TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    changed_at    INTEGER NOT NULL,
    expires_at    INTEGER
) STRICT;

-- A deleted sandbox gives its name back.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name) WHERE state <> 'deleted';
CREATE INDEX sandboxes_session ON sandboxes (session);
CREATE INDEX sandboxes_expiry ON sandboxes (expires_at) WHERE state <> 'deleted' AND expires_at IS NOT NULL;

-- The labels once more, for filtering.
CREATE TABLE sandbox_labels (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (sandbox, key)
) STRICT;

CREATE TABLE idempotency_keys (
    owner      TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     BLOB NOT NULL,
    sandbox    TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT;

CREATE INDEX idempotency_keys_sandbox ON idempotency_keys (sandbox);

CREATE TABLE processes (
    id         TEXT NOT NULL PRIMARY KEY,
    sandbox    TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    argv       TEXT NOT NULL,
    cwd        TEXT NOT NULL,
    terminal   INTEGER NOT NULL,
    state      TEXT NOT NULL,
    exit       TEXT,
    started_at INTEGER NOT NULL,
    exited_at  INTEGER
) STRICT;

CREATE INDEX processes_sandbox ON processes (sandbox, started_at, id);
CREATE INDEX processes_running ON processes (id) WHERE state = 'running';

CREATE TABLE events (
    seq     INTEGER NOT NULL PRIMARY KEY,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    sandbox TEXT,
    process TEXT,
    data    TEXT NOT NULL
) STRICT;

CREATE INDEX events_sandbox ON events (sandbox, seq) WHERE sandbox IS NOT NULL;

-- One row: the newest number given out. A rolled back transaction takes its number back, which a sequence would not;
-- and the number outlives the events, so that pruning never starts it again.
CREATE TABLE event_counter (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    seq INTEGER NOT NULL
) STRICT;

INSERT INTO event_counter (one, seq) VALUES (1, 0);

CREATE TABLE tokens (
    id         TEXT NOT NULL PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    digest     BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT;

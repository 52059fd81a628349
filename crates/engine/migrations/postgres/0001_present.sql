-- Times are microseconds since 1970, UTC. The tables of SQLite, all in one; texts are compared byte by byte as there.

-- One row: who may write. Every transaction holds it still and asks for the number it knows; whoever takes over counts on.
CREATE TABLE leadership (
    one     BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    epoch   BIGINT NOT NULL,
    server  TEXT NOT NULL,
    address TEXT NOT NULL,
    -- The backend that holds the lock.
    backend BIGINT NOT NULL,
    since   BIGINT NOT NULL
);

INSERT INTO leadership (one, epoch, server, address, backend, since) VALUES (1, 0, '', '', 0, 0);

-- One row, made by the first server: what its secret key made of a known text.
CREATE TABLE secret_key (
    one         BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    fingerprint BYTEA NOT NULL
);

CREATE TABLE sessions (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner      TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- A sub-session spends its parent's budget too.
    parent     TEXT COLLATE "C" REFERENCES sessions (id),
    -- JSON of the limits; absent: none.
    budget     TEXT,
    -- The model it was switched to.
    model      TEXT,
    name       TEXT COLLATE "C",
    labels     TEXT NOT NULL DEFAULT '{}',
    deleted_at BIGINT,
    -- The caller's own id of the conversation, and the user it belongs to; absent of sessions that were begun otherwise.
    external   TEXT COLLATE "C",
    "user"     TEXT COLLATE "C",
    -- Whose configuration its workspaces are made by. A session that has one is there until it is deleted, with or without
    -- sandboxes.
    agent      TEXT,
    -- When its workspace was last asked for, to the day.
    used_at    BIGINT,
    -- The token its workspace is used with; it may have been revoked.
    token      TEXT COLLATE "C"
);

CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;
-- A deleted session gives its name back.
CREATE UNIQUE INDEX sessions_name ON sessions (name) WHERE deleted_at IS NULL;
-- The last that had a name.
CREATE INDEX sessions_named ON sessions (name) WHERE name IS NOT NULL;
-- A deleted session gives its id back.
CREATE UNIQUE INDEX sessions_external ON sessions ("user", external) WHERE deleted_at IS NULL AND external IS NOT NULL;
-- The last that had an id.
CREATE INDEX sessions_externals ON sessions ("user", external) WHERE external IS NOT NULL;
CREATE INDEX sessions_forgotten ON sessions (used_at) WHERE agent IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX sessions_deleted ON sessions (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE sandboxes (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name          TEXT COLLATE "C" NOT NULL,
    session       TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
    state         TEXT NOT NULL,
    reason        TEXT,
    template_name TEXT NOT NULL,
    template      TEXT NOT NULL,
    provider      TEXT NOT NULL,
    labels        TEXT NOT NULL,
    env           TEXT NOT NULL,
    workspace     TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    changed_at    BIGINT NOT NULL,
    expires_at    BIGINT,
    from_snapshot TEXT,
    -- How long each use of a workspace puts its expiry off, in milliseconds; absent: it expires when it does.
    lease         BIGINT
);

-- A deleted sandbox gives its name back.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name) WHERE state <> 'deleted';
CREATE INDEX sandboxes_session ON sandboxes (session);
CREATE INDEX sandboxes_expiry ON sandboxes (expires_at) WHERE state <> 'deleted' AND expires_at IS NOT NULL;

-- The labels once more, for filtering.
CREATE TABLE sandbox_labels (
    sandbox TEXT COLLATE "C" NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key     TEXT COLLATE "C" NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (sandbox, key)
);

CREATE TABLE idempotency_keys (
    owner      TEXT COLLATE "C" NOT NULL,
    key        TEXT COLLATE "C" NOT NULL,
    digest     BYTEA NOT NULL,
    sandbox    TEXT COLLATE "C" NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (owner, key)
);

CREATE INDEX idempotency_keys_sandbox ON idempotency_keys (sandbox);

CREATE TABLE processes (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    sandbox    TEXT COLLATE "C" NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    argv       TEXT NOT NULL,
    cwd        TEXT NOT NULL,
    terminal   BIGINT NOT NULL,
    state      TEXT NOT NULL,
    exit       TEXT,
    started_at BIGINT NOT NULL,
    exited_at  BIGINT,
    -- When another one follows; absent: never.
    restart    TEXT,
    -- The first of those it follows, and how many came before it.
    restart_of TEXT COLLATE "C",
    restarts   BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX processes_sandbox ON processes (sandbox, started_at, id);
CREATE INDEX processes_running ON processes (id) WHERE state = 'running';

-- One row for all processes that follow one another. The state says whether the newest of them runs; what is to be
-- started next, and when, outlives the server here.
CREATE TABLE restarts (
    line       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    sandbox    TEXT COLLATE "C" NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    request    TEXT NOT NULL,
    process    TEXT COLLATE "C" NOT NULL,
    restarts   BIGINT NOT NULL,
    -- How many in a row ended too soon, and when the first of them was started.
    quick      BIGINT NOT NULL,
    since      BIGINT NOT NULL,
    state      TEXT NOT NULL,
    due        BIGINT,
    changed_at BIGINT NOT NULL
);

CREATE INDEX restarts_sandbox ON restarts (sandbox);
CREATE UNIQUE INDEX restarts_process ON restarts (process);
CREATE INDEX restarts_due ON restarts (due) WHERE due IS NOT NULL;

-- What processes wrote, in the order it came, each row of one stream and one moment. Rows of a process follow each other
-- without a gap from the first that is kept.
CREATE TABLE output (
    process TEXT COLLATE "C" NOT NULL,
    -- The offset of the first byte, and of the one after the last.
    start   BIGINT NOT NULL,
    stop    BIGINT NOT NULL,
    stream  BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    data    BYTEA NOT NULL,
    PRIMARY KEY (process, start)
);

-- Which size a terminal had from which byte of its output on.
CREATE TABLE terminal_sizes (
    process TEXT COLLATE "C" NOT NULL,
    number  BIGINT NOT NULL,
    start   BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    cols    BIGINT NOT NULL,
    rows    BIGINT NOT NULL,
    PRIMARY KEY (process, number)
);

-- The last checkpoint of a terminal's screen.
CREATE TABLE screens (
    process TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    data    BYTEA NOT NULL
);

CREATE TABLE events (
    seq     BIGINT NOT NULL PRIMARY KEY,
    at      BIGINT NOT NULL,
    kind    TEXT NOT NULL,
    sandbox TEXT COLLATE "C",
    process TEXT,
    data    TEXT NOT NULL
);

CREATE INDEX events_sandbox ON events (sandbox, seq) WHERE sandbox IS NOT NULL;

-- One row: the newest number given out. A rolled back transaction takes its number back, which a sequence would not;
-- and the number outlives the events, so that pruning never starts it again. Room for changing it in its own page.
CREATE TABLE event_counter (
    one BIGINT NOT NULL PRIMARY KEY CONSTRAINT event_counter_one_check CHECK (one = 1),
    seq BIGINT NOT NULL
) WITH (fillfactor = 10);

INSERT INTO event_counter (one, seq) VALUES (1, 0);

CREATE TABLE tokens (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    digest     BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    -- The session an agent's token is bound to.
    session    TEXT COLLATE "C"
);

-- A token ends with its session.
CREATE INDEX tokens_session ON tokens (session) WHERE session IS NOT NULL;

-- One that is hidden serves a fork under way: after a crash it is given up.
CREATE TABLE snapshots (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name          TEXT COLLATE "C" NOT NULL,
    hidden        BIGINT NOT NULL,
    sandbox       TEXT COLLATE "C" NOT NULL,
    template_name TEXT NOT NULL,
    template      TEXT NOT NULL,
    provider      TEXT NOT NULL,
    size          BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);

-- A deleted snapshot gives its name back.
CREATE UNIQUE INDEX snapshots_name ON snapshots (name) WHERE deleted_at IS NULL;

CREATE TABLE pools (
    template TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    size     BIGINT NOT NULL
);

-- Warm sandboxes. A claim turns one into a sandbox of the same id, in one transaction. The digest tells what it was made
-- from: one whose template has changed since is never handed out.
CREATE TABLE pool_members (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    template   TEXT NOT NULL,
    digest     BYTEA NOT NULL,
    provider   TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- What a sandbox has beyond its template's rules, and its certificate authority. The key is sealed.
CREATE TABLE gates (
    sandbox     TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    rules       TEXT NOT NULL,
    secrets     TEXT NOT NULL,
    certificate TEXT NOT NULL,
    key         BYTEA NOT NULL
);

-- Values are sealed with the key in the home, bound to the name they are kept under.
CREATE TABLE secrets (
    name       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    hosts      TEXT NOT NULL,
    placement  TEXT NOT NULL,
    sealed     BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
);

CREATE TABLE approvals (
    id            TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    kind          TEXT NOT NULL,
    state         TEXT NOT NULL,
    session       TEXT COLLATE "C" NOT NULL,
    sandbox       TEXT COLLATE "C",
    question      TEXT NOT NULL,
    choices       TEXT NOT NULL,
    takes_text    BIGINT NOT NULL,
    context       TEXT NOT NULL,
    answerable_by TEXT NOT NULL,
    created_at    BIGINT NOT NULL,
    deadline      BIGINT NOT NULL,
    on_deadline   TEXT NOT NULL,
    answer        TEXT,
    closed_at     BIGINT,
    -- An answer that lets one thing through, once, and has done so.
    spent         BIGINT NOT NULL DEFAULT 0,
    -- Whose terminal asks.
    process       TEXT COLLATE "C",
    -- What became of an answer that had to be typed, and under which id the guest has its keys.
    delivery      TEXT,
    staged        TEXT,
    -- Why it was withdrawn.
    reason        TEXT
);

CREATE INDEX approvals_open ON approvals (deadline) WHERE state = 'open';
CREATE INDEX approvals_sandbox ON approvals (sandbox, id) WHERE sandbox IS NOT NULL;
CREATE INDEX approvals_session ON approvals (session) WHERE state = 'open';
CREATE INDEX approvals_process ON approvals (process, id) WHERE process IS NOT NULL;
-- A terminal asks one thing at a time.
CREATE UNIQUE INDEX approvals_terminal ON approvals (process) WHERE process IS NOT NULL AND state = 'open';
CREATE INDEX approvals_pending ON approvals (id) WHERE delivery = 'pending';

-- One row a call, from its reservation on. While `ended_at` is absent the reservation is held.
CREATE TABLE llm_calls (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    session      TEXT COLLATE "C" NOT NULL,
    sandbox      TEXT COLLATE "C" NOT NULL,
    model        TEXT COLLATE "C" NOT NULL,
    upstream     TEXT NOT NULL,
    began_at     BIGINT NOT NULL,
    ended_at     BIGINT,
    held_tokens  BIGINT NOT NULL,
    held_micros  BIGINT NOT NULL,
    -- How it was settled: by what the vendor reported, or (estimated) by what was held.
    estimated    BIGINT NOT NULL DEFAULT 0,
    input        BIGINT NOT NULL DEFAULT 0,
    cached_input BIGINT NOT NULL DEFAULT 0,
    cache_write  BIGINT NOT NULL DEFAULT 0,
    output       BIGINT NOT NULL DEFAULT 0,
    tokens       BIGINT NOT NULL DEFAULT 0,
    micros       BIGINT NOT NULL DEFAULT 0,
    status       BIGINT,
    elapsed_ms   BIGINT,
    note         TEXT
);

CREATE INDEX llm_calls_session ON llm_calls (session, began_at);
CREATE INDEX llm_calls_time ON llm_calls (began_at);
CREATE INDEX llm_calls_held ON llm_calls (id) WHERE ended_at IS NULL;

-- Webhooks: who outside is told of events, and how far each has been told.
CREATE TABLE webhooks (
    id              TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    url             TEXT NOT NULL,
    kinds           TEXT NOT NULL,
    -- Signs what is sent. Sealed with the key in the home, bound to id and URL.
    sealed          BYTEA NOT NULL,
    created_at      BIGINT NOT NULL,
    disabled_at     BIGINT,
    -- The number of the last event that needs nothing more: all above is still to be looked at.
    cursor          BIGINT NOT NULL,
    delivered_at    BIGINT,
    -- Since nothing went through.
    failing_since   BIGINT,
    -- Of the event after the cursor whose turn it is.
    attempts        BIGINT NOT NULL DEFAULT 0,
    first_failed_at BIGINT,
    last_error      TEXT
);

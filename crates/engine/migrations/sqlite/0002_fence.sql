-- Snapshots, pools, and which snapshot a sandbox was made from.

ALTER TABLE sandboxes ADD COLUMN from_snapshot TEXT;

-- One that is hidden serves a fork under way: after a crash it is given up.
CREATE TABLE snapshots (
    id            TEXT NOT NULL PRIMARY KEY,
    name          TEXT NOT NULL,
    hidden        INTEGER NOT NULL,
    sandbox       TEXT NOT NULL,
    template_name TEXT NOT NULL,
    template      TEXT NOT NULL,
    provider      TEXT NOT NULL,
    size          INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    deleted_at    INTEGER
) STRICT;

-- A deleted snapshot gives its name back.
CREATE UNIQUE INDEX snapshots_name ON snapshots (name) WHERE deleted_at IS NULL;

CREATE TABLE pools (
    template TEXT NOT NULL PRIMARY KEY,
    size     INTEGER NOT NULL
) STRICT;

-- Warm sandboxes. A claim turns one into a sandbox of the same id, in one transaction. The digest tells what it was made
-- from: one whose template has changed since is never handed out.
CREATE TABLE pool_members (
    id         TEXT NOT NULL PRIMARY KEY,
    template   TEXT NOT NULL,
    digest     BLOB NOT NULL,
    provider   TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

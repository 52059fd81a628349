-- Processes that are followed by others like them when they end.

-- When another one follows; absent: never.
ALTER TABLE processes ADD COLUMN restart TEXT;
-- The first of those it follows, and how many came before it.
ALTER TABLE processes ADD COLUMN restart_of TEXT;
ALTER TABLE processes ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;

-- One row for all processes that follow one another. The state says whether the newest of them runs; what is to be
-- started next, and when, outlives the server here.
CREATE TABLE restarts (
    line       TEXT NOT NULL PRIMARY KEY,
    sandbox    TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    request    TEXT NOT NULL,
    process    TEXT NOT NULL,
    restarts   INTEGER NOT NULL,
    -- How many in a row ended too soon, and when the first of them was started.
    quick      INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    state      TEXT NOT NULL,
    due        INTEGER,
    changed_at INTEGER NOT NULL
) STRICT;

CREATE INDEX restarts_sandbox ON restarts (sandbox);
CREATE UNIQUE INDEX restarts_process ON restarts (process);
CREATE INDEX restarts_due ON restarts (due) WHERE due IS NOT NULL;

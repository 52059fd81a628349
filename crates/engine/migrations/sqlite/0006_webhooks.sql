-- Webhooks: who outside is told of events, and how far each has been told.

CREATE TABLE webhooks (
    id              TEXT NOT NULL PRIMARY KEY,
    name            TEXT NOT NULL UNIQUE,
    url             TEXT NOT NULL,
    kinds           TEXT NOT NULL,
    -- Signs what is sent. Sealed with the key beside the database, bound to id and URL.
    sealed          BLOB NOT NULL,
    created_at      INTEGER NOT NULL,
    disabled_at     INTEGER,
    -- The number of the last event that needs nothing more: all above is still to be looked at.
    cursor          INTEGER NOT NULL,
    delivered_at    INTEGER,
    -- Since nothing went through.
    failing_since   INTEGER,
    -- Of the event after the cursor whose turn it is.
    attempts        INTEGER NOT NULL DEFAULT 0,
    first_failed_at INTEGER,
    last_error      TEXT
) STRICT;

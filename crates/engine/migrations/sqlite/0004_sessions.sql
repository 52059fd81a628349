-- Sessions as people know them: called by a name, found by labels, deleted with all that is theirs.

ALTER TABLE sessions ADD COLUMN name TEXT;
ALTER TABLE sessions ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sessions ADD COLUMN deleted_at INTEGER;

-- A deleted session gives its name back.
CREATE UNIQUE INDEX sessions_name ON sessions (name) WHERE deleted_at IS NULL;
-- The last that had a name.
CREATE INDEX sessions_named ON sessions (name) WHERE name IS NOT NULL;
CREATE INDEX approvals_session ON approvals (session) WHERE state = 'open';

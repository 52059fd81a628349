-- Conversations: sessions that are there before they have a sandbox, and find their workspace again.

-- The caller's own id of the conversation, and the user it belongs to; absent of sessions that were begun otherwise.
ALTER TABLE sessions ADD COLUMN external TEXT;
ALTER TABLE sessions ADD COLUMN user TEXT;
-- Whose configuration its workspaces are made by. A session that has one is there until it is deleted, with or without
-- sandboxes.
ALTER TABLE sessions ADD COLUMN agent TEXT;
-- When its workspace was last asked for, to the day.
ALTER TABLE sessions ADD COLUMN used_at INTEGER;
-- The token its workspace is used with; it may have been revoked.
ALTER TABLE sessions ADD COLUMN token TEXT;

-- A deleted session gives its id back.
CREATE UNIQUE INDEX sessions_external ON sessions (user, external) WHERE deleted_at IS NULL AND external IS NOT NULL;
-- The last that had an id.
CREATE INDEX sessions_externals ON sessions (user, external) WHERE external IS NOT NULL;
CREATE INDEX sessions_forgotten ON sessions (used_at) WHERE agent IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX sessions_deleted ON sessions (deleted_at) WHERE deleted_at IS NOT NULL;

-- How long each use of a workspace puts its expiry off, in milliseconds; absent: it expires when it does.
ALTER TABLE sandboxes ADD COLUMN lease INTEGER;

-- A token ends with its session.
CREATE INDEX tokens_session ON tokens (session) WHERE session IS NOT NULL;
DELETE FROM tokens WHERE session IS NOT NULL
    AND session NOT IN (SELECT id FROM sessions WHERE deleted_at IS NULL);

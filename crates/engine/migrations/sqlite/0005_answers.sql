-- Questions of terminals, and answers that are typed.

-- Whose terminal asks.
ALTER TABLE approvals ADD COLUMN process TEXT;
-- What became of an answer that had to be typed, and under which id the guest has its keys.
ALTER TABLE approvals ADD COLUMN delivery TEXT;
ALTER TABLE approvals ADD COLUMN staged TEXT;
-- Why it was withdrawn.
ALTER TABLE approvals ADD COLUMN reason TEXT;

CREATE INDEX approvals_process ON approvals (process, id) WHERE process IS NOT NULL;
-- A terminal asks one thing at a time.
CREATE UNIQUE INDEX approvals_terminal ON approvals (process) WHERE process IS NOT NULL AND state = 'open';
CREATE INDEX approvals_pending ON approvals (id) WHERE delivery = 'pending';

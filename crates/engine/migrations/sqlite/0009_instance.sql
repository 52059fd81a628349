-- One row, made by the first server: which store this is. What is made for it carries the same id.
CREATE TABLE instance (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL
) STRICT;

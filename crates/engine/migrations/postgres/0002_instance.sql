-- One row, made by the first server: which store this is. What is made for it carries the same id.
CREATE TABLE instance (
    one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    id  TEXT COLLATE "C" NOT NULL
);

-- The marks: for every protected key, the highest fencing token that was admitted.
-- Deleting a row forgets its mark, and a stale holder would be admitted again. Needs SQLite 3.37.
CREATE TABLE IF NOT EXISTS highwater_fence (
    "key"      BLOB    NOT NULL PRIMARY KEY CHECK (length("key") BETWEEN 1 AND 255),
    domain     BLOB    NOT NULL CHECK (length(domain) = 32),
    token      INTEGER NOT NULL CHECK (token > 0),
    step       INTEGER NOT NULL DEFAULT 0 CHECK (step >= 0),
    updated_at TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

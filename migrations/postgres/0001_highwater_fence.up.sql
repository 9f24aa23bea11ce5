-- The marks: for every protected key, the highest fencing token that was admitted.
-- Deleting a row forgets its mark, and a stale holder would be admitted again. Needs PostgreSQL 13.
CREATE TABLE IF NOT EXISTS highwater_fence (
    key        bytea       NOT NULL PRIMARY KEY CHECK (octet_length(key) BETWEEN 1 AND 255),
    domain     bytea       NOT NULL CHECK (octet_length(domain) = 32),
    token      bigint      NOT NULL CHECK (token > 0),
    step       bigint      NOT NULL DEFAULT 0 CHECK (step >= 0),
    last_tx    xid8        NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 70);

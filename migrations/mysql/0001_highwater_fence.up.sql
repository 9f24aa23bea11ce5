-- The marks: for every protected key, the highest fencing token that was admitted.
-- Deleting a row forgets its mark, and a stale holder would be admitted again. The table must not
-- get an AUTO_INCREMENT column or a second unique key: the fence statement relies on it.
CREATE TABLE IF NOT EXISTS highwater_fence (
    `key`      varbinary(255)  NOT NULL PRIMARY KEY,
    domain     varbinary(32)   NOT NULL,
    token      bigint unsigned NOT NULL,
    step       bigint unsigned NOT NULL DEFAULT 0,
    updated_at datetime(6)     NOT NULL COMMENT 'UTC',
    CHECK (token > 0 AND token <= 9223372036854775807),
    CHECK (step <= 9223372036854775807)
) ENGINE = InnoDB;

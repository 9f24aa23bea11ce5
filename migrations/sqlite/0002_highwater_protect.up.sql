-- Lets triggers know whether a mark was admitted in the transaction that is running; the triggers of
-- a table come from `highwater protect`.
-- A fence opens its key and the commit of a fenced transaction closes it again. There is one writer
-- at a time, so an open key is one of the writer's own transaction, as long as none is ever
-- committed. The foreign key sees to that: it leads nowhere, and is looked at when committing.
CREATE TABLE IF NOT EXISTS highwater_open (
    "key"  BLOB NOT NULL PRIMARY KEY CHECK (length("key") > 0),
    nobody BLOB NOT NULL DEFAULT x'' CHECK (length(nobody) = 0)
           REFERENCES highwater_open ("key") DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS highwater_fence_insert AFTER INSERT ON highwater_fence BEGIN
    INSERT OR IGNORE INTO highwater_open ("key") VALUES (NEW."key");
END;
CREATE TRIGGER IF NOT EXISTS highwater_fence_update AFTER UPDATE ON highwater_fence BEGIN
    INSERT OR IGNORE INTO highwater_open ("key") VALUES (NEW."key");
END;

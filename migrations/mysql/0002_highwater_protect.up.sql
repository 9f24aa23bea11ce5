-- Lets triggers know in which transaction a mark was admitted; the triggers of a table come from
-- `highwater protect`. Needs MySQL 8, or MariaDB 10.6 started with performance_schema = ON,
-- performance_schema_instrument = 'transaction=ON' and
-- performance_schema_consumer_events_transactions_current = ON. Where these are off the number of a
-- transaction is NULL, and protected tables refuse every write.
-- The role that runs this needs TRIGGER, SELECT on performance_schema and, with a binary log,
-- log_bin_trust_function_creators = 1 or SUPER. Writers need none of it.
SET @highwater_sql = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'highwater_fence' AND column_name = 'tx'),
    'DO 0',
    'ALTER TABLE highwater_fence ADD COLUMN tx varbinary(80) NULL');
PREPARE highwater_alter FROM @highwater_sql;
EXECUTE highwater_alter;
DEALLOCATE PREPARE highwater_alter;
-- The thread, its count of events and the time of the begin: no other transaction has all three,
-- also not after the server was started anew. (Not in a function: MariaDB loses count of a
-- transaction in which a stored routine is loaded.) The fence statement leaves 1 in
-- LAST_INSERT_ID() if, and only if, it was admitted.
CREATE TRIGGER IF NOT EXISTS highwater_fence_insert BEFORE INSERT ON highwater_fence
    FOR EACH ROW SET NEW.tx = IF(LAST_INSERT_ID() = 1, (
        SELECT CONCAT(thread_id, '-', event_id, '-', timer_start)
        FROM performance_schema.events_transactions_current
        WHERE state = 'ACTIVE' AND thread_id = (
            SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID())
    ), NULL);
CREATE TRIGGER IF NOT EXISTS highwater_fence_update BEFORE UPDATE ON highwater_fence
    FOR EACH ROW SET NEW.tx = IF(LAST_INSERT_ID() = 1, (
        SELECT CONCAT(thread_id, '-', event_id, '-', timer_start)
        FROM performance_schema.events_transactions_current
        WHERE state = 'ACTIVE' AND thread_id = (
            SELECT thread_id FROM performance_schema.threads WHERE processlist_id = CONNECTION_ID())
    ), OLD.tx);

-- Lets triggers know in which transaction a mark was admitted; the triggers of a table come from
-- `highwater protect`. Needs MySQL 8.0.29, or MariaDB 10.6 started with performance_schema = ON,
-- performance_schema_instrument = 'transaction=ON' and
-- performance_schema_consumer_events_transactions_current = ON. Where these are off the number of a
-- transaction is NULL, and protected tables refuse every write.
-- The role that runs this needs TRIGGER, SELECT on performance_schema and, with a binary log,
-- log_bin_trust_function_creators = 1 or SUPER. Writers need none of it.
SET @highwater_sql = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
            AND table_name = 'highwater_fence' AND column_name = 'tx'),
    'DO 0',
    'ALTER TABLE highwater_fence ADD COLUMN tx varbinary(90) NULL');
PREPARE highwater_alter FROM @highwater_sql;
EXECUTE highwater_alter;
DEALLOCATE PREPARE highwater_alter;
-- The connection, its thread, that thread's count of events and the time of the begin: no other
-- transaction has all of them, also not after the server was started anew. (Not in a function: MariaDB
-- loses count of a transaction in which a stored routine is loaded.) The fence statement leaves 1 in
-- LAST_INSERT_ID() if, and only if, it was admitted.
-- It inserts or updates, and what updates has tried to insert before; so the stamp is looked up once,
-- and handed from one trigger to the other. One that is left from before is that of another
-- transaction, and good for nothing. What follows M! only MariaDB reads, and then finds the second
-- trigger to be there; MySQL tells its thread without a search, and has to be asked for it ahead of the
-- query: what a condition compares a column with it computes once for an opened table, which connections
-- use one after the other. (They end with END IF, since MySQL
-- keeps a semicolon behind an expression as a part of the trigger, and no dump could be restored. In
-- the client programs mysql and mariadb say DELIMITER // before, and // at the end.)
DROP TRIGGER IF EXISTS highwater_fence_insert;
/*M! CREATE TRIGGER IF NOT EXISTS highwater_fence_insert BEFORE INSERT ON highwater_fence
    FOR EACH ROW IF LAST_INSERT_ID() = 1 THEN
        SET @highwater_tx = (
            SELECT CONCAT(CONNECTION_ID(), '-', thread_id, '-', event_id, '-', timer_start)
            FROM performance_schema.events_transactions_current
            WHERE state = 'ACTIVE' AND thread_id = (
                SELECT thread_id FROM performance_schema.threads
                WHERE processlist_id = CONNECTION_ID()));
        SET NEW.tx = @highwater_tx;
    ELSE
        SET NEW.tx = NULL;
    END IF */
/*!80029 DO 0 */;
CREATE TRIGGER IF NOT EXISTS highwater_fence_insert BEFORE INSERT ON highwater_fence
    FOR EACH ROW IF LAST_INSERT_ID() = 1 THEN
        SET @highwater_thread = PS_CURRENT_THREAD_ID();
        SET @highwater_tx = (
            SELECT CONCAT(CONNECTION_ID(), '-', thread_id, '-', event_id, '-', timer_start)
            FROM performance_schema.events_transactions_current
            WHERE state = 'ACTIVE' AND thread_id = @highwater_thread);
        SET NEW.tx = @highwater_tx;
    ELSE
        SET NEW.tx = NULL;
    END IF;
DROP TRIGGER IF EXISTS highwater_fence_update;
CREATE TRIGGER IF NOT EXISTS highwater_fence_update BEFORE UPDATE ON highwater_fence
    FOR EACH ROW IF LAST_INSERT_ID() = 1 THEN
        SET NEW.tx = @highwater_tx;
    ELSE
        SET NEW.tx = OLD.tx;
    END IF;

-- Takes the protection off every table, and drops the functions. The marks stay as they are.
DO $highwater$
DECLARE
    guarded record;
BEGIN
    FOR guarded IN
        SELECT tgrelid::regclass AS target, tgname, tgfoid::regprocedure AS guard
        FROM pg_catalog.pg_trigger
        WHERE tgparentid = 0 AND tgname LIKE 'highwater\_guard%'
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', guarded.tgname, guarded.target);
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgfoid = guarded.guard) THEN
            EXECUTE format('DROP FUNCTION %s', guarded.guard);
        END IF;
    END LOOP;
END
$highwater$;
DROP FUNCTION IF EXISTS highwater_unprotect(regclass);
DROP FUNCTION IF EXISTS highwater_protect(regclass, text, regclass);

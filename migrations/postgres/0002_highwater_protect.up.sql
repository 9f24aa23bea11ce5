-- Tables whose rows can only be written behind a fence, whatever program writes. Needs PostgreSQL 13.
--
--   SELECT highwater_protect('stock', '''stock/'' || sku');
--   SELECT highwater_unprotect('stock');
--
-- The second argument is SQL over the columns of a row that gives the key of its fence, as text or
-- bytea. It is code, run with the rights of the role that calls highwater_protect: only the owner of
-- the table calls it, and never with text from outside. Functions and operators in it are looked up
-- in pg_catalog only; write others with their schema.
CREATE OR REPLACE FUNCTION highwater_protect(
    target regclass, key_expression text, marks regclass DEFAULT to_regclass('highwater_fence')
) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $highwater$
DECLARE
    place     name;
    relation  name;
    kind      "char";
    guard     name;
    key_type  text;
    key_bytes text;
    old_key   text;
    new_key   text;
    unseen    name;
    grantee   text;
    tree      oid[];
    member    regclass;
    home      name;
    foreigner regprocedure;
BEGIN
    IF marks IS NULL THEN
        RAISE 'there is no table of marks' USING ERRCODE = 'undefined_table',
            HINT = 'Run highwater migrate first, or name the table as the third argument.';
    END IF;
    SELECT n.nspname, c.relname, c.relkind INTO STRICT place, relation, kind
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    IF kind NOT IN ('r', 'p') OR target = marks THEN
        RAISE '% cannot be protected', target USING ERRCODE = 'wrong_object_type';
    END IF;
    IF (SELECT relispartition FROM pg_class WHERE oid = target) THEN
        RAISE '% is a partition', target USING ERRCODE = 'wrong_object_type',
            HINT = 'Protect the partitioned table: that covers every partition.';
    END IF;

    -- What is guarded and by what must not change half-way, also between two calls at once. The marks
    -- first, as a fenced transaction does: so a running one goes on to its end, instead of a deadlock.
    EXECUTE format('LOCK TABLE %s, %s IN SHARE ROW EXCLUSIVE MODE', marks, target);
    EXECUTE format(E'SELECT pg_typeof((SELECT (%s\n) FROM %s LIMIT 0))', key_expression, target)
        INTO key_type;
    key_bytes := CASE
        WHEN key_type = 'bytea' THEN E'(%s\n)'
        WHEN key_type IN ('text', 'character varying', 'name') THEN E'convert_to((%s\n)::text, ''UTF8'')'
    END;
    IF key_bytes IS NULL THEN
        RAISE 'the key of % is of type %, not text or bytea', target, key_type
            USING ERRCODE = 'datatype_mismatch', HINT = 'Cast it: (expression)::text.';
    END IF;
    key_bytes := format(key_bytes, key_expression);
    -- A trigger sees NULL in their place, which may give the key of another row.
    SELECT attname INTO unseen FROM pg_attribute WHERE attrelid = target AND attgenerated = 'v'
        AND key_expression ~* ('(^|\W)' || regexp_replace(attname, '(\W)', '\\\1', 'g') || '(\W|$)');
    IF FOUND THEN
        RAISE 'the key of % depends on %, a virtual column', target, quote_ident(unseen)
            USING ERRCODE = 'feature_not_supported',
            HINT = 'Make it STORED, or write its expression out.';
    END IF;

    -- After the write, so that the row is judged as it is stored: with what other triggers made of
    -- it, with generated columns, and not at all if ON CONFLICT DO NOTHING did nothing.
    -- The mark counts if this transaction wrote it. A number that was restored from a dump or
    -- written by hand may be that of this transaction, but then the row itself is older.
    tree := ARRAY(
        WITH RECURSIVE tree AS (
            SELECT target::oid AS oid
            UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
        )
        SELECT c.oid FROM tree JOIN pg_class c USING (oid) WHERE c.relkind IN ('r', 'p'));
    -- The right to create triggers is that to replace them, and to change what other triggers saw.
    SELECT c.oid::regclass, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        INTO member, grantee
        FROM pg_class c CROSS JOIN aclexplode(c.relacl) AS a
        WHERE c.oid = ANY (tree || marks::oid) AND a.privilege_type = 'TRIGGER'
        AND (a.grantee = 0 OR NOT pg_has_role(a.grantee, c.relowner, 'MEMBER')) LIMIT 1;
    IF FOUND THEN
        RAISE '% has the right TRIGGER on %, and could get around the protection with it',
            grantee, member
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = format('REVOKE TRIGGER ON %s FROM %s', member, grantee);
    END IF;
    guard := 'highwater_guard_' || relation;
    IF EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
               WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = place)
               AND p.proname = guard AND NOT t.tgrelid = ANY (tree)) THEN
        RAISE 'function %.% guards another table, which had this name before', place, guard
            USING ERRCODE = 'duplicate_function', HINT = 'Unprotect that table first.';
    END IF;
    -- Put together by hand, because the expression may have a percent sign.
    old_key := 'SELECT ' || key_bytes || ' FROM (SELECT OLD.*) AS ' || quote_ident(relation);
    new_key := 'SELECT ' || key_bytes || ' FROM (SELECT NEW.*) AS ' || quote_ident(relation);
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION %I.%I() RETURNS trigger LANGUAGE plpgsql '
        'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
        place, guard, format($guard$
#variable_conflict use_column
DECLARE
    highwater_unfenced bytea;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT wanted.key INTO highwater_unfenced FROM (%3$s) AS wanted (key)
            WHERE NOT EXISTS (%1$s) LIMIT 1;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT wanted.key INTO highwater_unfenced FROM (%2$s) AS wanted (key)
            WHERE NOT EXISTS (%1$s) LIMIT 1;
    ELSE
        SELECT wanted.key INTO highwater_unfenced FROM (%2$s UNION %3$s) AS wanted (key)
            WHERE NOT EXISTS (%1$s) LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE 'no fence was admitted in this transaction for key "%%" of table %%',
            coalesce(encode(highwater_unfenced, 'escape'), 'NULL'), TG_RELID::regclass
            USING ERRCODE = 'HW001', CONSTRAINT = 'highwater_protected', TABLE = TG_TABLE_NAME,
            SCHEMA = TG_TABLE_SCHEMA, HINT = 'Write it in a fenced transaction of this key.';
    END IF;
    RETURN NULL;
END
$guard$,
            format('SELECT FROM %s AS mark WHERE mark.key = wanted.key '
                'AND mark.last_tx = pg_current_xact_id() '
                'AND age(mark.xmin) <= age(pg_current_xact_id()::xid)', marks),
            old_key, new_key));
    -- Nobody else may hang it on a table of theirs: it would run their casts with these rights.
    EXECUTE format('REVOKE ALL ON FUNCTION %I.%I() FROM PUBLIC', place, guard);
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION %I.highwater_refuse_truncate() RETURNS trigger LANGUAGE plpgsql '
        'SET search_path = pg_catalog, pg_temp AS %L', place, $guard$
BEGIN
    RAISE 'table % is protected by fences and cannot be truncated', TG_RELID::regclass
        USING ERRCODE = 'HW002', CONSTRAINT = 'highwater_protected', TABLE = TG_TABLE_NAME,
        SCHEMA = TG_TABLE_SCHEMA, HINT = 'Delete the rows in fenced transactions.';
END
$guard$);

    FOREACH member IN ARRAY tree LOOP
        -- A partition gets its row trigger from the table; not so a table that inherits.
        IF NOT (SELECT relispartition FROM pg_class WHERE oid = member) THEN
            EXECUTE format('DROP TRIGGER IF EXISTS highwater_guard ON %s', member);
            EXECUTE format('CREATE TRIGGER highwater_guard AFTER INSERT OR UPDATE OR DELETE ON %s '
                'FOR EACH ROW EXECUTE FUNCTION %I.%I()', member, place, guard);
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS highwater_guard_truncate ON %s', member);
        EXECUTE format('CREATE TRIGGER highwater_guard_truncate BEFORE TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION %I.highwater_refuse_truncate()', member, place);
    END LOOP;

    -- Whoever fences writes marks. So the marks look after themselves: roles other than the owner
    -- can raise them in their own transaction, and nothing else.
    SELECT n.nspname INTO STRICT home
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = marks;
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION %I.highwater_keep_marks() RETURNS trigger LANGUAGE plpgsql '
        'SET search_path = pg_catalog, pg_temp AS %L', home, $guard$
BEGIN
    IF NOT pg_has_role(current_user,
                       (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER') THEN
        RAISE 'a mark in % can only be raised, in the transaction that is fenced', TG_RELID::regclass
            USING ERRCODE = 'HW003', CONSTRAINT = 'highwater_marks', TABLE = TG_TABLE_NAME,
            SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$guard$);
    -- Conditions instead of code, so that a fence does not pay for a function call.
    EXECUTE format('DROP TRIGGER IF EXISTS highwater_guard_insert ON %1$s; '
        'DROP TRIGGER IF EXISTS highwater_guard_update ON %1$s; '
        'DROP TRIGGER IF EXISTS highwater_guard_delete ON %1$s; '
        'DROP TRIGGER IF EXISTS highwater_guard_truncate ON %1$s; '
        'CREATE TRIGGER highwater_guard_insert BEFORE INSERT ON %1$s FOR EACH ROW '
        'WHEN (NEW.last_tx <> pg_current_xact_id()) EXECUTE FUNCTION %2$I.highwater_keep_marks(); '
        'CREATE TRIGGER highwater_guard_update BEFORE UPDATE ON %1$s FOR EACH ROW '
        'WHEN (NEW.last_tx <> pg_current_xact_id() OR NEW.key <> OLD.key OR NEW.token < OLD.token '
        'OR (NEW.token = OLD.token AND (NEW.domain <> OLD.domain OR NEW.step < OLD.step))) '
        'EXECUTE FUNCTION %2$I.highwater_keep_marks(); '
        'CREATE TRIGGER highwater_guard_delete BEFORE DELETE ON %1$s FOR EACH ROW '
        'EXECUTE FUNCTION %2$I.highwater_keep_marks(); '
        'CREATE TRIGGER highwater_guard_truncate BEFORE TRUNCATE ON %1$s FOR EACH STATEMENT '
        'EXECUTE FUNCTION %2$I.highwater_keep_marks()', marks, home);

    -- To replace a function is not to own it: somebody may have waited with one of this name.
    SELECT p.oid::regprocedure INTO foreigner
        FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
        WHERE t.tgrelid = ANY (tree || marks::oid) AND t.tgname LIKE 'highwater\_guard%'
        AND NOT pg_has_role(p.proowner, c.relowner, 'MEMBER') LIMIT 1;
    IF FOUND THEN
        RAISE 'function % belongs to a role that does not own the table', foreigner
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Drop the function first.';
    END IF;
END
$highwater$;

-- Takes the protection off. The table of marks keeps looking after itself.
CREATE OR REPLACE FUNCTION highwater_unprotect(target regclass) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $highwater$
DECLARE
    guard  regprocedure;
    member regclass;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', target);
    SELECT tgfoid INTO guard FROM pg_trigger WHERE tgrelid = target AND tgname = 'highwater_guard';
    FOR member IN
        WITH RECURSIVE tree AS (
            SELECT target::oid AS oid
            UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
        )
        SELECT c.oid FROM tree JOIN pg_class c USING (oid) WHERE c.relkind IN ('r', 'p')
    LOOP
        IF NOT (SELECT relispartition FROM pg_class WHERE oid = member) THEN
            EXECUTE format('DROP TRIGGER IF EXISTS highwater_guard ON %s', member);
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS highwater_guard_truncate ON %s', member);
    END LOOP;
    IF guard IS NOT NULL THEN
        EXECUTE format('DROP FUNCTION %s', guard);
    END IF;
END
$highwater$;

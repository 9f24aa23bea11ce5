//! PostgreSQL: as the owner, and as a role that owns nothing.

use highwater_fencing::migrate::{self, Dialect};
use highwater_fencing::protect::{Protection, RowKey};
use highwater_fencing::sqlx::SqlxFence as _;
use highwater_fencing::{
    Configured, Domain, DomainPolicy, Fence, FenceKey, FenceOptions, FencingToken, Isolation,
    TableName,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Error, PgConnection, PgPool};

use super::{fence, unique, url};

/// No fence for the key, and no truncating.
const UNFENCED: &str = "HW001";
const TRUNCATED: &str = "HW002";
const MARK: &str = "HW003";
const FORBIDDEN: &str = "42501";

/// A schema with a protected table and with marks, and the two roles.
struct Base {
    owner: PgPool,
    app: PgPool,
    schema: String,
}

impl Base {
    async fn new() -> Self {
        Self::with("CREATE TABLE stock (sku text PRIMARY KEY, quantity int NOT NULL)").await
    }

    /// `tables` creates at least `stock` with a column `sku`. A row is protected by its SKU.
    async fn with(tables: &str) -> Self {
        let schema = unique("protect");
        let options: PgConnectOptions = url("HIGHWATER_TEST_POSTGRES_URL").parse().unwrap();
        // Whatever the search path: the functions are installed into it, and must not need it.
        let owner = options.clone().options([("search_path", &schema)]);
        let app = options
            .username(&schema)
            .password("app")
            .options([("search_path", "pg_catalog")]);
        let pool = PgPoolOptions::new().max_connections(3);
        let owner = pool.connect_with(owner).await.unwrap();
        let setup = format!(
            "CREATE SCHEMA {schema}; CREATE ROLE {schema} LOGIN PASSWORD 'app'; \
             GRANT USAGE, CREATE ON SCHEMA {schema} TO {schema}; {tables};"
        );
        let base = Self {
            app: PgPoolOptions::new()
                .max_connections(3)
                .connect_lazy_with(app),
            owner,
            schema,
        };
        base.run(&setup).await;
        base.run(&migrate::print(Dialect::Postgres, &base.marks()))
            .await;
        base.run(&migrate::print_protect(Dialect::Postgres, &base.marks()))
            .await;
        base.run(&base.protection("{sku}").install(Dialect::Postgres))
            .await;
        // More than an application needs: what it must not do is refused by more than privileges.
        let schema = &base.schema;
        base.run(&format!(
            "GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {schema}; \
             REVOKE TRIGGER ON ALL TABLES IN SCHEMA {schema} FROM {schema}"
        ))
        .await;
        base
    }

    fn protection(&self, key: &str) -> Protection {
        let table = TableName::new(format!("{}.stock", self.schema)).unwrap();
        Protection::new(table, RowKey::sql(key).unwrap()).marks(self.marks())
    }

    fn marks(&self) -> TableName {
        TableName::new(format!("{}.marks", self.schema)).unwrap()
    }

    fn fence(&self, key: &str, token: u64) -> Configured {
        self.options().apply(fence(key, token))
    }

    fn options(&self) -> FenceOptions {
        FenceOptions::new().table_name(self.marks())
    }

    /// The text with `stock` and `marks` in their schema.
    fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
        let schema = &self.schema;
        AssertSqlSafe(
            sql.replace("@stock", &format!("{schema}.stock"))
                .replace("@marks", &format!("{schema}.marks"))
                .replace("@schema", schema),
        )
    }

    async fn run(&self, sql: &str) {
        sqlx::raw_sql(self.sql(sql))
            .execute(&self.owner)
            .await
            .unwrap();
    }

    /// Each role with its pool.
    fn roles(&self) -> [(&'static str, &PgPool); 2] {
        [("owner", &self.owner), ("app", &self.app)]
    }

    /// The SQLSTATE with which a statement of a plain transaction is refused.
    async fn code(&self, pool: &PgPool, sql: &str) -> Option<String> {
        let done = sqlx::raw_sql(self.sql(sql)).execute(pool).await;
        code(done.err()?)
    }

    /// Runs the statements one by one in a transaction with the fence of `key`; the SQLSTATE of the
    /// first that is refused, after which all is rolled back.
    async fn fenced(&self, pool: &PgPool, key: &str, statements: &[&str]) -> Option<String> {
        let mut tx = self.fence(key, 5).begin(pool).await.unwrap();
        for statement in statements {
            if let Err(error) = sqlx::raw_sql(self.sql(statement)).execute(&mut tx).await {
                tx.rollback().await.unwrap();
                return code(error);
            }
        }
        tx.commit().await.unwrap();
        None
    }

    async fn rows(&self) -> Vec<String> {
        let rows = self.sql("SELECT stock::text FROM @stock AS stock ORDER BY 1");
        sqlx::query_scalar(rows)
            .fetch_all(&self.owner)
            .await
            .unwrap()
    }

    /// The fence of `key` as raw SQL, for what the adapters do not allow.
    fn raw_fence(&self, key: &str, token: u64) -> AssertSqlSafe<String> {
        self.sql(&format!(
            "INSERT INTO @marks AS m VALUES (convert_to('{key}', 'UTF8'), decode(repeat('00', 32), \
             'hex'), {token}, 0, pg_current_xact_id(), now()) ON CONFLICT (key) DO UPDATE SET \
             token = EXCLUDED.token, last_tx = EXCLUDED.last_tx WHERE m.token <= EXCLUDED.token"
        ))
    }
}

fn code(error: Error) -> Option<String> {
    let error = error.into_database_error().unwrap();
    Some(error.code().unwrap().into_owned())
}

#[track_caller]
fn assert_code(found: Option<String>, wanted: &str, what: &str) {
    assert_eq!(found.as_deref(), Some(wanted), "{what}");
}

#[tokio::test]
async fn whoever_writes_without_a_fence_is_refused() {
    let base = Base::new().await;
    base.fenced(&base.owner, "a", &["INSERT INTO @stock VALUES ('a', 1)"])
        .await;
    for (role, pool) in base.roles() {
        for statement in [
            "INSERT INTO @stock VALUES ('b', 1)",
            "UPDATE @stock SET quantity = 2",
            "DELETE FROM @stock",
            "INSERT INTO @stock VALUES ('a', 3) ON CONFLICT (sku) DO UPDATE SET quantity = 3",
            "WITH gone AS (DELETE FROM @stock RETURNING sku) SELECT * FROM gone",
            "MERGE INTO @stock AS s USING (VALUES ('a')) AS v (sku) ON s.sku = v.sku \
             WHEN MATCHED THEN UPDATE SET quantity = 3",
        ] {
            let found = base.code(pool, statement).await;
            assert_code(found, UNFENCED, &format!("{role}: {statement}"));
        }
        let found = base.code(pool, "TRUNCATE @stock").await;
        assert_code(found, TRUNCATED, role);
        let mut conn = pool.acquire().await.unwrap();
        let copy = base.sql("COPY @stock FROM STDIN").0;
        let mut copy = conn.copy_in_raw(&copy).await.unwrap();
        copy.send(&b"b\t1\n"[..]).await.unwrap();
        assert_code(code(copy.finish().await.unwrap_err()), UNFENCED, role);
    }
    assert_eq!(base.rows().await, ["(a,1)"]);
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let base = Base::new().await;
    let insert = base.sql("INSERT INTO @stock VALUES ('a', 1)");
    let error = sqlx::raw_sql(insert).execute(&base.app).await.unwrap_err();
    let error = error.into_database_error().unwrap();
    assert_eq!(error.constraint(), Some("highwater_protected"));
    assert_eq!(error.table(), Some("stock"));
    let text = error.message();
    assert!(text.contains("\"a\"") && text.contains("stock"), "{text}");
}

#[tokio::test]
async fn a_fenced_transaction_writes_the_rows_of_its_key_and_no_others() {
    for isolation in [
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ] {
        let base = Base::new().await;
        for (role, pool) in base.roles() {
            let options = base.options().isolation(isolation);
            let fence = options.apply(fence(role, 5));
            let written: Result<(), highwater_fencing::sqlx::FenceError> = fence
                .transaction(pool, async |tx| {
                    for statement in [
                        "INSERT INTO @stock VALUES ('@role', 1)",
                        "UPDATE @stock SET quantity = 2 WHERE sku = '@role'",
                        "INSERT INTO @stock VALUES ('@role', 3) ON CONFLICT DO NOTHING",
                        "INSERT INTO @stock VALUES ('@role', 3) \
                         ON CONFLICT (sku) DO UPDATE SET quantity = 4",
                    ] {
                        let statement = base.sql(&statement.replace("@role", role));
                        sqlx::raw_sql(statement).execute(&mut *tx).await?;
                    }
                    Ok(())
                })
                .await;
            written.unwrap();
            let other = "INSERT INTO @stock VALUES ('other', 1)";
            assert_code(base.fenced(pool, role, &[other]).await, UNFENCED, role);
        }
        assert_eq!(base.rows().await, ["(app,4)", "(owner,4)"]);
    }
}

#[tokio::test]
async fn a_fence_ends_with_its_transaction() {
    let base = Base::new().await;
    for (role, pool) in base.roles() {
        let mut conn = pool.acquire().await.unwrap();
        for ending in ["COMMIT", "ROLLBACK"] {
            conn.execute_all(&[base.raw_fence("a", 5).0, ending.to_owned()])
                .await
                .unwrap();
            let insert = vec![base.sql("INSERT INTO @stock VALUES ('a', 1)").0];
            let refused = conn.execute_all(&insert).await.unwrap_err();
            assert_code(code(refused), UNFENCED, &format!("{role} after {ending}"));
            conn.execute_all(&[]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_fence_that_was_rolled_back_alone_protects_nothing() {
    let base = Base::new().await;
    for (role, pool) in base.roles() {
        let mut conn = pool.acquire().await.unwrap();
        let insert = base
            .sql(&format!("INSERT INTO @stock VALUES ('{role}', 1)"))
            .0;
        let refused = conn
            .execute_all(&[
                "SAVEPOINT before".to_owned(),
                base.raw_fence(role, 5).0,
                "ROLLBACK TO before".to_owned(),
                insert.clone(),
            ])
            .await
            .unwrap_err();
        assert_code(code(refused), UNFENCED, role);
        // One that was taken inside a savepoint which is still there counts, and so does one before
        // a savepoint that was rolled back.
        let kept = [
            "SAVEPOINT before".to_owned(),
            base.raw_fence(role, 5).0,
            "RELEASE before".to_owned(),
            "SAVEPOINT after".to_owned(),
            "ROLLBACK TO after".to_owned(),
            insert,
            "COMMIT".to_owned(),
        ];
        conn.execute_all(&kept).await.unwrap();
    }
    assert_eq!(base.rows().await, ["(app,1)", "(owner,1)"]);
}

#[tokio::test]
async fn a_row_that_changes_its_key_needs_the_fences_of_both() {
    let base = Base::new().await;
    for (role, pool) in base.roles() {
        let mv = "UPDATE @stock SET sku = 'b' WHERE sku = 'a'";
        assert_eq!(
            base.fenced(pool, "a", &["INSERT INTO @stock VALUES ('a', 1)"])
                .await,
            None,
        );
        assert_code(base.fenced(pool, "a", &[mv]).await, UNFENCED, role);
        assert_code(base.fenced(pool, "b", &[mv]).await, UNFENCED, role);
        let both = fence("a", 5).and(fence("b", 5)).unwrap();
        let mut tx = base.options().apply(both).begin(pool).await.unwrap();
        sqlx::raw_sql(base.sql(mv)).execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(base.fenced(pool, "b", &["DELETE FROM @stock"]).await, None);
    }
}

#[tokio::test]
async fn a_stale_holder_cannot_write_by_going_on() {
    let base = Base::new().await;
    base.fenced(&base.owner, "a", &["INSERT INTO @stock VALUES ('a', 1)"])
        .await;
    for (role, pool) in base.roles() {
        let mut conn = pool.acquire().await.unwrap();
        // The fence statement is refused in silence, as by a program that does not look.
        let refused = conn
            .execute_all(&[
                base.raw_fence("a", 4).0,
                base.sql("UPDATE @stock SET quantity = 0").0,
            ])
            .await
            .unwrap_err();
        assert_code(code(refused), UNFENCED, role);
    }
}

#[tokio::test]
async fn every_partition_is_protected_whichever_way_it_is_reached() {
    let base = Base::with(
        "CREATE TABLE stock (dropped int, sku text, quantity int) PARTITION BY LIST (sku); \
         ALTER TABLE stock DROP COLUMN dropped; \
         CREATE TABLE stock_a PARTITION OF stock FOR VALUES IN ('a'); \
         CREATE TABLE stock_b (quantity int, sku text); \
         ALTER TABLE stock ATTACH PARTITION stock_b FOR VALUES IN ('b')",
    )
    .await;
    base.run("CREATE TABLE @schema.stock_c PARTITION OF @stock FOR VALUES IN ('c')")
        .await;
    base.run("GRANT INSERT, TRUNCATE ON @schema.stock_c TO @schema")
        .await;
    for (role, pool) in base.roles() {
        for statement in [
            "INSERT INTO @stock VALUES ('a', 1)",
            "INSERT INTO @schema.stock_a VALUES ('a', 1)",
            "INSERT INTO @schema.stock_b VALUES (1, 'b')",
            "INSERT INTO @stock VALUES ('c', 1)",
        ] {
            let found = base.code(pool, statement).await;
            assert_code(found, UNFENCED, &format!("{role}: {statement}"));
        }
        for table in ["@stock", "@schema.stock_a", "@schema.stock_b"] {
            let found = base.code(pool, &format!("TRUNCATE {table}")).await;
            assert_code(found, TRUNCATED, &format!("{role}: {table}"));
        }
        // A row that moves to another partition.
        let insert = "INSERT INTO @schema.stock_a VALUES ('a', 1)";
        assert_eq!(base.fenced(pool, "a", &[insert]).await, None);
        let mv = "UPDATE @stock SET sku = 'b'";
        assert_code(base.fenced(pool, "a", &[mv]).await, UNFENCED, role);
        assert_eq!(base.fenced(pool, "a", &["DELETE FROM @stock"]).await, None);
        // Known and written down: TRUNCATE of a partition that came later, until the next protect.
        let truncate = "TRUNCATE @schema.stock_c";
        assert_eq!(base.code(pool, truncate).await, None);
    }
    base.run(&base.protection("{sku}").install(Dialect::Postgres))
        .await;
    let found = base.code(&base.app, "TRUNCATE @schema.stock_c").await;
    assert_code(found, TRUNCATED, "after another protect");
}

#[tokio::test]
async fn tables_that_inherit_are_protected_too() {
    let base = Base::with(
        "CREATE TABLE stock (sku text, quantity int); \
         CREATE TABLE heir (more int) INHERITS (stock)",
    )
    .await;
    let insert = "INSERT INTO @schema.heir VALUES ('a', 1, 1)";
    assert_code(base.code(&base.app, insert).await, UNFENCED, "insert");
    assert_eq!(base.fenced(&base.app, "a", &[insert]).await, None);
    let update = "UPDATE @stock SET quantity = 2";
    assert_code(base.code(&base.app, update).await, UNFENCED, "update");
    // Known and written down: one that came later, until the next protect.
    base.run(
        "CREATE TABLE @schema.later (more int) INHERITS (@stock); \
         GRANT INSERT ON @schema.later TO @schema",
    )
    .await;
    let insert = "INSERT INTO @schema.later VALUES ('b', 1, 1)";
    assert_eq!(base.code(&base.app, insert).await, None);
    base.run(&base.protection("{sku}").install(Dialect::Postgres))
        .await;
    assert_code(base.code(&base.app, insert).await, UNFENCED, "later");
}

#[tokio::test]
async fn a_foreign_key_that_cascades_is_a_write_too() {
    let base = Base::with(
        "CREATE TABLE kind (name text PRIMARY KEY); INSERT INTO kind VALUES ('fruit'); \
         CREATE TABLE stock (sku text PRIMARY KEY, \
         kind text REFERENCES kind ON DELETE CASCADE ON UPDATE CASCADE)",
    )
    .await;
    for (role, pool) in base.roles() {
        let insert = "INSERT INTO @stock VALUES ('a', 'fruit')";
        assert_eq!(base.fenced(pool, "a", &[insert]).await, None);
        for statement in [
            "DELETE FROM @schema.kind",
            "UPDATE @schema.kind SET name = 'fruits'",
        ] {
            assert_code(base.code(pool, statement).await, UNFENCED, role);
            assert_code(base.fenced(pool, "b", &[statement]).await, UNFENCED, role);
        }
        let found = base.code(pool, "TRUNCATE @schema.kind CASCADE").await;
        assert_code(found, TRUNCATED, role);
        assert_eq!(base.fenced(pool, "a", &["DELETE FROM @stock"]).await, None);
    }
}

#[tokio::test]
async fn the_row_is_judged_as_it_is_stored() {
    let base = Base::with(
        "CREATE TABLE stock (shop text, number int, quantity int, \
         sku text GENERATED ALWAYS AS (shop || '-' || number) STORED); \
         CREATE FUNCTION renumber() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN NEW.number := 7; RETURN NEW; END'; \
         CREATE TRIGGER zz_renumber BEFORE INSERT ON stock FOR EACH ROW \
         EXECUTE FUNCTION renumber()",
    )
    .await;
    let insert = "INSERT INTO @stock VALUES ('s', 1, 1)";
    assert_code(
        base.fenced(&base.app, "s-1", &[insert]).await,
        UNFENCED,
        "s-1",
    );
    assert_eq!(base.fenced(&base.app, "s-7", &[insert]).await, None);
}

#[tokio::test]
async fn a_key_may_be_an_expression_and_names_may_be_strange() {
    let base = Base::with(
        r#"CREATE TABLE stock (sku text); CREATE TABLE "we ""ird' $$t" ("a ""b'" bytea, q int)"#,
    )
    .await;
    base.run(
        r#"SELECT highwater_protect('"we ""ird'' $$t"',
           $$ '\x00'::bytea || "a ""b'" -- a comment$$, '@marks')"#,
    )
    .await;
    let table = r#"@schema."we ""ird' $$t""#;
    base.run(&format!("GRANT INSERT ON {table} TO @schema"))
        .await;
    let insert = format!(r"INSERT INTO {table} VALUES ('\x61', 1)");
    assert_code(base.code(&base.app, &insert).await, UNFENCED, "unfenced");
    assert_eq!(base.fenced(&base.app, "\0a", &[&insert]).await, None);
    // A key that is NULL is nobody's.
    let null = format!("INSERT INTO {table} VALUES (NULL, 1)");
    assert_code(
        base.fenced(&base.app, "\0", &[&null]).await,
        UNFENCED,
        "NULL",
    );
    for (key, expected) in [
        ("nope", "42703"),
        ("q", "42804"),
        ("'x'; DROP TABLE stock", "42601"),
        ("'x') FROM stock; DROP TABLE stock --", "42601"),
    ] {
        let protect = format!(
            "SELECT highwater_protect('{}'::regclass, $key${key}$key$, '@marks')",
            table.replace('\'', "''")
        );
        assert_code(base.code(&base.owner, &protect).await, expected, key);
    }
    for (table, expected) in [("@marks", "42809"), ("pg_stat_activity", "42809")] {
        let protect = format!("SELECT highwater_protect('{table}', '''x''', '@marks')");
        assert_code(base.code(&base.owner, &protect).await, expected, table);
    }
}

#[tokio::test]
async fn a_role_that_owns_nothing_cannot_get_around_it() {
    let base = Base::new().await;
    base.fenced(&base.owner, "a", &["INSERT INTO @stock VALUES ('a', 1)"])
        .await;
    let app = &base.app;
    // All of these with every privilege on both tables but that to create triggers.
    for statement in [
        "ALTER TABLE @stock DISABLE TRIGGER ALL",
        "DROP TRIGGER highwater_guard ON @stock",
        "ALTER TABLE @marks DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "DROP FUNCTION @schema.highwater_guard_stock()",
        "CREATE OR REPLACE FUNCTION @schema.highwater_guard_stock() RETURNS trigger \
         LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "SELECT @schema.highwater_protect('@stock', '''b''', '@marks')",
        "SELECT @schema.highwater_unprotect('@stock')",
        // Would run casts of its own with the rights of the owner.
        "CREATE TABLE @schema.mine (sku text); CREATE TRIGGER t AFTER INSERT ON @schema.mine \
         FOR EACH ROW EXECUTE FUNCTION @schema.highwater_guard_stock()",
    ] {
        assert_code(base.code(app, statement).await, FORBIDDEN, statement);
    }
    for statement in [
        "UPDATE @marks SET token = 1, last_tx = pg_current_xact_id()",
        "UPDATE @marks SET key = '\\x62', last_tx = pg_current_xact_id()",
        "UPDATE @marks SET last_tx = '9223372036854775807'",
        "UPDATE @marks SET domain = decode(repeat('11', 32), 'hex'), last_tx = pg_current_xact_id()",
        "INSERT INTO @marks VALUES ('\\x62', decode(repeat('00', 32), 'hex'), 1, 0, '99', now())",
        "DELETE FROM @marks",
        "TRUNCATE @marks",
    ] {
        assert_code(base.code(app, statement).await, MARK, statement);
    }
    // What it puts in the way of names is not looked at.
    let mut conn = app.acquire().await.unwrap();
    let shadowed = conn
        .execute_all(&[
            "CREATE TEMP TABLE marks (key bytea, last_tx xid8)".to_owned(),
            "INSERT INTO marks VALUES ('a', pg_current_xact_id())".to_owned(),
            base.sql(
                "CREATE FUNCTION @schema.yes(bytea, bytea) RETURNS boolean LANGUAGE sql \
                 AS 'SELECT true'",
            )
            .0,
            base.sql(
                "CREATE OPERATOR @schema.= (LEFTARG = bytea, RIGHTARG = bytea, \
                 FUNCTION = @schema.yes)",
            )
            .0,
            base.sql("SET LOCAL search_path = pg_temp, @schema, pg_catalog")
                .0,
            base.raw_fence("x", 1).0,
            base.sql("UPDATE @stock SET quantity = 0").0,
        ])
        .await
        .unwrap_err();
    assert_code(code(shadowed), UNFENCED, "shadowed");
    assert_eq!(base.rows().await, ["(a,1)"]);
}

/// With it a role replaces the guard, or lowers a mark after its guard has looked.
#[tokio::test]
async fn a_role_that_may_create_triggers_is_noticed() {
    let base = Base::new().await;
    let protect = base.protection("{sku}").install(Dialect::Postgres);
    for (table, role) in [("@stock", "@schema"), ("@marks", "PUBLIC")] {
        base.run(&format!("GRANT TRIGGER ON {table} TO {role}"))
            .await;
        let found = base.code(&base.owner, &protect).await;
        assert_code(found, "55000", table);
        base.run(&format!("REVOKE TRIGGER ON {table} FROM {role}"))
            .await;
    }
    base.run(&protect).await;
}

/// Whoever may create functions in the schema can have waited with the name of the guard, and a
/// superuser would replace the function without owning it.
#[tokio::test]
async fn a_function_that_lay_in_wait_is_noticed() {
    let base = Base::new().await;
    base.run("CREATE TABLE @schema.prey (sku text)").await;
    let wait = "CREATE FUNCTION @schema.highwater_guard_prey() RETURNS trigger \
                LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'";
    assert_eq!(base.code(&base.app, wait).await, None);
    let protect = "SELECT @schema.highwater_protect('@schema.prey', 'sku', '@marks')";
    let found = base.code(&base.owner, protect).await;
    assert_code(found, "55000", "the function of another");
    base.run("DROP FUNCTION @schema.highwater_guard_prey()")
        .await;
    base.run(protect).await;
}

#[tokio::test]
async fn a_key_may_have_percent_signs() {
    let base = Base::with("CREATE TABLE stock (sku text, quantity int)").await;
    base.run(
        &base
            .protection("'%s%1$s' || {quantity} % 10 || {sku}")
            .install(Dialect::Postgres),
    )
    .await;
    let insert = "INSERT INTO @stock VALUES ('a', 12)";
    assert_code(base.code(&base.app, insert).await, UNFENCED, "unfenced");
    assert_eq!(base.fenced(&base.app, "%s%1$s2a", &[insert]).await, None);
}

/// The functions that all tables share have names that no table's guard can get.
#[tokio::test]
async fn a_table_may_be_called_as_the_shared_functions_once_were() {
    for name in ["marks", "truncate"] {
        let base = Base::with("CREATE TABLE stock (sku text)").await;
        base.run(&format!(
            "CREATE SCHEMA @schema_other; GRANT USAGE ON SCHEMA @schema_other TO @schema; \
             ALTER TABLE @marks SET SCHEMA @schema_other; \
             DROP FUNCTION @schema.highwater_keep_marks() CASCADE; \
             CREATE TABLE @schema.{name} (sku text); \
             GRANT INSERT ON @schema.{name} TO @schema; \
             SELECT @schema.highwater_protect('@schema.{name}', 'sku', '@schema_other.marks')"
        ))
        .await;
        let insert = format!("INSERT INTO @schema.{name} VALUES ('a')");
        for (role, pool) in base.roles() {
            assert_code(base.code(pool, &insert).await, UNFENCED, role);
        }
    }
}

/// Before PostgreSQL 18 there are none, and the statement is a syntax error.
#[tokio::test]
async fn a_key_of_a_virtual_column_is_refused() {
    let base = Base::new().await;
    let virtual_column = "CREATE TABLE @schema.made (id int, sku text \
                          GENERATED ALWAYS AS ('s-' || id::text) VIRTUAL)";
    match base.code(&base.owner, virtual_column).await.as_deref() {
        None => {}
        Some("42601") => return,
        Some(other) => panic!("{other}"),
    }
    let protect = |key: &str| {
        format!("SELECT @schema.highwater_protect('@schema.made', $${key}$$, '@marks')")
    };
    for key in ["sku", r#"coalesce("sku", 'x')"#, "SKU || id"] {
        let found = base.code(&base.owner, &protect(key)).await;
        assert_code(found, "0A000", key);
    }
    assert_eq!(base.code(&base.owner, &protect("id::text")).await, None);
}

#[tokio::test]
async fn protecting_a_table_waits_for_a_running_fenced_transaction() {
    let base = Base::new().await;
    let mut tx = base.fence("a", 5).begin(&base.app).await.unwrap();
    let owner = base.owner.clone();
    let name = format!("protects {}", base.schema);
    let naming = AssertSqlSafe(format!("SET application_name = '{name}'"));
    let protect = base.sql(&base.protection("{sku}").install(Dialect::Postgres));
    let protecting = tokio::spawn(async move {
        let mut conn = owner.acquire().await.unwrap();
        sqlx::raw_sql(naming).execute(&mut *conn).await.unwrap();
        sqlx::raw_sql(protect).execute(&mut *conn).await
    });
    loop {
        let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity \
                       WHERE application_name = $1 AND wait_event_type = 'Lock')";
        let waiting = sqlx::query_scalar(waiting).bind(&name);
        if waiting.fetch_one(&base.owner).await.unwrap() {
            break;
        }
        assert!(!protecting.is_finished(), "it did not wait");
        tokio::task::yield_now().await;
    }
    let insert = base.sql("INSERT INTO @stock VALUES ('a', 1)");
    sqlx::raw_sql(insert).execute(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    protecting.await.unwrap().unwrap();
}

#[tokio::test]
async fn least_privileges_are_enough_for_the_application() {
    let base = Base::new().await;
    base.run(
        "REVOKE ALL ON @stock, @marks FROM @schema; GRANT SELECT, INSERT, UPDATE ON @marks TO @schema; \
         GRANT INSERT ON @stock TO @schema; REVOKE CREATE ON SCHEMA @schema FROM @schema",
    )
    .await;
    let insert = "INSERT INTO @stock VALUES ('a', 1)";
    assert_eq!(base.fenced(&base.app, "a", &[insert]).await, None);
    // A role without any right on the marks is refused like everybody, not with another error.
    base.run("REVOKE ALL ON @marks FROM @schema").await;
    let insert = "INSERT INTO @stock VALUES ('b', 1)";
    assert_code(base.code(&base.app, insert).await, UNFENCED, "no rights");
}

#[tokio::test]
async fn marks_of_another_domain_are_adopted_under_the_guard() {
    let base = Base::new().await;
    assert_eq!(base.fenced(&base.app, "a", &[]).await, None);
    let other = |token| {
        let domain = Domain::named("another").unwrap();
        let fence = Fence::new(
            domain,
            FenceKey::new("a").unwrap(),
            FencingToken::new(token).unwrap(),
        );
        base.options()
            .domain_policy(DomainPolicy::AdoptHigher)
            .apply(fence)
    };
    assert!(other(5).begin(&base.app).await.is_err());
    let tx = other(6).begin(&base.app).await.unwrap();
    tx.commit().await.unwrap();
}

/// After a logical restore into another cluster the number of an old transaction is that of a
/// new one some day.
#[tokio::test]
async fn a_restored_number_of_a_transaction_is_not_a_fence() {
    let base = Base::new().await;
    base.fenced(&base.owner, "a", &["INSERT INTO @stock VALUES ('a', 1)"])
        .await;
    let mut conn = base.app.acquire().await.unwrap();
    'missed: loop {
        // Other tests use up numbers too, so it may be missed.
        let restored = base.sql(
            "UPDATE @marks SET last_tx = (pg_current_xact_id()::text::bigint + 25)::text::xid8 \
             RETURNING last_tx::text::bigint",
        );
        let restored: i64 = sqlx::query_scalar(restored)
            .fetch_one(&base.owner)
            .await
            .unwrap();
        loop {
            let mut tx = conn.begin().await.unwrap();
            let current = "SELECT pg_current_xact_id()::text::bigint";
            let current: i64 = sqlx::query_scalar(current)
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            if current > restored {
                continue 'missed;
            }
            if current == restored {
                let update = base.sql("UPDATE @stock SET quantity = 0");
                let refused = sqlx::raw_sql(update).execute(&mut *tx).await.unwrap_err();
                assert_code(code(refused), UNFENCED, "restored");
                return;
            }
        }
    }
}

#[tokio::test]
async fn protection_can_be_changed_and_taken_off() {
    let base = Base::new().await;
    let insert = |sku| format!("INSERT INTO @stock VALUES ('{sku}', 1)");
    base.run(
        &base
            .protection("'stock/' || {sku}")
            .install(Dialect::Postgres),
    )
    .await;
    assert_code(
        base.fenced(&base.app, "a", &[&insert("a")]).await,
        UNFENCED,
        "old",
    );
    assert_eq!(
        base.fenced(&base.app, "stock/a", &[&insert("a")]).await,
        None
    );
    base.run(&base.protection("{sku}").remove(Dialect::Postgres))
        .await;
    assert_eq!(base.code(&base.app, &insert("b")).await, None);
    base.run(&base.protection("{sku}").remove(Dialect::Postgres))
        .await;

    // A table that took the name of a protected one does not take its protection.
    base.run(&base.protection("{sku}").install(Dialect::Postgres))
        .await;
    base.run("ALTER TABLE @stock RENAME TO renamed; CREATE TABLE @stock (sku text)")
        .await;
    let again = base.protection("{sku}").install(Dialect::Postgres);
    assert_code(base.code(&base.owner, &again).await, "42723", "the name");
    let renamed = "UPDATE @schema.renamed SET quantity = 2";
    assert_code(base.code(&base.owner, renamed).await, UNFENCED, "renamed");
}

/// Alone with its database, because it takes every protection off.
#[tokio::test]
async fn the_way_down_takes_every_protection_off_and_the_way_up_can_be_repeated() {
    let name = unique("down");
    let options: PgConnectOptions = url("HIGHWATER_TEST_POSTGRES_URL").parse().unwrap();
    let mut admin = PgConnection::connect_with(&options).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    let mut conn = PgConnection::connect_with(&options.database(&name))
        .await
        .unwrap();
    let marks = TableName::DEFAULT;
    let stock = TableName::new("stock").unwrap();
    let protection = Protection::new(stock, RowKey::column("sku").unwrap());
    let up = migrate::print_protect(Dialect::Postgres, &marks);
    let down = migrate::print_protect_down(Dialect::Postgres, &marks);
    let write = "INSERT INTO stock VALUES ('a')".to_owned();
    for sql in [
        "CREATE TABLE stock (sku text)".to_owned(),
        migrate::print(Dialect::Postgres, &marks),
        up.clone(),
        up.clone(),
        protection.install(Dialect::Postgres),
        down.clone(),
        down,
        write.clone(),
        up,
        protection.install(Dialect::Postgres),
    ] {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut conn)
            .await
            .unwrap();
    }
    let refused = sqlx::raw_sql(AssertSqlSafe(write)).execute(&mut conn).await;
    assert_code(code(refused.unwrap_err()), UNFENCED, "again");
    conn.close().await.unwrap();
    let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    sqlx::raw_sql(drop).execute(&mut admin).await.unwrap();
}

/// Statements one after another in a transaction of raw SQL.
trait ExecuteAll {
    /// Ends what is open, begins, and stops at the first error.
    async fn execute_all(&mut self, statements: &[String]) -> Result<(), Error>;
}

impl ExecuteAll for PgConnection {
    async fn execute_all(&mut self, statements: &[String]) -> Result<(), Error> {
        for statement in ["ROLLBACK".to_owned(), "BEGIN".to_owned()]
            .iter()
            .chain(statements)
        {
            let statement = sqlx::raw_sql(AssertSqlSafe(statement.clone()));
            statement.execute(&mut *self).await?;
        }
        Ok(())
    }
}

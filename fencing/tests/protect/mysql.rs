//! MySQL and MariaDB: what is refused, and what slips through.
//!
//! A MariaDB server without the performance schema cannot tell transactions apart; there the tests
//! hold that protected tables then refuse everything.

use highwater_fencing::migrate::{self, Dialect};
use highwater_fencing::protect::{Protection, RowKey};
use highwater_fencing::sqlx::SqlxFence as _;
use highwater_fencing::{Configured, FenceOptions, Isolation, TableName};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Error, MySqlPool};

use super::{fence, unique, url};

/// `SIGNAL` with the SQLSTATE 45000.
const UNFENCED: u16 = 1644;

/// A database with a protected table and with marks, and an account that owns nothing.
struct Base {
    owner: MySqlPool,
    app: MySqlPool,
    name: String,
    marks: TableName,
    /// The server tells transactions apart.
    tells: bool,
}

impl Base {
    async fn new(variable: &str) -> Self {
        Self::with(
            variable,
            "CREATE TABLE stock (sku varchar(40) PRIMARY KEY, quantity int)",
        )
        .await
    }

    async fn with(variable: &str, tables: &str) -> Self {
        let name = unique("protect");
        let options: MySqlConnectOptions = url(variable).parse().unwrap();
        let mut admin = MySqlConnection::connect_with(&options).await.unwrap();
        let setup = format!(
            "CREATE DATABASE {name}; CREATE USER '{name}'@'%' IDENTIFIED BY ''; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO '{name}'@'%'"
        );
        sqlx::raw_sql(AssertSqlSafe(setup))
            .execute(&mut admin)
            .await
            .unwrap();
        let tells = sqlx::query_scalar(
            "SELECT COUNT(*) = 2 FROM (SELECT name FROM performance_schema.setup_consumers \
             WHERE name = 'events_transactions_current' AND enabled = 'YES' UNION ALL \
             SELECT name FROM performance_schema.setup_instruments \
             WHERE name = 'transaction' AND enabled = 'YES' AND timed = 'YES') AS needed",
        );
        let tells: bool = tells.fetch_one(&mut admin).await.unwrap();
        let pool = || MySqlPoolOptions::new().max_connections(2);
        let owner = pool().connect_lazy_with(options.clone().database(&name));
        // Without a password, because one needs TLS for its first use.
        let app = MySqlConnectOptions::new()
            .host(options.get_host())
            .port(options.get_port())
            .username(&name)
            .database(&name);
        // Names of its own, and a schema before them, so that this is tested too.
        let marks = TableName::new(format!("{name}.marks")).unwrap();
        let base = Self {
            app: pool().connect_lazy_with(app),
            owner,
            name,
            marks,
            tells,
        };
        base.run(tables).await;
        base.run(&migrate::print(Dialect::MySql, &base.marks)).await;
        for _ in 0..2 {
            base.run(&migrate::print_protect(Dialect::MySql, &base.marks))
                .await;
            base.run(&base.protection("{sku}").install(Dialect::MySql))
                .await;
        }
        base
    }

    fn protection(&self, key: &str) -> Protection {
        let table = TableName::new(format!("{}.stock", self.name)).unwrap();
        Protection::new(table, RowKey::sql(key).unwrap()).marks(self.marks.clone())
    }

    fn options(&self) -> FenceOptions {
        FenceOptions::new().table_name(self.marks.clone())
    }

    fn fence(&self, key: &str, token: u64) -> Configured {
        self.options().apply(fence(key, token))
    }

    async fn run(&self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        sql.execute(&self.owner).await.unwrap();
    }

    fn roles(&self) -> [(&'static str, &MySqlPool); 2] {
        [("owner", &self.owner), ("app", &self.app)]
    }

    /// The number of the error with which a statement outside of a fenced transaction is refused.
    async fn number(&self, pool: &MySqlPool, sql: &str) -> Option<u16> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(pool)
            .await;
        done.err().map(|error| number(&error))
    }

    /// Runs the statements in a fenced transaction; the first error rolls back.
    async fn fenced(&self, pool: &MySqlPool, key: &str, statements: &[&str]) -> Option<u16> {
        let mut tx = self.fence(key, 5).begin(pool).await.unwrap();
        for statement in statements {
            let statement = sqlx::raw_sql(AssertSqlSafe((*statement).to_owned()));
            if let Err(error) = statement.execute(&mut tx).await {
                tx.rollback().await.unwrap();
                return Some(number(&error));
            }
        }
        tx.commit().await.unwrap();
        None
    }

    /// A row to write, whatever protects the table.
    async fn put(&self, row: &str) {
        self.run(&self.protection("{sku}").remove(Dialect::MySql))
            .await;
        self.run(&format!("INSERT INTO stock VALUES {row}")).await;
        self.run(&self.protection("{sku}").install(Dialect::MySql))
            .await;
    }

    async fn count(&self) -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM stock")
            .fetch_one(&self.owner)
            .await
            .unwrap()
    }
}

fn number(error: &Error) -> u16 {
    let error = error.as_database_error().unwrap();
    error.downcast_ref::<MySqlDatabaseError>().number()
}

async fn whoever_writes_without_a_fence_is_refused(base: Base) {
    base.put("('a', 1)").await;
    for (role, pool) in base.roles() {
        for statement in [
            "INSERT INTO stock VALUES ('b', 1)",
            "INSERT IGNORE INTO stock VALUES ('b', 1)",
            "UPDATE stock SET quantity = 2",
            "UPDATE IGNORE stock SET quantity = 2",
            "DELETE FROM stock",
            "REPLACE INTO stock VALUES ('a', 2)",
            "INSERT INTO stock VALUES ('a', 3) ON DUPLICATE KEY UPDATE quantity = 3",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; UPDATE stock SET quantity = 2",
            "SET SESSION sql_mode = ''; UPDATE stock SET quantity = 2",
        ] {
            let found = base.number(pool, statement).await;
            assert_eq!(found, Some(UNFENCED), "{role}: {statement}");
        }
    }
}

async fn a_fenced_transaction_writes_the_rows_of_its_key_and_no_others(base: Base) {
    for (role, pool) in base.roles() {
        for isolation in [
            Isolation::ReadCommitted,
            Isolation::RepeatableRead,
            Isolation::Serializable,
        ] {
            let fence = base.options().isolation(isolation).apply(fence("a", 5));
            let mut tx = fence.begin(pool).await.unwrap();
            for statement in [
                "INSERT INTO stock VALUES ('a', 1)",
                "UPDATE stock SET quantity = 2",
                "REPLACE INTO stock VALUES ('a', 2)",
                "INSERT INTO stock VALUES ('a', 3) ON DUPLICATE KEY UPDATE quantity = 3",
                "DELETE FROM stock",
            ] {
                let done = sqlx::raw_sql(statement).execute(&mut tx).await;
                let found = done.err().map(|error| number(&error));
                assert_eq!(
                    found,
                    (!base.tells).then_some(UNFENCED),
                    "{role}: {statement}"
                );
                if !base.tells {
                    break;
                }
            }
            drop(tx);
        }
        let other = "INSERT INTO stock VALUES ('other', 1)";
        assert_eq!(base.fenced(pool, "a", &[other]).await, Some(UNFENCED));
    }
}

/// A server keeps opened tables with their triggers, and gives them to the next connection.
async fn connections_that_come_one_after_the_other_write(base: Base) {
    for number in 0..SUCCESSORS {
        let options = (*base.app.connect_options()).clone();
        let pool = MySqlPoolOptions::new().max_connections(1);
        let pool = pool.connect_lazy_with(options);
        let statements = [
            "INSERT INTO stock VALUES ('a', 1)",
            "UPDATE stock SET quantity = 2",
            "DELETE FROM stock",
        ];
        let found = base.fenced(&pool, "a", &statements).await;
        assert_eq!(found, (!base.tells).then_some(UNFENCED), "{number}");
        pool.close().await;
    }
}

/// More than a server has parts of its cache of opened tables.
const SUCCESSORS: u32 = 40;

async fn a_fence_ends_with_its_transaction(base: Base) {
    base.put("('a', 1)").await;
    for (role, pool) in base.roles() {
        let mut conn = pool.acquire().await.unwrap();
        for ending in [
            "COMMIT",
            "ROLLBACK",
            "CREATE TEMPORARY TABLE t (a int); DROP TABLE t; COMMIT",
        ] {
            if ending.starts_with("CREATE") && role == "app" {
                continue;
            }
            let fence = base.fence("a", 5);
            let tx = fence.begin_on(&mut conn).await.unwrap();
            match ending {
                "COMMIT" => tx.commit().await.unwrap(),
                _ => tx.rollback().await.unwrap(),
            }
            for begin in ["", "BEGIN; ", "SET autocommit = 0; "] {
                let update = AssertSqlSafe(format!("{begin}UPDATE stock SET quantity = 0"));
                let refused = sqlx::raw_sql(update).execute(&mut *conn).await.unwrap_err();
                assert_eq!(number(&refused), UNFENCED, "{role}: {ending}, {begin}");
                sqlx::raw_sql("ROLLBACK; SET autocommit = 1")
                    .execute(&mut *conn)
                    .await
                    .unwrap();
            }
        }
    }
}

async fn ddl_ends_a_fence_as_it_ends_the_transaction(base: Base) {
    base.put("('a', 1)").await;
    let statements = ["CREATE TABLE ddl (a int)", "UPDATE stock SET quantity = 0"];
    let found = base.fenced(&base.owner, "a", &statements).await;
    assert_eq!(found, Some(UNFENCED));
}

async fn a_fence_that_was_rolled_back_alone_protects_nothing(base: Base) {
    base.put("('a', 1)").await;
    for (role, pool) in base.roles() {
        let mut tx = pool.begin().await.unwrap();
        for (statement, expected) in [
            ("SAVEPOINT sp", None),
            ("fence", None),
            ("ROLLBACK TO sp", None),
            ("UPDATE stock SET quantity = 2", Some(UNFENCED)),
        ] {
            let statement = match statement {
                "fence" => format!(
                    "INSERT INTO marks (`key`, domain, token, updated_at) VALUES ('a', '', \
                     5 + 0 * LAST_INSERT_ID(1), UTC_TIMESTAMP(6)) \
                     ON DUPLICATE KEY UPDATE token = {}",
                    "IF(LAST_INSERT_ID(token <= VALUES(token)) = 1, VALUES(token), token)",
                ),
                statement => statement.to_owned(),
            };
            let done = sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut *tx)
                .await;
            assert_eq!(done.err().map(|error| number(&error)), expected, "{role}");
        }
    }
}

async fn a_row_that_changes_its_key_needs_the_fences_of_both(base: Base) {
    base.put("('a', 1)").await;
    for (role, pool) in base.roles() {
        let update = "UPDATE stock SET sku = 'b'";
        for key in ["a", "b"] {
            assert_eq!(
                base.fenced(pool, key, &[update]).await,
                Some(UNFENCED),
                "{role}"
            );
        }
        let both = fence("a", 5).and(fence("b", 5)).unwrap();
        let mut tx = base.options().apply(both).begin(pool).await.unwrap();
        let done = sqlx::raw_sql(update).execute(&mut tx).await;
        let found = done.err().map(|error| number(&error));
        assert_eq!(found, (!base.tells).then_some(UNFENCED), "{role}");
        tx.rollback().await.unwrap();
    }
}

async fn a_stale_holder_cannot_write_by_going_on(base: Base) {
    base.put("('a', 1)").await;
    assert_eq!(base.fenced(&base.owner, "a", &[]).await, None);
    for (role, pool) in base.roles() {
        let mut tx = pool.begin().await.unwrap();
        // A fence statement that tells by its answer, which nobody looks at.
        let stale = "INSERT INTO marks (`key`, domain, token, updated_at) VALUES ('a', '', \
             4 + 0 * LAST_INSERT_ID(1), UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE \
             token = IF(LAST_INSERT_ID(IF(token > VALUES(token), 2, 1)) = 1, VALUES(token), token), \
             updated_at = VALUES(updated_at)";
        sqlx::raw_sql(stale).execute(&mut *tx).await.unwrap();
        let update = sqlx::raw_sql("UPDATE stock SET quantity = 0");
        let refused = update.execute(&mut *tx).await.unwrap_err();
        assert_eq!(number(&refused), UNFENCED, "{role}");
    }
}

/// The snapshot of a transaction does not show an old mark as its own, nor hide its own.
async fn an_earlier_read_changes_nothing(base: Base) {
    base.put("('a', 1)").await;
    let mut tx = base.app.begin().await.unwrap();
    sqlx::raw_sql("SELECT * FROM marks")
        .execute(&mut *tx)
        .await
        .unwrap();
    assert_eq!(base.fenced(&base.owner, "a", &[]).await, None);
    let update = sqlx::raw_sql("UPDATE stock SET quantity = 0");
    let refused = update.execute(&mut *tx).await.unwrap_err();
    // MariaDB 11 says already that the mark has changed since it was read.
    assert!([UNFENCED, 1020].contains(&number(&refused)), "{refused}");
}

async fn the_key_is_the_text_in_utf_8_or_the_bytes(_: Base, variable: &str) {
    for (column, value, key) in [
        ("varchar(9) CHARACTER SET latin1", "'ä'", "ä".as_bytes()),
        ("varchar(9) CHARACTER SET utf8mb4", "'ä'", "ä".as_bytes()),
        ("varbinary(9)", "x'c300'", b"\xc3\0"),
        ("bigint", "17", b"17"),
    ] {
        let table = format!("CREATE TABLE stock (sku {column} PRIMARY KEY)");
        let base = Base::with(variable, &table).await;
        let fence = highwater_fencing::Fence::new(
            highwater_fencing::Domain::named("test").unwrap(),
            highwater_fencing::FenceKey::new(key).unwrap(),
            highwater_fencing::FencingToken::MIN,
        );
        let mut tx = base.options().apply(fence).begin(&base.app).await.unwrap();
        let insert = AssertSqlSafe(format!("INSERT INTO stock VALUES ({value})"));
        let done = sqlx::raw_sql(insert).execute(&mut tx).await;
        assert_eq!(done.is_ok(), base.tells, "{column}: {done:?}");
    }
}

async fn without_the_count_of_transactions_everything_is_refused(base: Base) {
    base.put("('a', 1)").await;
    let mut conn = base.owner.acquire().await.unwrap();
    // Of this connection only. A server where it is off for all is the same.
    sqlx::raw_sql(
        "UPDATE performance_schema.threads SET instrumented = 'NO' \
         WHERE processlist_id = CONNECTION_ID()",
    )
    .execute(&mut *conn)
    .await
    .unwrap();
    let mut tx = base.fence("a", 5).begin_on(&mut conn).await.unwrap();
    let update = sqlx::raw_sql("UPDATE stock SET quantity = 0");
    let refused = update.execute(&mut tx).await.unwrap_err();
    assert_eq!(number(&refused), UNFENCED);
    tx.rollback().await.unwrap();
    drop(conn.detach());
}

async fn the_application_needs_no_right_on_what_the_triggers_use(base: Base) {
    let denied = 1142;
    let threads = "SELECT * FROM performance_schema.events_transactions_current";
    assert_eq!(base.number(&base.app, threads).await, Some(denied));
    for statement in [
        "TRUNCATE stock",
        "DROP TRIGGER highwater_insert_stock",
        "DROP TABLE marks",
    ] {
        let found = base.number(&base.app, statement).await;
        assert_eq!(found, Some(denied), "{statement}");
    }
    // It writes the stamp of a mark in vain.
    base.put("('a', 1)").await;
    assert_eq!(base.fenced(&base.app, "a", &[]).await, None);
    let mut tx = base.app.begin().await.unwrap();
    sqlx::raw_sql("SELECT LAST_INSERT_ID(2); UPDATE marks SET tx = '1-1-1'")
        .execute(&mut *tx)
        .await
        .unwrap();
    let forged: Option<Vec<u8>> = sqlx::query_scalar("SELECT tx FROM marks")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_ne!(forged.as_deref(), Some(&b"1-1-1"[..]));
}

/// A dump writes what the server keeps; with a semicolon at its end that is no statement.
async fn the_triggers_are_kept_as_a_dump_can_restore_them(base: Base) {
    let kept = "SELECT CONVERT(action_statement USING utf8mb4) FROM information_schema.triggers \
         WHERE trigger_schema = DATABASE()";
    let kept: Vec<String> = sqlx::query_scalar(kept)
        .fetch_all(&base.owner)
        .await
        .unwrap();
    assert_eq!(kept.len(), 5);
    for body in kept {
        assert!(body.trim_end().ends_with("END IF"), "{body}");
        assert!(!body.contains("*/"), "{body}");
    }
}

/// Known, and written down: no trigger runs.
async fn truncate_slips_through_with_the_right_to_drop(base: Base) {
    base.put("('a', 1)").await;
    assert_eq!(base.number(&base.owner, "TRUNCATE stock").await, None);
    assert_eq!(base.count().await, 0);
}

/// Known, and written down: no trigger runs.
async fn a_foreign_key_that_cascades_slips_through(_: Base, variable: &str) {
    let base = Base::with(
        variable,
        "CREATE TABLE kind (name varchar(9) PRIMARY KEY); INSERT INTO kind VALUES ('fruit'); \
         CREATE TABLE stock (sku varchar(9) PRIMARY KEY, kind varchar(9), \
         FOREIGN KEY (kind) REFERENCES kind (name) ON DELETE CASCADE)",
    )
    .await;
    base.put("('a', 'fruit')").await;
    assert_eq!(base.number(&base.app, "DELETE FROM kind").await, None);
    assert_eq!(base.count().await, 0);
}

/// What a fence left in the session says nothing about later transactions.
async fn a_mark_that_is_only_updated_is_no_fence(base: Base) {
    base.put("('a', 1)").await;
    for (role, pool) in base.roles() {
        let mut conn = pool.acquire().await.unwrap();
        let tx = base.fence("a", 5).begin_on(&mut conn).await.unwrap();
        tx.commit().await.unwrap();
        let by_hand = "BEGIN; SELECT LAST_INSERT_ID(1); UPDATE marks SET token = token + 1";
        sqlx::raw_sql(by_hand).execute(&mut *conn).await.unwrap();
        let update = sqlx::raw_sql("UPDATE stock SET quantity = 0");
        let refused = update.execute(&mut *conn).await.unwrap_err();
        assert_eq!(number(&refused), UNFENCED, "{role}");
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await.unwrap();
    }
}

/// A mark of another session that is still open is seen at this level, and is no fence here.
async fn the_open_fence_of_another_session_protects_nothing_here(base: Base) {
    base.put("('a', 1)").await;
    let tx = base.fence("a", 5).begin(&base.owner).await.unwrap();
    let mut conn = base.app.acquire().await.unwrap();
    sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED; BEGIN")
        .execute(&mut *conn)
        .await
        .unwrap();
    let stamped = "SELECT COUNT(*) FROM marks WHERE `key` = 'a' AND tx IS NOT NULL";
    let seen: i64 = sqlx::query_scalar(stamped)
        .fetch_one(&mut *conn)
        .await
        .unwrap();
    assert_eq!(seen, i64::from(base.tells));
    let update = sqlx::raw_sql("UPDATE stock SET quantity = 0");
    let refused = update.execute(&mut *conn).await.unwrap_err();
    assert_eq!(number(&refused), UNFENCED);
    drop(conn.detach());
    tx.rollback().await.unwrap();
}

/// Known, and written down: whoever may fence may also write the mark by hand, and lower it.
async fn a_mark_that_is_written_by_hand_is_a_fence(base: Base) {
    base.put("('a', 1)").await;
    assert_eq!(base.fenced(&base.app, "a", &[]).await, None);
    let mut tx = base.app.begin().await.unwrap();
    sqlx::raw_sql(
        "INSERT INTO marks (`key`, domain, token, updated_at) VALUES ('a', '', \
         1 + 0 * LAST_INSERT_ID(1), UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE token = 1",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    let done = sqlx::raw_sql("UPDATE stock SET quantity = 0")
        .execute(&mut *tx)
        .await;
    assert_eq!(done.is_ok(), base.tells, "{done:?}");
}

async fn the_protection_can_be_taken_off(base: Base) {
    base.run(&base.protection("{sku}").remove(Dialect::MySql))
        .await;
    let insert = "INSERT INTO stock VALUES ('a', 1)";
    assert_eq!(base.number(&base.app, insert).await, None);
    base.run(&migrate::print_protect_down(Dialect::MySql, &base.marks))
        .await;
    let mut tx = base.fence("a", 5).begin(&base.app).await.unwrap();
    sqlx::raw_sql("UPDATE stock SET quantity = 2")
        .execute(&mut tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

macro_rules! on {
    ($server:ident, $variable:literal: $($name:ident $(($with:ident))?),* $(,)?) => {
        mod $server {
            use super::Base;
            $(#[tokio::test]
            async fn $name() {
                super::$name(Base::new($variable).await $(, { stringify!($with); $variable })?).await;
            })*
        }
    };
}

macro_rules! on_both {
    ($($tests:tt)*) => {
        on!(on_mysql, "HIGHWATER_TEST_MYSQL_URL": $($tests)*);
        on!(on_mariadb, "HIGHWATER_TEST_MARIADB_URL": $($tests)*);
    };
}

on_both!(
    whoever_writes_without_a_fence_is_refused,
    a_fenced_transaction_writes_the_rows_of_its_key_and_no_others,
    connections_that_come_one_after_the_other_write,
    a_fence_ends_with_its_transaction,
    ddl_ends_a_fence_as_it_ends_the_transaction,
    a_fence_that_was_rolled_back_alone_protects_nothing,
    a_row_that_changes_its_key_needs_the_fences_of_both,
    a_stale_holder_cannot_write_by_going_on,
    a_mark_that_is_only_updated_is_no_fence,
    the_open_fence_of_another_session_protects_nothing_here,
    an_earlier_read_changes_nothing,
    the_key_is_the_text_in_utf_8_or_the_bytes(variable),
    without_the_count_of_transactions_everything_is_refused,
    the_application_needs_no_right_on_what_the_triggers_use,
    the_triggers_are_kept_as_a_dump_can_restore_them,
    truncate_slips_through_with_the_right_to_drop,
    a_foreign_key_that_cascades_slips_through(variable),
    a_mark_that_is_written_by_hand_is_a_fence,
    the_protection_can_be_taken_off,
);

/// MySQL has it switched on by itself. Should that change, this says so.
#[tokio::test]
async fn mysql_tells_transactions_apart_as_it_comes() {
    assert!(Base::new("HIGHWATER_TEST_MYSQL_URL").await.tells);
}

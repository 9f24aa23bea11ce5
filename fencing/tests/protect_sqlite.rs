//! Tables that SQLite protects: what is refused, what passes, and what slips through.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use highwater_fencing::migrate::{self, Dialect};
use highwater_fencing::protect::{Protection, RowKey};
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, TableName,
};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Error, SqliteConnection, SqlitePool};

const STOCK: &str = "CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INT, place INT UNIQUE)";

struct Base {
    pool: SqlitePool,
    marks: TableName,
    folder: tempfile::TempDir,
}

impl Base {
    async fn new() -> Self {
        Self::with(STOCK, "highwater_fence").await
    }

    async fn with(tables: &str, marks: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pool = SqlitePoolOptions::new().max_connections(2);
        let pool = pool.connect_with(options(&folder)).await.unwrap();
        let base = Self {
            pool,
            marks: TableName::new(marks).unwrap(),
            folder,
        };
        base.run(tables).await;
        base.run(&migrate::print(Dialect::Sqlite, &base.marks))
            .await;
        for _ in 0..2 {
            base.run(&migrate::print_protect(Dialect::Sqlite, &base.marks))
                .await;
            base.run(&base.protection().install(Dialect::Sqlite)).await;
        }
        base
    }

    fn protection(&self) -> Protection {
        let key = RowKey::sql("'stock/' || {sku}").unwrap();
        Protection::new(TableName::new("stock").unwrap(), key).marks(self.marks.clone())
    }

    /// What a key is refused with when it is installed.
    async fn refused(&self, key: &str) -> Option<String> {
        let stock = TableName::new("main.stock").unwrap();
        let protection = Protection::new(stock, RowKey::sql(key).unwrap());
        let sql = AssertSqlSafe(protection.install(Dialect::Sqlite));
        let done = sqlx::raw_sql(sql).execute(&self.pool).await;
        done.err().map(|error| error.to_string())
    }

    fn fence(&self, sku: &str, token: u64) -> Configured {
        let key = FenceKey::new(format!("stock/{sku}")).unwrap();
        let domain = Domain::named("test").unwrap();
        let fence = Fence::new(domain, key, FencingToken::new(token).unwrap());
        FenceOptions::new()
            .table_name(self.marks.clone())
            .apply(fence)
    }

    async fn run(&self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        sql.execute(&self.pool).await.unwrap();
    }

    /// Whether a statement outside of a fenced transaction is refused by the protection.
    async fn refuses(&self, sql: &str) -> bool {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        is_refused(sql.execute(&self.pool).await.map(drop))
    }

    /// Runs the statements in a fenced transaction, and gives whether one was refused.
    async fn fenced(&self, sku: &str, statements: &[&str]) -> bool {
        let mut tx = self.fence(sku, 5).begin(&self.pool).await.unwrap();
        for statement in statements {
            let statement = sqlx::raw_sql(AssertSqlSafe((*statement).to_owned()));
            if is_refused(statement.execute(&mut tx).await.map(drop)) {
                tx.rollback().await.unwrap();
                return true;
            }
        }
        tx.commit().await.unwrap();
        false
    }

    async fn rows(&self) -> Vec<(String, i64)> {
        sqlx::query_as("SELECT sku, quantity FROM stock ORDER BY sku")
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }
}

fn options(folder: &tempfile::TempDir) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(folder.path().join("base.db"))
        .create_if_missing(true)
}

fn is_refused(done: Result<(), Error>) -> bool {
    match done {
        Ok(()) => false,
        Err(Error::Database(error)) => {
            assert!(
                error.message().starts_with("highwater_protected"),
                "{error}"
            );
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn whoever_writes_without_a_fence_is_refused() {
    let base = Base::new().await;
    assert!(
        !base
            .fenced("a", &["INSERT INTO stock VALUES ('a', 1, 1)"])
            .await
    );
    for statement in [
        "INSERT INTO stock VALUES ('b', 1, 2)",
        "INSERT OR IGNORE INTO stock VALUES ('b', 1, 2)",
        "INSERT OR REPLACE INTO stock VALUES ('a', 2, 1)",
        "INSERT INTO stock VALUES ('a', 2, 1) ON CONFLICT DO UPDATE SET quantity = 2",
        "UPDATE stock SET quantity = 2",
        "UPDATE OR IGNORE stock SET quantity = 2",
        "DELETE FROM stock",
        "INSERT INTO stock VALUES (NULL, 1, 2)",
    ] {
        assert!(base.refuses(statement).await, "{statement}");
    }
    assert_eq!(base.rows().await, [("a".to_owned(), 1)]);
}

#[tokio::test]
async fn a_fenced_transaction_writes_the_rows_of_its_key_and_no_others() {
    for marks in ["highwater_fence", "other_marks", "main.marks"] {
        let base = Base::with(STOCK, marks).await;
        let writes = [
            "INSERT INTO stock VALUES ('a', 1, 1)",
            "UPDATE stock SET quantity = 2",
            "INSERT OR IGNORE INTO stock VALUES ('a', 3, 1)",
        ];
        assert!(!base.fenced("a", &writes).await, "{marks}");
        assert!(
            base.fenced("a", &["INSERT INTO stock VALUES ('b', 1, 2)"])
                .await
        );
        assert_eq!(base.rows().await, [("a".to_owned(), 2)]);
    }
}

#[tokio::test]
async fn a_fence_ends_with_its_transaction() {
    let base = Base::new().await;
    let mut conn = base.pool.acquire().await.unwrap();
    for commits in [true, false] {
        let fence = base.fence("a", 5);
        let tx = fence.begin_on(&mut conn).await.unwrap();
        match commits {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        let insert = sqlx::raw_sql("INSERT INTO stock VALUES ('a', 1, 1)");
        assert!(is_refused(insert.execute(&mut *conn).await.map(drop)));
    }
    let mut joined = base.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let insert = sqlx::raw_sql("INSERT INTO stock VALUES ('a', 1, 1)");
    assert!(is_refused(insert.execute(&mut *joined).await.map(drop)));
    joined.rollback().await.unwrap();
    let joined = base.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mut tx = base.fence("a", 5).admit(joined).await.unwrap();
    insert_a(&mut tx).await;
    tx.commit().await.unwrap();
}

async fn insert_a(tx: &mut highwater_fencing::sqlx::Fenced<'_, sqlx::Sqlite>) {
    let insert = sqlx::raw_sql("INSERT INTO stock VALUES ('a', 1, 1)");
    insert.execute(tx).await.unwrap();
}

#[tokio::test]
async fn a_row_that_changes_its_key_needs_the_fences_of_both() {
    let base = Base::new().await;
    assert!(
        !base
            .fenced("a", &["INSERT INTO stock VALUES ('a', 1, 1)"])
            .await
    );
    let update = "UPDATE stock SET sku = 'b'";
    assert!(base.fenced("a", &[update]).await);
    assert!(base.fenced("b", &[update]).await);
    let both = base.fence("a", 5).fence().clone();
    let both = both.and(base.fence("b", 5).fence().clone()).unwrap();
    let mut tx = both.begin(&base.pool).await.unwrap();
    sqlx::raw_sql(update).execute(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_fence_that_was_rolled_back_alone_protects_nothing() {
    let base = Base::new().await;
    let mut conn = base.pool.acquire().await.unwrap();
    let fence =
        "INSERT INTO highwater_fence VALUES (CAST('stock/a' AS BLOB), zeroblob(32), 5, 0, '')";
    for statement in ["BEGIN IMMEDIATE", "SAVEPOINT sp", fence, "ROLLBACK TO sp"] {
        sqlx::raw_sql(statement).execute(&mut *conn).await.unwrap();
    }
    let insert = sqlx::raw_sql("INSERT INTO stock VALUES ('a', 1, 1)");
    assert!(is_refused(insert.execute(&mut *conn).await.map(drop)));
}

#[tokio::test]
async fn a_stale_holder_opens_nothing() {
    let base = Base::new().await;
    assert!(
        !base
            .fenced("a", &["INSERT INTO stock VALUES ('a', 1, 1)"])
            .await
    );
    let mut conn = base.pool.acquire().await.unwrap();
    for statement in [
        "BEGIN IMMEDIATE",
        "INSERT INTO highwater_fence AS m VALUES (CAST('stock/a' AS BLOB), zeroblob(32), 4, 0, '') \
         ON CONFLICT DO UPDATE SET token = excluded.token WHERE m.token <= excluded.token",
    ] {
        sqlx::raw_sql(statement).execute(&mut *conn).await.unwrap();
    }
    let update = sqlx::raw_sql("UPDATE stock SET quantity = 0");
    assert!(is_refused(update.execute(&mut *conn).await.map(drop)));
}

/// A program that fences without an adapter has to close what it opened.
#[tokio::test]
async fn a_key_that_is_left_open_cannot_be_committed() {
    let base = Base::new().await;
    let mut conn = base.pool.acquire().await.unwrap();
    for statement in [
        "BEGIN IMMEDIATE",
        "INSERT INTO highwater_fence VALUES (CAST('stock/a' AS BLOB), zeroblob(32), 5, 0, '')",
        "INSERT INTO stock VALUES ('a', 1, 1)",
    ] {
        sqlx::raw_sql(statement).execute(&mut *conn).await.unwrap();
    }
    let commit = sqlx::raw_sql("COMMIT")
        .execute(&mut *conn)
        .await
        .unwrap_err();
    assert!(commit.to_string().contains("FOREIGN KEY"), "{commit}");
    for statement in ["DELETE FROM highwater_open", "COMMIT"] {
        sqlx::raw_sql(statement).execute(&mut *conn).await.unwrap();
    }
    drop(conn);
    assert!(base.refuses("UPDATE stock SET quantity = 0").await);
}

#[tokio::test]
async fn a_foreign_key_that_cascades_is_a_write_too() {
    let base = Base::with(
        "CREATE TABLE kind (name TEXT PRIMARY KEY); INSERT INTO kind VALUES ('fruit'); \
         CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INT, \
         kind TEXT REFERENCES kind ON DELETE CASCADE)",
        "highwater_fence",
    )
    .await;
    assert!(
        !base
            .fenced("a", &["INSERT INTO stock VALUES ('a', 1, 'fruit')"])
            .await
    );
    assert!(base.refuses("DELETE FROM kind").await);
    assert!(!base.fenced("a", &["DELETE FROM kind"]).await);
}

/// Two connections that fence one after another do not see each other's open keys.
#[tokio::test]
async fn another_connection_is_not_let_in_by_an_open_key() {
    let base = Base::new().await;
    let mut tx = base.fence("a", 5).begin(&base.pool).await.unwrap();
    insert_a(&mut tx).await;
    let mut other = SqliteConnection::connect_with(
        &options(&base.folder).busy_timeout(std::time::Duration::ZERO),
    )
    .await
    .unwrap();
    let update = "UPDATE stock SET quantity = 0";
    let busy = sqlx::raw_sql(update).execute(&mut other).await.unwrap_err();
    assert!(busy.to_string().contains("locked"), "{busy}");
    tx.commit().await.unwrap();
    assert!(is_refused(
        sqlx::raw_sql(update).execute(&mut other).await.map(drop)
    ));
}

#[tokio::test]
async fn the_protection_can_be_taken_off() {
    let base = Base::new().await;
    base.run(&base.protection().remove(Dialect::Sqlite)).await;
    assert!(!base.refuses("INSERT INTO stock VALUES ('a', 1, 1)").await);
    base.run(&migrate::print_protect_down(Dialect::Sqlite, &base.marks))
        .await;
    assert!(!base.fenced("a", &["UPDATE stock SET quantity = 2"]).await);
}

/// Known, and written down: the row that REPLACE deletes is not looked at, unless the connection
/// has `PRAGMA recursive_triggers = ON`.
#[tokio::test]
async fn what_replace_deletes_slips_through() {
    let base = Base::new().await;
    assert!(
        !base
            .fenced("a", &["INSERT INTO stock VALUES ('a', 1, 1)"])
            .await
    );
    let replace = "INSERT OR REPLACE INTO stock VALUES ('b', 2, 1)";
    let pragma = "PRAGMA recursive_triggers = ON";
    assert!(base.fenced("b", &[pragma, replace]).await);
    assert!(
        !base
            .fenced("b", &["PRAGMA recursive_triggers = OFF", replace])
            .await
    );
    assert_eq!(base.rows().await, [("b".to_owned(), 2)]);
}

/// Known, and written down: whoever has the file can do anything, by accident at least this.
#[tokio::test]
async fn a_connection_without_foreign_keys_can_leave_a_key_open() {
    let base = Base::new().await;
    let careless = options(&base.folder).foreign_keys(false);
    let mut conn = SqliteConnection::connect_with(&careless).await.unwrap();
    let fence =
        "INSERT INTO highwater_fence VALUES (CAST('stock/a' AS BLOB), zeroblob(32), 5, 0, '')";
    sqlx::raw_sql(fence).execute(&mut conn).await.unwrap();
    assert!(!base.refuses("INSERT INTO stock VALUES ('a', 1, 1)").await);
    // The next fenced transaction of anybody closes it.
    assert!(!base.fenced("b", &[]).await);
    assert!(base.refuses("UPDATE stock SET quantity = 2").await);
}

#[tokio::test]
async fn a_refused_write_poisons_the_transaction() {
    let base = Base::new().await;
    let done: Result<(), FenceError> = base
        .fence("a", 5)
        .transaction(&base.pool, async |tx| {
            insert_a(tx).await;
            let other = sqlx::raw_sql("INSERT INTO stock VALUES ('b', 1, 2)");
            other.execute(&mut *tx).await.ok();
            Ok(())
        })
        .await;
    assert!(matches!(done, Err(FenceError::Poisoned { .. })), "{done:?}");
    assert_eq!(base.rows().await, []);
}

#[tokio::test]
async fn a_key_of_a_column_that_is_not_there_is_refused() {
    let base = Base::new().await;
    assert_eq!(base.refused("{sku} || {place}").await, None);
    let refused = base.refused("{sku} || {nope}").await.unwrap();
    assert!(refused.contains("no such column"), "{refused}");
}

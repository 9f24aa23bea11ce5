//! Why only rows that are named by their key, and only changes by themselves: the other writes as one
//! statement, put together by hand on PostgreSQL. Each of them goes on after waiting for an older
//! holder with what it saw before, and the same write as a transaction is right.

use highwater_fencing::sqlx::SqlxFence as _;
use highwater_fencing::{FenceOptions, TableName};
use sqlx::{AssertSqlSafe, PgPool};

use super::{eventually, offered, unique, url};

struct Base {
    pool: PgPool,
    options: FenceOptions,
    marks: String,
    stock: String,
}

impl Base {
    /// With a row `a` of 100 pieces.
    async fn new() -> Self {
        let pool = PgPool::connect(&url("HIGHWATER_TEST_POSTGRES_URL"))
            .await
            .unwrap();
        let (marks, stock) = (unique("marks"), unique("stock"));
        let table = TableName::new(&marks).unwrap();
        highwater_fencing::migrate::postgres::run_for(&pool, &table)
            .await
            .unwrap();
        let base = Self {
            pool,
            options: FenceOptions::new().table_name(table),
            marks,
            stock,
        };
        for statement in [
            "CREATE TABLE stock (sku text PRIMARY KEY, quantity int NOT NULL, note text)",
            "CREATE TABLE stock_moves (sku text, pieces int NOT NULL)",
            "INSERT INTO stock VALUES ('a', 100, NULL)",
            "INSERT INTO stock_moves VALUES ('a', 100)",
        ] {
            sqlx::raw_sql(base.sql(statement))
                .execute(&base.pool)
                .await
                .unwrap();
        }
        base
    }

    fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(sql.replace("stock", &self.stock))
    }

    /// An older holder does `before`; a newer one does `write` meanwhile, as one statement or as a
    /// transaction. Gives what `read` finds in the end.
    async fn cross(&self, before: &str, write: &str, one: bool, read: &str) -> i64 {
        let fence = |token| self.options.apply(offered("test", "a", token));
        let mut older = fence(5).begin(&self.pool).await.unwrap();
        sqlx::raw_sql(self.sql(before))
            .execute(&mut older)
            .await
            .unwrap();
        let newer = if one {
            let domain = highwater_fencing::Domain::named("test").unwrap();
            let text = format!(
                "WITH fence AS (INSERT INTO {marks} AS m VALUES ('a', decode('{domain}', 'hex'), 6, 0, \
                 pg_current_xact_id(), now()) ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token, \
                 last_tx = EXCLUDED.last_tx WHERE m.token <= EXCLUDED.token RETURNING 1) {write}",
                marks = self.marks,
                write = self.sql(write).0,
            );
            let pool = self.pool.clone();
            tokio::spawn(async move {
                sqlx::raw_sql(AssertSqlSafe(text))
                    .execute(&pool)
                    .await
                    .unwrap();
            })
        } else {
            let (pool, fence) = (self.pool.clone(), fence(6));
            // The condition that ties the write to the fence in one statement holds of itself here.
            let write = self.sql(&write.replace("EXISTS (SELECT FROM fence)", "true"));
            tokio::spawn(async move {
                let mut tx = fence.begin(&pool).await.unwrap();
                sqlx::raw_sql(write).execute(&mut tx).await.unwrap();
                tx.commit().await.unwrap();
            })
        };
        eventually("the newer holder waits", || async {
            let count = format!(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND query LIKE '%{}%'",
                self.marks
            );
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(count))
                .fetch_one(&self.pool)
                .await
                .unwrap();
            count > 0
        })
        .await;
        older.commit().await.unwrap();
        newer.await.unwrap();
        sqlx::query_scalar(self.sql(read))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

/// As one statement the write comes to `wrong`, as a transaction to `right`.
async fn compare(before: &str, write: &str, read: &str, wrong: i64, right: i64) {
    assert_eq!(
        Base::new().await.cross(before, write, true, read).await,
        wrong
    );
    assert_eq!(
        Base::new().await.cross(before, write, false, read).await,
        right
    );
}

const TAKE_60: &str = "UPDATE stock SET quantity = quantity - 60 WHERE sku = 'a'";
const QUANTITY: &str = "SELECT quantity::bigint FROM stock WHERE sku = 'a'";

#[tokio::test]
async fn a_row_that_is_changed_by_itself_is_right_either_way() {
    let write = "UPDATE stock SET quantity = quantity - 10 \
                 WHERE sku = 'a' AND EXISTS (SELECT FROM fence)";
    compare(TAKE_60, write, QUANTITY, 30, 30).await;
}

#[tokio::test]
async fn a_value_from_a_query_loses_the_older_write() {
    let write = "UPDATE stock SET quantity = (SELECT quantity - 10 FROM stock WHERE sku = 'a') \
                 WHERE sku = 'a' AND EXISTS (SELECT FROM fence)";
    compare(TAKE_60, write, QUANTITY, 90, 30).await;
}

#[tokio::test]
async fn a_condition_on_another_column_misses_what_the_older_write_made_true() {
    let write = "UPDATE stock SET quantity = quantity - 10 \
                 WHERE note = 'ready' AND EXISTS (SELECT FROM fence)";
    let ready = "UPDATE stock SET note = 'ready' WHERE sku = 'a'";
    compare(ready, write, QUANTITY, 100, 90).await;
}

#[tokio::test]
async fn a_row_that_the_older_holder_inserted_is_missed() {
    let write = "UPDATE stock SET quantity = quantity - 10 \
                 WHERE sku = 'new' AND EXISTS (SELECT FROM fence)";
    let insert = "INSERT INTO stock VALUES ('new', 50, NULL)";
    let read = "SELECT quantity::bigint FROM stock WHERE sku = 'new'";
    // `RowWrite` notices that nothing was written, and does it as a transaction.
    compare(insert, write, read, 50, 40).await;
}

#[tokio::test]
async fn an_insert_of_what_was_counted_counts_too_little() {
    let write = "INSERT INTO stock_moves SELECT 'a', 10 - SUM(pieces) FROM stock_moves \
                 HAVING EXISTS (SELECT FROM fence)";
    let older = "INSERT INTO stock_moves VALUES ('a', -60)";
    // What is left is to become 10.
    let read = "SELECT SUM(pieces)::bigint FROM stock_moves";
    compare(older, write, read, -50, 10).await;
}

#[tokio::test]
async fn a_write_that_nothing_ties_to_the_fence_is_done_by_a_stale_holder() {
    let base = Base::new().await;
    let newer = base.options.apply(offered("test", "a", 9));
    newer
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let text = format!(
        "WITH fence AS (INSERT INTO {} AS m VALUES ('a', decode(repeat('00', 32), 'hex'), 6, 0, \
         pg_current_xact_id(), now()) ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token \
         WHERE m.token <= EXCLUDED.token RETURNING 1) \
         UPDATE stock SET quantity = 0 WHERE sku = 'a'",
        base.marks
    );
    sqlx::raw_sql(base.sql(&text))
        .execute(&base.pool)
        .await
        .unwrap();
    let left: i64 = sqlx::query_scalar(base.sql(QUANTITY))
        .fetch_one(&base.pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

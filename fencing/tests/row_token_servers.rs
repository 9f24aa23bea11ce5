//! The token in the row itself, on real servers: the condition is looked at again after a wait, and
//! what "affected" means. The URLs come from HIGHWATER_TEST_POSTGRES_URL, HIGHWATER_TEST_MYSQL_URL and
//! HIGHWATER_TEST_MARIADB_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::migrate::Dialect;
use highwater_fencing::row_token::{self, PushRowToken as _, RowToken};
use highwater_fencing::{FencingToken, TableName};
use sqlx::{AssertSqlSafe, QueryBuilder};

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("set {variable} to the URL of a test server"))
}

fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    format!("{stem}_{}_{number}", std::process::id())
}

fn token(number: u64) -> RowToken {
    RowToken::new(FencingToken::new(number).unwrap()).unwrap()
}

macro_rules! server {
    ($name:ident, $variable:literal, $db:ty, $pool:ty, $dialect:ident, $levels:expr, $waiting:literal) => {
        mod $name {
            use super::*;

            async fn base() -> ($pool, String) {
                let pool = <$pool>::connect(&url($variable)).await.unwrap();
                let stock = unique("row_token");
                let table = TableName::new(&stock).unwrap();
                for sql in [
                    format!("CREATE TABLE {stock} (sku varchar(40) PRIMARY KEY, quantity int)"),
                    format!("INSERT INTO {stock} VALUES ('a', 100)"),
                    row_token::print(Dialect::$dialect, &table),
                ] {
                    sqlx::raw_sql(AssertSqlSafe(sql))
                        .execute(&pool)
                        .await
                        .unwrap();
                }
                (pool, stock)
            }

            fn update(stock: &str, pieces: i32, number: u64) -> QueryBuilder<$db> {
                let mut update =
                    QueryBuilder::new(format!("UPDATE {stock} SET quantity = quantity - "));
                update
                    .push_bind(pieces)
                    .push(", ")
                    .push_token_set(token(number));
                update
                    .push(" WHERE sku = 'a' AND ")
                    .push_token_admitted(token(number));
                update
            }

            async fn quantity(pool: &$pool, stock: &str) -> i32 {
                let read = AssertSqlSafe(format!("SELECT quantity FROM {stock}"));
                sqlx::query_scalar(read).fetch_one(pool).await.unwrap()
            }

            #[tokio::test]
            async fn the_condition_is_looked_at_again_after_a_wait() {
                for (first, second, written, left) in [(7, 6, 0, 40), (6, 7, 1, 30), (7, 7, 1, 30)]
                {
                    let (pool, stock) = base().await;
                    let mut ahead = pool.begin().await.unwrap();
                    let done = update(&stock, 60, first).build().execute(&mut *ahead).await;
                    assert_eq!(done.unwrap().rows_affected(), 1);
                    let (other, behind) = (pool.clone(), stock.clone());
                    let behind = tokio::spawn(async move {
                        let done = update(&behind, 10, second).build().execute(&other).await;
                        done.unwrap().rows_affected()
                    });
                    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
                    loop {
                        let asked = AssertSqlSafe($waiting.replace("@stock", &stock));
                        let count: i64 = sqlx::query_scalar(asked).fetch_one(&pool).await.unwrap();
                        if count > 0 {
                            break;
                        }
                        assert!(tokio::time::Instant::now() < deadline, "nobody waits");
                        // MariaDB answers from a cache that is a tenth of a second old.
                        tokio::time::sleep(Duration::from_millis(120)).await;
                    }
                    ahead.commit().await.unwrap();
                    assert_eq!(behind.await.unwrap(), written, "{first}, {second}");
                    assert_eq!(quantity(&pool, &stock).await, left, "{first}, {second}");
                }
            }

            #[tokio::test]
            async fn an_equal_token_that_changes_nothing_counts_with_sqlx() {
                let (pool, stock) = base().await;
                for expected in [1, 1] {
                    let done = update(&stock, 0, 7).build().execute(&pool).await;
                    assert_eq!(done.unwrap().rows_affected(), expected);
                }
            }

            #[tokio::test]
            async fn levels_with_a_snapshot_refuse_or_are_right() {
                for level in $levels {
                    let (pool, stock) = base().await;
                    let mut older = pool
                        .begin_with(AssertSqlSafe(format!("{level}")))
                        .await
                        .unwrap();
                    let read = AssertSqlSafe(format!("SELECT quantity FROM {stock}"));
                    sqlx::raw_sql(read).execute(&mut *older).await.unwrap();
                    update(&stock, 60, 7).build().execute(&pool).await.unwrap();
                    // Its snapshot shows the token from before: an error, or no row.
                    match update(&stock, 10, 6).build().execute(&mut *older).await {
                        Ok(done) => assert_eq!(done.rows_affected(), 0, "{level}"),
                        Err(error) => {
                            let code = error.as_database_error().and_then(|error| error.code());
                            // MariaDB 11: the record has changed since it was read (1020).
                            let conflict = error.to_string().contains("1020 (HY000)");
                            let serial = code.as_deref() == Some("40001");
                            assert!(conflict || serial, "{level}: {error}");
                        }
                    }
                    older.rollback().await.unwrap();
                    assert_eq!(quantity(&pool, &stock).await, 40);
                }
            }
        }
    };
}

server!(
    on_postgres,
    "HIGHWATER_TEST_POSTGRES_URL",
    sqlx::Postgres,
    sqlx::PgPool,
    Postgres,
    [
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "BEGIN ISOLATION LEVEL SERIALIZABLE"
    ],
    "SELECT COUNT(*) FROM pg_stat_activity \
     WHERE wait_event_type = 'Lock' AND query LIKE '%@stock%'"
);
server!(
    on_mysql,
    "HIGHWATER_TEST_MYSQL_URL",
    sqlx::MySql,
    sqlx::MySqlPool,
    MySql,
    ["BEGIN"],
    "SELECT COUNT(*) FROM performance_schema.data_lock_waits w \
     JOIN performance_schema.data_locks l \
     ON l.engine_lock_id = w.requesting_engine_lock_id WHERE l.object_name = '@stock'"
);
server!(
    on_mariadb,
    "HIGHWATER_TEST_MARIADB_URL",
    sqlx::MySql,
    sqlx::MySqlPool,
    MySql,
    ["BEGIN"],
    "SELECT COUNT(*) FROM information_schema.innodb_trx \
     WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%@stock%'"
);

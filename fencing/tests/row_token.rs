//! The token in the row itself: what it protects, and what it does not.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use highwater_fencing::migrate::Dialect;
use highwater_fencing::row_token::{self, PushRowToken as _, RowToken};
use highwater_fencing::{FencingToken, TableName};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, QueryBuilder, Sqlite, SqlitePool};

/// In memory: one connection. What happens while a statement waits is tested on servers.
async fn base() -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let table = TableName::new("stock").unwrap();
    for sql in [
        "CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INT NOT NULL)".to_owned(),
        "INSERT INTO stock VALUES ('a', 100), ('b', 100)".to_owned(),
        row_token::print(Dialect::Sqlite, &table),
    ] {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&pool)
            .await
            .unwrap();
    }
    pool
}

fn token(number: u64) -> RowToken {
    RowToken::new(FencingToken::new(number).unwrap()).unwrap()
}

/// The number of rows that were written.
async fn take(pool: &SqlitePool, sku: &str, pieces: i64, number: u64) -> u64 {
    let mut update = QueryBuilder::<Sqlite>::new("UPDATE stock SET quantity = quantity - ");
    update
        .push_bind(pieces)
        .push(", ")
        .push_token_set(token(number));
    update.push(" WHERE sku = ").push_bind(sku).push(" AND ");
    update.push_token_admitted(token(number));
    update.build().execute(pool).await.unwrap().rows_affected()
}

async fn quantities(pool: &SqlitePool) -> Vec<i64> {
    sqlx::query_scalar("SELECT quantity FROM stock ORDER BY sku")
        .fetch_all(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_equal_or_higher_token_writes_and_a_lower_one_does_not() {
    let pool = base().await;
    assert_eq!(take(&pool, "a", 1, 5).await, 1);
    assert_eq!(take(&pool, "a", 1, 5).await, 1);
    assert_eq!(take(&pool, "a", 1, 7).await, 1);
    assert_eq!(take(&pool, "a", 50, 6).await, 0);
    // Neither does it for a row that is not there: both affect nothing.
    assert_eq!(take(&pool, "nobody", 1, 9).await, 0);
    assert_eq!(quantities(&pool).await, [97, 100]);
    let bound: bool = sqlx::query_scalar("SELECT fence_token = ?1 FROM stock WHERE sku = 'a'")
        .bind(token(7))
        .fetch_one(&pool)
        .await
        .unwrap();
    assert!(bound);
}

/// Known, and written down: the newer holder moved pieces from `a`, and has not come to `b` yet.
#[tokio::test]
async fn nothing_holds_between_rows() {
    let pool = base().await;
    assert_eq!(take(&pool, "a", 50, 7).await, 1);
    assert_eq!(take(&pool, "b", -50, 6).await, 1, "a stale holder writes");
}

/// Known, and written down.
#[tokio::test]
async fn a_stale_holder_inserts_and_brings_back_what_was_deleted() {
    let pool = base().await;
    take(&pool, "a", 1, 7).await;
    for statement in [
        "DELETE FROM stock WHERE sku = 'a'",
        "INSERT INTO stock (sku, quantity, fence_token) VALUES ('a', 100, 6)",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    assert_eq!(quantities(&pool).await, [100, 100]);
}

/// Known, and written down: the new service counts from 1 again, the number of the old one counts.
#[tokio::test]
async fn tokens_of_another_lock_service_are_compared_as_if_they_were_of_the_same() {
    let pool = base().await;
    take(&pool, "a", 1, 1_000).await;
    assert_eq!(take(&pool, "a", 1, 1).await, 0, "a valid holder is refused");
    take(&pool, "b", 1, 1).await;
    assert_eq!(
        take(&pool, "b", 1, 999).await,
        1,
        "a stale holder is admitted"
    );
}

//! What a transaction leaves on a connection of SQLite when its end goes wrong: nothing, also where
//! the driver's own count of transactions would be off.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, migrate};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection as _, SqlitePool};

/// A pool of one connection to a database file, gone when dropped.
async fn base() -> (SqlitePool, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("base.db"))
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with(options).await.unwrap();
    migrate::sqlite::run(&pool).await.unwrap();
    sqlx::raw_sql("CREATE TABLE stock (sku TEXT PRIMARY KEY)")
        .execute(&pool)
        .await
        .unwrap();
    (pool, folder)
}

fn fence() -> Fence {
    let domain = Domain::named("test").unwrap();
    Fence::new(domain, FenceKey::new("a").unwrap(), FencingToken::MIN)
}

/// The one connection of the pool begins and commits, fenced and plain, and a dropped transaction
/// on it is rolled back.
async fn assert_sound(pool: &SqlitePool) {
    let mut conn = pool.acquire().await.unwrap();
    let begun = conn.begin_with("BEGIN IMMEDIATE").await;
    begun
        .expect("no transaction is counted")
        .commit()
        .await
        .unwrap();
    for _ in 0..2 {
        let mut dropped = conn.begin().await.unwrap();
        sqlx::query("INSERT INTO stock VALUES ('dropped')")
            .execute(&mut *dropped)
            .await
            .expect("the one before was rolled back");
    }
    drop(conn);
    fence().begin(pool).await.unwrap().commit().await.unwrap();
}

/// Polls the future at most `polls` times and drops it right after the last; whether it completed.
async fn completes_in<T>(polls: u32, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left > 0 => Poll::Pending,
            Poll::Pending => Poll::Ready(false),
        }
    })
    .await
}

#[tokio::test]
async fn an_ending_that_is_dropped_after_the_transaction_was_gone_leaves_a_sound_connection() {
    for commits in [true, false] {
        for polls in 1.. {
            let (pool, _folder) = base().await;
            let mut tx = fence().begin(&pool).await.unwrap();
            sqlx::raw_sql("ROLLBACK")
                .execute(tx.connection())
                .await
                .unwrap();
            let completed = match commits {
                true => completes_in(polls, tx.commit()).await,
                false => completes_in(polls, tx.rollback()).await,
            };
            assert_sound(&pool).await;
            if completed {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_transaction_that_sqlx_left_counted_does_not_keep_a_fence_out() {
    for polls in 1.. {
        let (pool, _folder) = base().await;
        let mut plain = pool.begin().await.unwrap();
        sqlx::raw_sql("INSERT INTO stock VALUES ('a'); INSERT OR ROLLBACK INTO stock VALUES ('a')")
            .execute(&mut *plain)
            .await
            .unwrap_err();
        drop(plain);
        let completed = completes_in(polls, fence().begin(&pool)).await;
        fence().begin(&pool).await.unwrap().commit().await.unwrap();
        assert_sound(&pool).await;
        if completed {
            break;
        }
    }
}

#[tokio::test]
async fn statements_that_are_abandoned_between_their_answers_poison() {
    let (pool, _folder) = base().await;
    let mut tx = fence().begin(&pool).await.unwrap();
    let statements = "INSERT INTO stock VALUES ('first'); \
         INSERT INTO stock WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c \
         WHERE n < 2000000) SELECT max(n) FROM c; \
         INSERT INTO stock VALUES ('third')";
    let mut answers = sqlx::raw_sql(statements).fetch_many(&mut tx);
    answers.next().await.unwrap().unwrap();
    let second = tokio::time::timeout(Duration::ZERO, answers.next()).await;
    assert!(second.is_err(), "the second statement takes a while");
    drop(answers);
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, FenceError::Poisoned { .. }), "{error:?}");
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM stock")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 0);
    assert_sound(&pool).await;
}

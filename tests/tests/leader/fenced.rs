//! What a leader writes goes through the fence, and one that was replaced writes nothing.

use std::time::Duration;

use highwater_client::Fence;
use highwater_client::leader::LeaderGuard;
use highwater_fencing::FenceError;
use highwater_fencing::migrate::sqlite as migrate;
use highwater_fencing::sqlx::SqlxFence as _;
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

use crate::world::World;

type AppError = Box<dyn std::error::Error + Send + Sync>;

async fn base() -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    migrate::run(&pool).await.unwrap();
    let table = sqlx::query("CREATE TABLE closed (month INT, by_whom TEXT)");
    table.execute(&pool).await.unwrap();
    pool
}

/// Whether the write was admitted.
async fn close(pool: &SqlitePool, fence: Fence, by_whom: &str) -> bool {
    let written = fence.transaction(pool, async |tx| {
        let insert = sqlx::query("INSERT INTO closed VALUES (11, ?)").bind(by_whom);
        insert.execute(&mut *tx).await?;
        Ok::<_, AppError>(())
    });
    match written.await {
        Ok(()) => true,
        Err(error) => {
            let fence = error.downcast_ref::<FenceError<sqlx::Error>>();
            assert!(matches!(fence, Some(FenceError::Stale { .. })), "{error:?}");
            false
        }
    }
}

async fn closed_by(pool: &SqlitePool) -> Vec<String> {
    let rows = sqlx::query_scalar("SELECT by_whom FROM closed ORDER BY rowid");
    rows.fetch_all(pool).await.unwrap()
}

/// Waits until the lease of a leader that does nothing is over, and gives the next one.
async fn overtaken(world: &World, node: &str) -> LeaderGuard {
    let options = world
        .options()
        .wait(Duration::from_secs(20))
        .lease(Duration::from_secs(60));
    world
        .elector(node, options)
        .await
        .try_acquire("invoice")
        .await
        .unwrap()
        .unwrap()
}

/// ShedLock: with JDBC there is no fence, and a job that was overtaken writes all the same.
#[tokio::test]
async fn a_write_of_a_leader_that_was_replaced_is_refused_by_the_database() {
    let (world, pool) = (World::highwater().await, base().await);
    let options = world.options().lease(Duration::from_millis(300));
    let old = world
        .elector("a", options)
        .await
        .try_acquire("invoice")
        .await
        .unwrap()
        .unwrap();
    // The fence is at hand in the action, whatever became of the lease meanwhile.
    let stale = old.context().fence().unwrap();
    assert!(close(&pool, stale.clone(), "a, while it led").await);
    let new = overtaken(&world, "b").await;
    assert!(close(&pool, new.fence(), "b").await);
    assert!(!close(&pool, stale, "a, although it was replaced").await);
    assert!(close(&pool, new.fence(), "b again").await);
    assert_eq!(closed_by(&pool).await, ["a, while it led", "b", "b again"]);
}

#[tokio::test]
async fn leaders_of_one_group_do_not_fence_each_other_out() {
    let (world, pool) = (World::highwater().await, base().await);
    let group = world.group("a", 2).await;
    let first = group.try_acquire("invoice").await.unwrap().unwrap();
    let second = group.try_acquire("invoice").await.unwrap().unwrap();
    assert!(close(&pool, second.fence(), "second").await);
    // A lower token, of another slot.
    assert!(close(&pool, first.fence(), "first").await);
    let stale = first.fence();
    first.release().await;
    let next = group.try_acquire("invoice").await.unwrap().unwrap();
    assert!(close(&pool, next.fence(), "the next of the first slot").await);
    assert!(!close(&pool, stale, "first, although it was replaced").await);
    assert!(close(&pool, second.fence(), "second again").await);
}

//! Commits whose outcome does not arrive: no success is ever reported for them.
//!
//! A file has no connection to lose. What comes closest on SQLite is a commit that is kept from
//! its lock by a reader, so that is what the cases do there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::TableName;
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use sqlx::Pool;
use sqlx::pool::PoolOptions;

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::proxy::Proxy;
use crate::conformance::world::{PATIENCE, STOCK, World, deduct, fence};
use crate::wait::eventually;

const KEY: &str = "stock/apple";

pub(super) async fn a_connection_lost_before_the_commit_is_no_success<D: Database>(
    world: Arc<World<D>>,
) {
    let Some(session) = D::SESSION else {
        return a_commit_kept_from_its_lock_is_no_success(&world, true).await;
    };
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    let session = D::Db::number_in(&mut tx, session).await.unwrap().unwrap();
    world.run(&D::kill(session)).await;
    world.until_nobody_is_in_a_transaction().await;
    let refused = tx.commit().await;
    assert!(
        matches!(
            refused,
            Err(FenceError::Unknown(_) | FenceError::Database(_))
        ),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
    // The pool has noticed, and goes on with a new connection.
    fence(KEY, 5)
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
}

pub(super) async fn a_commit_whose_answer_is_lost_is_no_success<D: Database>(world: Arc<World<D>>) {
    if D::SERVER.is_none() {
        return a_commit_kept_from_its_lock_is_no_success(&world, false).await;
    }
    let (proxy, url) = Proxy::start(world.url(), Duration::ZERO).await.unwrap();
    let proxy = Arc::new(proxy);
    let pool = PoolOptions::<D::Db>::new()
        .max_connections(1)
        .connect(&url)
        .await
        .unwrap();
    let attempts = Arc::new(AtomicU32::new(0));
    let commit = {
        let (pool, proxy, attempts) = (pool.clone(), proxy.clone(), attempts.clone());
        tokio::spawn(async move {
            fence(KEY, 5)
                .transaction(&pool, async |tx| {
                    attempts.fetch_add(1, Ordering::SeqCst);
                    deduct::<D>(tx, "apple", 10).await?;
                    proxy.swallow_answers();
                    Ok::<_, FenceError>(())
                })
                .await
        })
    };
    eventually("the commit reached the server", PATIENCE, async || {
        (world.quantity("apple").await == STOCK - 10).then_some(())
    })
    .await;
    assert!(!commit.is_finished(), "it answered without an answer");
    proxy.cut();
    let refused = commit.await.unwrap();
    assert!(
        matches!(refused, Err(FenceError::Unknown(_))),
        "{refused:?}"
    );
    assert_eq!(
        attempts.load(Ordering::SeqCst),
        1,
        "it must not be repeated blindly"
    );
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    drop(proxy);
    let closed = tokio::time::timeout(PATIENCE, pool.close()).await;
    closed.expect("the lost connection is not kept");
}

/// In a rollback journal a reader keeps a commit from its lock. In the end it gives up, or the
/// reader does.
async fn a_commit_kept_from_its_lock_is_no_success<D: Database>(world: &World<D>, gives_up: bool) {
    let url = world.url().replace("stock.db", "journal.db");
    let pool: Pool<D::Db> = PoolOptions::new()
        .max_connections(1)
        .connect(&url)
        .await
        .unwrap();
    let patience = if gives_up { 50 } else { 10_000 };
    D::Db::run(&pool, &format!("PRAGMA busy_timeout = {patience}"))
        .await
        .unwrap();
    D::Db::migrate(&pool, &TableName::DEFAULT).await.unwrap();
    let table = "CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity BIGINT NOT NULL); \
                 INSERT INTO stock VALUES ('apple', 100)";
    D::Db::run(&pool, table).await.unwrap();
    let read = "SELECT quantity FROM stock WHERE sku = 'apple'";

    let readers: Pool<D::Db> = PoolOptions::new()
        .max_connections(1)
        .connect(&url)
        .await
        .unwrap();
    let mut reader = readers.acquire().await.unwrap();
    D::Db::run_on(&mut reader, "BEGIN").await.unwrap();
    D::Db::number_on(&mut reader, read).await.unwrap();

    let mut tx = fence(KEY, 5).begin(&pool).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    let commit = tokio::spawn(tx.commit());
    if gives_up {
        let refused = commit.await.unwrap();
        assert!(
            matches!(refused, Err(FenceError::Database(_))),
            "{refused:?}"
        );
        D::Db::run_on(&mut reader, "COMMIT").await.unwrap();
        assert_eq!(
            D::Db::number_on(&mut reader, read).await.unwrap(),
            Some(STOCK)
        );
        // Nothing is stuck: the same connection can do it again.
        let mut tx = fence(KEY, 5).begin(&pool).await.unwrap();
        deduct::<D>(&mut tx, "apple", 10).await.unwrap();
        tx.commit().await.unwrap();
    } else {
        // It waits, and neither success nor failure is claimed while it does.
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!commit.is_finished());
        D::Db::run_on(&mut reader, "COMMIT").await.unwrap();
        commit.await.unwrap().unwrap();
    }
    assert_eq!(
        D::Db::number_on(&mut reader, read).await.unwrap(),
        Some(STOCK - 10)
    );
}

//! The reason for all this: a holder that slept past its lease, woke up, and writes.

use std::sync::Arc;

use highwater_fencing::sqlx::{FenceError, SqlxFence as _};

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::world::{STOCK, World, deduct, fence};

/// The control: the interleaving that the fence has to stop does its damage without one.
pub(super) async fn without_a_fence_a_stale_writer_corrupts_the_stock<D: Database>(
    world: Arc<World<D>>,
) {
    // The first holder reads, and freezes.
    let seen = world.quantity("apple").await;
    // Its lease ends; the second holder does its work.
    let left = world.quantity("apple").await - 30;
    let write = format!("UPDATE stock SET quantity = {left} WHERE sku = 'apple'");
    world.run(&write).await;
    // The first one wakes up and writes what it had computed.
    let left = seen - 10;
    let write = format!("UPDATE stock SET quantity = {left} WHERE sku = 'apple'");
    world.run(&write).await;
    let exact = STOCK - 30 - 10;
    assert_ne!(
        world.quantity("apple").await,
        exact,
        "the control did no damage"
    );
    assert_eq!(
        world.quantity("apple").await,
        STOCK - 10,
        "30 apples were sold twice"
    );
}

pub(super) async fn with_a_fence_the_same_interleaving_leaves_the_stock_exact<D: Database>(
    world: Arc<World<D>>,
) {
    let frozen = fence("stock/apple", 6);
    let seen = world.quantity("apple").await;
    fence("stock/apple", 7)
        .transaction(&world.pool, async |tx| {
            deduct::<D>(tx, "apple", 30).await?;
            Ok::<_, FenceError>(())
        })
        .await
        .unwrap();
    let write = format!(
        "UPDATE stock SET quantity = {} WHERE sku = 'apple'",
        seen - 10
    );
    let write = &write;
    let refused = frozen
        .transaction(&world.pool, async |tx| {
            D::Db::run_in(tx, write).await?;
            Ok::<_, FenceError>(())
        })
        .await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn a_stale_error_cannot_be_swallowed_into_a_commit<D: Database>(
    world: Arc<World<D>>,
) {
    let newer = fence("stock/apple", 7);
    newer
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    // Inside another fenced transaction, the only place to go on after a refusal is a savepoint,
    // and there a fence is refused before it asks the database.
    let mut outer = fence("other", 1).begin(&world.pool).await.unwrap();
    let nested = sqlx::Connection::begin(outer.connection()).await.unwrap();
    let refused = fence("stock/apple", 6).admit(nested).await;
    assert!(
        matches!(refused, Err(FenceError::InSavepoint)),
        "{refused:?}"
    );
    drop(refused);
    // In a joined transaction the refusal consumes it: nothing is left that could commit.
    outer.rollback().await.unwrap();
    let mut tx = world.pool.begin().await.unwrap();
    D::Db::run_on(&mut tx, "UPDATE stock SET quantity = 1 WHERE sku = 'apple'")
        .await
        .unwrap();
    let refused = fence("stock/apple", 6).admit(tx).await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark("other").await, None);
}

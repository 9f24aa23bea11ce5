//! The reason for all this: a holder that slept past its lease, woke up, and writes.

use std::sync::Arc;

use highwater_proof::adapter::{Verdict, body};

use crate::conformance::world::{STOCK, World, fence, set};

/// The control: the interleaving that the fence has to stop does its damage without one.
pub(super) async fn without_a_fence_a_stale_writer_corrupts_the_stock(world: Arc<World>) {
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

pub(super) async fn with_a_fence_the_same_interleaving_leaves_the_stock_exact(world: Arc<World>) {
    let frozen = fence("stock/apple", 6);
    let seen = world.quantity("apple").await;
    let newer = fence("stock/apple", 7);
    world.sell(&newer, "apple", 30).await.unwrap();
    let write = set("apple", seen - 10);
    let write = body(move |tx| {
        let write = write.clone();
        Box::pin(async move {
            tx.run(&write).await?;
            Ok(0)
        })
    });
    let refused = world.transaction(&frozen, write).await;
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn a_stale_error_cannot_be_swallowed_into_a_commit(world: Arc<World>) {
    world.raise(&fence("stock/apple", 7)).await;
    if !world.abilities().joins {
        return world.not_applicable("a transaction of the user's cannot be joined");
    }
    // The only place to go on after a refusal is a savepoint, and there a fence is refused before
    // it asks the database.
    let stale = fence("stock/apple", 6);
    let refused = world.source.admit_nested(&stale, &set("pear", 1)).await;
    let refused = refused.map(drop);
    if world.abilities().counts_savepoints {
        assert!(matches!(refused, Err(Verdict::InSavepoint)), "{refused:?}");
    } else {
        refused.unwrap_err();
    }
    // In a joined transaction the refusal consumes it: nothing is left that could commit.
    let refused = world.source.admit(&set("apple", 1), &stale).await;
    let refused = refused.map(drop);
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark("stock/apple").await, Some(7));
}

//! The same rules on each isolation level that a fenced transaction can be begun with.
//!
//! SQLite knows one level only and ignores the wish; the cases hold there as they stand.

use std::sync::Arc;

use highwater_fencing::{FenceOptions, Isolation};
use highwater_proof::adapter::{End, Verdict};

use super::crossing::{cross, mark_present};
use crate::conformance::world::{STOCK, World, bare};

/// Higher, equal and lower tokens one after another.
async fn order(world: &World, isolation: Isolation) {
    let options = FenceOptions::new().isolation(isolation);
    let write = async |number| {
        let fence = options.apply(bare("stock/apple", number));
        world.sell(&fence, "apple", 10).await
    };
    for number in [5, 5, 7] {
        write(number).await.unwrap();
    }
    let refused = write(6).await;
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    assert_eq!(world.quantity("apple").await, STOCK - 30);
    assert_eq!(world.mark("stock/apple").await, Some(7));
}

/// Crossing writers in both orders, on a mark that exists and on one that does not.
async fn settle(world: &Arc<World>, isolation: Isolation) {
    let options = FenceOptions::new().isolation(isolation);
    for present in [false, true] {
        for (first, second) in [(5, 7), (7, 5)] {
            for end in [End::Commit, End::Rollback] {
                world.run("DELETE FROM highwater_fence").await;
                world
                    .run(&format!("UPDATE stock SET quantity = {STOCK}"))
                    .await;
                if present {
                    mark_present(world).await;
                }
                cross(world, &options, first, end, second).await;
            }
        }
    }
}

pub(super) async fn read_committed_orders_tokens(world: Arc<World>) {
    order(&world, Isolation::ReadCommitted).await;
}

pub(super) async fn repeatable_read_orders_tokens(world: Arc<World>) {
    order(&world, Isolation::RepeatableRead).await;
}

pub(super) async fn serializable_orders_tokens(world: Arc<World>) {
    order(&world, Isolation::Serializable).await;
}

pub(super) async fn read_committed_settles_crossing_writers(world: Arc<World>) {
    settle(&world, Isolation::ReadCommitted).await;
}

pub(super) async fn repeatable_read_settles_crossing_writers(world: Arc<World>) {
    settle(&world, Isolation::RepeatableRead).await;
}

pub(super) async fn serializable_settles_crossing_writers(world: Arc<World>) {
    settle(&world, Isolation::Serializable).await;
}

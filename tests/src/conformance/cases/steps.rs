//! Steps: a write that is admitted once.

use std::sync::Arc;

use highwater_fencing::Fence;
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};

use crate::conformance::database::Database;
use crate::conformance::world::{STOCK, World, deduct, fence, token};

const KEY: &str = "stock/apple";

fn step(number: u64, step: u64) -> Fence {
    fence(KEY, number).with_step(step.try_into().unwrap())
}

async fn deduct_ten<D: Database>(world: &World<D>, fence: &Fence) -> Result<i64, FenceError> {
    fence
        .transaction(&world.pool, async |tx| {
            Ok(deduct::<D>(tx, "apple", 10).await?)
        })
        .await
}

pub(super) async fn a_repeated_step_is_refused_as_already_applied<D: Database>(
    world: Arc<World<D>>,
) {
    deduct_ten(&world, &step(5, 2)).await.unwrap();
    for repeated in [2, 1] {
        let refused = deduct_ten(&world, &step(5, repeated)).await;
        let Err(FenceError::AlreadyApplied {
            token: named, step, ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((named, step.get()), (token(5), repeated));
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    // A lower token is stale, whatever its step.
    let refused = deduct_ten(&world, &step(4, 9)).await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
}

pub(super) async fn a_higher_step_and_a_higher_token_are_admitted<D: Database>(
    world: Arc<World<D>>,
) {
    for (number, at) in [(5, 1), (5, 2), (5, 7), (6, 1), (6, 2)] {
        deduct_ten(&world, &step(number, at)).await.unwrap();
        assert_eq!(world.mark(KEY).await, Some(number));
        let stored = world.mark_in("highwater_fence", "step", KEY).await;
        assert_eq!(stored, Some(at));
    }
    assert_eq!(world.quantity("apple").await, STOCK - 50);
}

pub(super) async fn a_step_that_was_rolled_back_can_be_repeated<D: Database>(world: Arc<World<D>>) {
    let tx = step(5, 1).begin(&world.pool).await.unwrap();
    tx.rollback().await.unwrap();
    deduct_ten(&world, &step(5, 1)).await.unwrap();
    let refused = deduct_ten(&world, &step(5, 1)).await;
    assert!(
        matches!(refused, Err(FenceError::AlreadyApplied { .. })),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

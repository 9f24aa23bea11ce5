//! Steps: a write that is admitted once.

use std::sync::Arc;

use highwater_fencing::{Configured, FenceOptions};
use highwater_proof::adapter::Verdict;

use crate::conformance::world::{STOCK, World, bare, token};

const KEY: &str = "stock/apple";

fn step(number: u64, step: u64) -> Configured {
    let fence = bare(KEY, number).with_step(step.try_into().unwrap());
    FenceOptions::new().apply(fence)
}

async fn deduct_ten(world: &World, fence: &Configured) -> Result<i64, Verdict> {
    world.sell(fence, "apple", 10).await
}

pub(super) async fn a_repeated_step_is_refused_as_already_applied(world: Arc<World>) {
    deduct_ten(&world, &step(5, 2)).await.unwrap();
    for repeated in [2, 1] {
        let refused = deduct_ten(&world, &step(5, repeated)).await;
        let Err(Verdict::AlreadyApplied {
            token: named,
            step,
            latest,
            ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((named, step.get()), (token(5), repeated));
        assert_eq!(latest.get(), 2, "the last one that is in");
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    // A lower token is stale, whatever its step.
    let refused = deduct_ten(&world, &step(4, 9)).await;
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
}

pub(super) async fn a_higher_step_and_a_higher_token_are_admitted(world: Arc<World>) {
    for (number, at) in [(5, 1), (5, 2), (5, 7), (6, 1), (6, 2)] {
        deduct_ten(&world, &step(number, at)).await.unwrap();
        assert_eq!(world.mark(KEY).await, Some(number));
        let stored = world.mark_in("highwater_fence", "step", KEY).await;
        assert_eq!(stored, Some(at));
    }
    assert_eq!(world.quantity("apple").await, STOCK - 50);
}

pub(super) async fn a_step_that_was_rolled_back_can_be_repeated(world: Arc<World>) {
    let tx = world.begin(&step(5, 1)).await;
    tx.rollback().await.unwrap();
    deduct_ten(&world, &step(5, 1)).await.unwrap();
    let refused = deduct_ten(&world, &step(5, 1)).await;
    assert!(
        matches!(refused, Err(Verdict::AlreadyApplied { .. })),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

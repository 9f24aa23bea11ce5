//! Several keys in one fence, and many transactions at once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use highwater_fencing::{Configured, Fence, FenceKey, FenceOptions, Mark};
use highwater_proof::adapter::{DriverError, Statements, Verdict, body};
use tokio::sync::Barrier;

use crate::conformance::world::{STOCK, World, deduct, domain, fence, token};

fn bare_of(marks: &[(&str, u64)]) -> Fence {
    let marks = marks.iter().map(|(key, number)| Mark {
        key: FenceKey::new(key).unwrap(),
        token: token(*number),
    });
    Fence::from_marks(domain(), marks).unwrap()
}

fn fence_of(marks: &[(&str, u64)]) -> Configured {
    FenceOptions::new().apply(bare_of(marks))
}

pub(super) async fn all_keys_are_admitted_or_none(world: Arc<World>) {
    world.raise(&fence("pear", 7)).await;
    for pear in [6, 1] {
        let fence = fence_of(&[("apple", 5), ("pear", pear), ("plum", 5)]);
        for refused in world.verdicts(&fence).await {
            assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
        }
        assert_eq!(world.mark("apple").await, None);
        assert_eq!(world.mark("plum").await, None);
        assert_eq!(world.mark("pear").await, Some(7));
    }
    let fence = fence_of(&[("apple", 5), ("pear", 7), ("plum", 6)]);
    world.raise(&fence).await;
    assert_eq!(world.mark("apple").await, Some(5));
    assert_eq!(world.mark("pear").await, Some(7));
    assert_eq!(world.mark("plum").await, Some(6));
}

pub(super) async fn one_stale_key_among_many_is_named(world: Arc<World>) {
    world.raise(&fence("pear", 7)).await;
    let both = fence_of(&[("apple", 5), ("pear", 6), ("plum", 5)]);
    for refused in world.verdicts(&both).await {
        let Err(Verdict::Stale {
            key,
            offered,
            highest,
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(key, FenceKey::new("pear").unwrap());
        assert_eq!((offered, highest), (token(6), token(7)));
    }
}

pub(super) async fn sixteen_keys_fit_in_one_fence(world: Arc<World>) {
    let keys: Vec<String> = (0..16).map(|number| format!("{number:0>128}")).collect();
    let marks: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 3)).collect();
    for _ in 0..2 {
        let fence = fence_of(&marks);
        world.raise(&fence).await;
    }
    for key in &keys {
        assert_eq!(world.mark(key).await, Some(3));
    }
}

pub(super) async fn opposite_orders_from_many_tasks_reach_the_caller_without_a_deadlock(
    world: Arc<World>,
) {
    const TASKS: i64 = 12;
    const ROUNDS: i64 = 8;
    let keys = ["apple", "pear", "plum"];
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let world = world.clone();
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    // Each task names the keys in another order, and all but one of them.
                    let mut mine = keys;
                    mine.rotate_left(usize::try_from((task + round) % 3).unwrap());
                    if task % 2 == 0 {
                        mine.reverse();
                    }
                    let fence =
                        fence_of(&mine[..2].iter().map(|key| (*key, 5)).collect::<Vec<_>>());
                    // Business rows in the same order as the fence.
                    let mut skus = [mine[0], mine[1]];
                    skus.sort_unstable();
                    let body = body(move |tx| {
                        Box::pin(async move {
                            for sku in skus {
                                deduct(tx, sku, 1).await?;
                            }
                            Ok(0)
                        })
                    });
                    let done = world.transaction(&fence, body).await;
                    done.unwrap_or_else(|error| panic!("task {task}, round {round}: {error:?}"));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut left = 0;
    for sku in keys {
        left += world.quantity(sku).await;
    }
    assert_eq!(left, 3 * STOCK - 2 * TASKS * ROUNDS, "an update was lost");
}

pub(super) async fn opposite_orders_do_not_deadlock_even_without_a_retry(world: Arc<World>) {
    let keys = ["apple", "pear", "plum", "quince"];
    let marks = keys.map(|key| (key, 5));
    world.raise(&fence_of(&marks)).await;
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let world = world.clone();
            tokio::spawn(async move {
                let mut mine = marks;
                mine.rotate_left(task % 4);
                if task % 2 == 0 {
                    mine.reverse();
                }
                let options = FenceOptions::new().retry_attempts(NonZeroU32::MIN);
                let fence = options.apply(bare_of(&mine));
                for _ in 0..25 {
                    world.raise(&fence).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// The two fences of the next case do not cover the rows, so nothing is read first.
async fn take_ten(tx: &mut dyn Statements, sku: &str) -> Result<u64, DriverError> {
    let write = format!("UPDATE stock SET quantity = quantity - 10 WHERE sku = '{sku}'");
    tx.run(&write).await
}

pub(super) async fn a_deadlock_on_business_rows_is_retried(world: Arc<World>) {
    let barrier = Arc::new(Barrier::new(2));
    let attempts = Arc::new(AtomicU32::new(0));
    // A file has one writer at a time, so there the other could not come.
    let meet = world.database.server.is_some();
    let tasks: Vec<_> = [("first", ["apple", "pear"]), ("second", ["pear", "apple"])]
        .map(|(key, skus)| {
            let (barrier, attempts) = (barrier.clone(), attempts.clone());
            let body = body(move |tx| {
                let (barrier, attempts) = (barrier.clone(), attempts.clone());
                Box::pin(async move {
                    let attempt = attempts.fetch_add(1, Ordering::SeqCst);
                    take_ten(tx, skus[0]).await?;
                    // At first each holds one row before it wants the other.
                    if attempt < 2 && meet {
                        barrier.wait().await;
                    }
                    take_ten(tx, skus[1]).await?;
                    Ok(0)
                })
            });
            let world = world.clone();
            tokio::spawn(async move { world.transaction(&fence(key, 1), body).await })
        })
        .into();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(world.quantity("apple").await, STOCK - 20);
    assert_eq!(world.quantity("pear").await, STOCK - 20);
    let attempts = attempts.load(Ordering::SeqCst);
    if meet {
        assert!(attempts > 2, "there was no deadlock to be retried");
    } else {
        assert_eq!(attempts, 2);
    }
}

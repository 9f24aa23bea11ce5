//! Two writers on one key at once: the second waits for the first, and the mark decides.
//!
//! The first holds its transaction open; the second starts, and is seen waiting by the database.
//! Then the first ends, and both the verdict and the numbers must be those of some order.

use std::sync::Arc;

use highwater_fencing::FenceOptions;
use highwater_proof::adapter::{End, Verdict};
use tokio::task::JoinHandle;

use crate::conformance::world::{STOCK, World, bare, deduct, fence};

const KEY: &str = "stock/apple";

/// Deducts `amount` in a task of its own.
fn write(
    world: &Arc<World>,
    options: &FenceOptions,
    number: u64,
    amount: i64,
) -> JoinHandle<Result<i64, Verdict>> {
    let world = world.clone();
    let fence = options.apply(bare(KEY, number));
    tokio::spawn(async move { world.sell(&fence, "apple", amount).await })
}

/// Lets `first` write 10 and end, while `second` wants to write 30.
pub(super) async fn cross(
    world: &Arc<World>,
    options: &FenceOptions,
    first: u64,
    end: End,
    second: u64,
) {
    let mut tx = world.begin(&options.apply(bare(KEY, first))).await;
    deduct(&mut *tx, "apple", 10).await.unwrap();
    let before = world.mark(KEY).await;
    let waiting = write(world, options, second, 30);
    world.until_somebody_waits().await;
    assert!(!waiting.is_finished(), "the second writer did not wait");
    match end {
        End::Commit => tx.commit().await.unwrap(),
        End::Rollback => tx.rollback().await.unwrap(),
        End::Drop => drop(tx),
    }
    let outcome = waiting.await.unwrap();
    let (taken, mark) = match (end, second < first) {
        (End::Commit, true) => {
            let Err(Verdict::Stale {
                offered, highest, ..
            }) = outcome
            else {
                panic!("{outcome:?}");
            };
            assert_eq!((offered.get(), highest.get()), (second, first));
            (10, first)
        }
        (End::Commit, false) => {
            assert_eq!(
                outcome.unwrap(),
                STOCK - 40,
                "it did not read the first one's write"
            );
            (40, second)
        }
        (End::Rollback | End::Drop, _) => {
            // What was rolled back never was: even the lower token is the highest so far.
            assert!(
                before.is_none_or(|before| before <= second),
                "the test asks for nonsense"
            );
            assert_eq!(outcome.unwrap(), STOCK - 30);
            (30, second)
        }
    };
    assert_eq!(world.quantity("apple").await, STOCK - taken);
    assert_eq!(world.mark(KEY).await, Some(mark));
}

/// Gives the key a mark that both writers may pass.
pub(super) async fn mark_present(world: &World) {
    world.raise(&fence(KEY, 2)).await;
}

const DEFAULT: FenceOptions = FenceOptions::new();

pub(super) async fn a_newer_writer_waits_for_an_older_one_that_commits(world: Arc<World>) {
    mark_present(&world).await;
    cross(&world, &DEFAULT, 5, End::Commit, 7).await;
}

pub(super) async fn a_newer_writer_waits_for_an_older_one_that_rolls_back(world: Arc<World>) {
    mark_present(&world).await;
    cross(&world, &DEFAULT, 5, End::Rollback, 7).await;
}

pub(super) async fn a_stale_writer_waits_for_a_newer_one_that_commits(world: Arc<World>) {
    mark_present(&world).await;
    cross(&world, &DEFAULT, 7, End::Commit, 5).await;
}

pub(super) async fn a_stale_writer_waits_for_a_newer_one_that_rolls_back(world: Arc<World>) {
    mark_present(&world).await;
    cross(&world, &DEFAULT, 7, End::Rollback, 5).await;
}

pub(super) async fn on_a_new_key_a_newer_writer_waits_for_an_older_one_that_commits(
    world: Arc<World>,
) {
    cross(&world, &DEFAULT, 5, End::Commit, 7).await;
}

pub(super) async fn on_a_new_key_a_newer_writer_waits_for_an_older_one_that_rolls_back(
    world: Arc<World>,
) {
    cross(&world, &DEFAULT, 5, End::Rollback, 7).await;
}

pub(super) async fn on_a_new_key_a_stale_writer_waits_for_a_newer_one_that_commits(
    world: Arc<World>,
) {
    cross(&world, &DEFAULT, 7, End::Commit, 5).await;
}

pub(super) async fn on_a_new_key_a_stale_writer_waits_for_a_newer_one_that_rolls_back(
    world: Arc<World>,
) {
    cross(&world, &DEFAULT, 7, End::Rollback, 5).await;
}

pub(super) async fn the_mark_is_held_until_the_transaction_ends(world: Arc<World>) {
    // Also an equal token, which does not change the row, has to hold it.
    mark_present(&world).await;
    let tx = world.begin(&fence(KEY, 2)).await;
    let newer = write(&world, &DEFAULT, 3, 30);
    world.until_somebody_waits().await;
    assert!(
        !newer.is_finished(),
        "an equal token does not hold the mark"
    );
    tx.commit().await.unwrap();
    newer.await.unwrap().unwrap();
    assert_eq!(world.mark(KEY).await, Some(3));
}

pub(super) async fn three_writers_cross_on_a_new_key_and_the_first_rolls_back(world: Arc<World>) {
    // On InnoDB one of the waiters becomes a deadlock victim here; the retry hides it.
    let tx = world.begin(&fence(KEY, 4)).await;
    let waiters: Vec<_> = [4, 4, 4]
        .map(|number| write(&world, &DEFAULT, number, 10))
        .into();
    world.until_somebody_waits().await;
    tx.rollback().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(world.quantity("apple").await, STOCK - 30);
    assert_eq!(world.mark(KEY).await, Some(4));
}

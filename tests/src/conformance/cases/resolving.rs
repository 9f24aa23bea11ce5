//! What became of a write whose commit nobody heard of: `resolve` tells, and changes nothing.

use std::sync::Arc;
use std::time::Duration;

use highwater_fencing::{Configured, FenceOptions, Resolution};
use highwater_proof::adapter::{Dialect, Source, Verdict};

use crate::conformance::world::{STOCK, World, bare, deduct, fence, token};

const KEY: &str = "stock/apple";

/// A fence that does not wait long for an old transaction.
fn step(number: u64, step: u64) -> Configured {
    let fence = bare(KEY, number).with_step(step.try_into().unwrap());
    impatient().apply(fence)
}

fn impatient() -> FenceOptions {
    let once = std::num::NonZeroU32::MIN;
    let options = FenceOptions::new().resolve_for(Duration::from_millis(200));
    options.retry_attempts(once)
}

/// One connection that, on SQLite, does not wait longer than the options say.
async fn asker(world: &World) -> Arc<dyn Source> {
    let source = world.another_source(1).await;
    if world.database.server.is_none() {
        source.run("PRAGMA busy_timeout = 200").await.unwrap();
    }
    source
}

async fn resolve(source: &dyn Source, fence: &Configured) -> Resolution {
    source.resolve(fence).await.unwrap()
}

pub(super) async fn a_committed_step_is_applied(world: Arc<World>) {
    world.sell(&step(5, 2), "apple", 10).await.unwrap();
    for _ in 0..2 {
        let answer = resolve(&*world.source, &step(5, 2)).await;
        assert_eq!(answer, Resolution::Applied);
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn a_step_that_is_not_in_is_not_applied_and_stays_so(world: Arc<World>) {
    // A mark that is new, an older one, and an earlier step of the same token.
    for (number, at) in [(5, 1), (6, 1), (6, 2)] {
        let before = world.mark(KEY).await;
        let mut tx = world.begin(&step(number, at)).await;
        deduct(&mut *tx, "apple", 10).await.unwrap();
        tx.rollback().await.unwrap();
        for _ in 0..2 {
            let answer = resolve(&*world.source, &step(number, at)).await;
            assert_eq!(answer, Resolution::NotApplied, "{number}, {at}");
        }
        assert_eq!(world.mark(KEY).await, before, "it changed the mark");
        world.until_nobody_is_in_a_transaction().await;
        // So it can be done again.
        world.sell(&step(number, at), "apple", 1).await.unwrap();
        let stored = world.mark_in("highwater_fence", "step", KEY).await;
        assert_eq!((world.mark(KEY).await, stored), (Some(number), Some(at)));
    }
    assert_eq!(world.quantity("apple").await, STOCK - 3);
}

pub(super) async fn a_newer_token_or_a_later_step_supersedes_it(world: Arc<World>) {
    world.sell(&step(5, 2), "apple", 10).await.unwrap();
    let superseded = |highest| Resolution::Superseded {
        highest: token(highest),
    };
    world.raise(&step(5, 3)).await;
    // Whether it was applied or not: the mark no longer tells.
    for at in [1, 2] {
        let answer = resolve(&*world.source, &step(5, at)).await;
        assert_eq!(answer, superseded(5), "step {at}");
    }
    world.raise(&fence(KEY, 9)).await;
    for at in [1, 2, 3, 4] {
        let answer = resolve(&*world.source, &step(5, at)).await;
        assert_eq!(answer, superseded(9), "step {at}");
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

pub(super) async fn without_a_step_nothing_can_be_resolved(world: Arc<World>) {
    world.raise(&fence(KEY, 5)).await;
    let refused = world.source.resolve(&fence(KEY, 5)).await;
    assert!(matches!(refused, Err(Verdict::NoStep)), "{refused:?}");
}

pub(super) async fn what_says_nothing_about_the_write_is_an_error(world: Arc<World>) {
    world.run("DROP TABLE highwater_fence").await;
    let refused = world.source.resolve(&step(5, 1)).await;
    assert!(
        matches!(refused, Err(Verdict::NotMigrated { .. })),
        "{refused:?}"
    );
    let refused = world.source.resolve(&step(u64::MAX, 1)).await;
    assert!(
        matches!(refused, Err(Verdict::TokenOutOfRange { .. })),
        "{refused:?}"
    );
}

pub(super) async fn while_the_old_transaction_is_open_it_stays_unknown(world: Arc<World>) {
    let source = asker(&world).await;
    // Also the first use of a key, where there is no row to wait for.
    for (number, commits) in [(5, false), (6, true)] {
        let mut old = world.begin(&step(number, 1)).await;
        deduct(&mut *old, "apple", 10).await.unwrap();
        for _ in 0..2 {
            let answer = resolve(&*source, &step(number, 1)).await;
            assert_eq!(answer, Resolution::StillUnknown, "{number}");
        }
        if commits {
            old.commit().await.unwrap();
        } else {
            old.rollback().await.unwrap();
        }
        let answer = resolve(&*source, &step(number, 1)).await;
        let expected = if commits {
            Resolution::Applied
        } else {
            Resolution::NotApplied
        };
        assert_eq!(answer, expected, "{number}");
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(6));
}

/// How long a session waits for a lock, as a number.
async fn lock_wait(world: &World, source: &dyn Source) -> Option<i64> {
    let sql = match world.database.dialect {
        Dialect::Postgres => "SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'",
        Dialect::MySql => "SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)",
        Dialect::Sqlite => "PRAGMA busy_timeout",
    };
    let mut tx = source.begin_unfenced().await.unwrap();
    let wait = tx.number(sql).await.unwrap();
    tx.rollback().await.unwrap();
    wait
}

pub(super) async fn it_leaves_the_session_as_it_was(world: Arc<World>) {
    let source = asker(&world).await;
    let set = match world.database.dialect {
        Dialect::Postgres => "SET lock_timeout = '77s'",
        Dialect::MySql => "SET innodb_lock_wait_timeout = 77",
        Dialect::Sqlite => "PRAGMA busy_timeout = 277",
    };
    source.run(set).await.unwrap();
    // A pool may reset the session of a connection that comes back; then this is the default.
    let before = lock_wait(&world, &*source).await;
    let check = async |at: &str| {
        assert_eq!(lock_wait(&world, &*source).await, before, "{at}");
        let write = "UPDATE stock SET quantity = quantity + 1 WHERE sku = 'pear'";
        let pears = world.quantity("pear").await;
        source.run(write).await.unwrap();
        assert_eq!(world.quantity("pear").await, pears + 1, "{at}");
    };
    assert_eq!(resolve(&*source, &step(5, 1)).await, Resolution::NotApplied);
    check("not applied").await;
    world.raise(&step(5, 1)).await;
    assert_eq!(resolve(&*source, &step(5, 1)).await, Resolution::Applied);
    check("applied").await;
    assert_eq!(
        resolve(&*source, &step(4, 1)).await,
        Resolution::Superseded { highest: token(5) }
    );
    check("superseded").await;
    let old = world.begin(&step(5, 2)).await;
    assert_eq!(
        resolve(&*source, &step(5, 2)).await,
        Resolution::StillUnknown
    );
    old.rollback().await.unwrap();
    check("still unknown").await;
}

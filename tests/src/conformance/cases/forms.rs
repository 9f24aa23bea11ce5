//! The forms in which a fence meets a transaction.

use std::sync::Arc;

use highwater_fencing::{FenceOptions, TableName};
use highwater_proof::adapter::{Statements, Verdict, body};

use crate::conformance::world::{STOCK, World, bare, deduct, fence, set};

const KEY: &str = "stock/apple";
const NO_JOIN: &str = "a transaction of the user's cannot be joined";
const NO_LOAN: &str = "a connection cannot be lent";

pub(super) async fn the_guard_commits_what_was_written(world: Arc<World>) {
    let mut tx = world.begin(&fence(KEY, 5)).await;
    deduct(&mut *tx, "apple", 10).await.unwrap();
    assert_eq!(
        world.quantity("apple").await,
        STOCK,
        "visible before the commit"
    );
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(5));
}

pub(super) async fn a_joined_transaction_commits_what_was_written(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    let mut tx = world.source.admit("", &fence(KEY, 5)).await.unwrap();
    deduct(&mut *tx, "apple", 10).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(5));

    let mut tx = world.source.admit("", &fence(KEY, 6)).await.unwrap();
    deduct(&mut *tx, "apple", 10).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(5));
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn a_joined_transaction_is_refused_when_stale_and_rolled_back(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    world.raise(&fence(KEY, 7)).await;
    for _ in 0..3 {
        let refused = world.source.admit("", &fence(KEY, 6)).await.map(drop);
        assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
        world.until_nobody_is_in_a_transaction().await;
    }
    // The connections are usable, and commit by themselves.
    let source = world.another_source(1).await;
    let refused = source.admit("", &fence(KEY, 6)).await.map(drop);
    refused.unwrap_err();
    source.run(&set("pear", 1)).await.unwrap();
    assert_eq!(world.quantity("pear").await, 1);
}

pub(super) async fn a_fence_inside_a_savepoint_is_refused(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    let (fence, then) = (fence(KEY, 5), set("pear", 1));
    let refused = world.source.admit_nested(&fence, &then).await.map(drop);
    if world.abilities().counts_savepoints {
        assert!(matches!(refused, Err(Verdict::InSavepoint)), "{refused:?}");
        // Only the savepoint is gone; the user's transaction went on.
        assert_eq!(world.quantity("pear").await, 1);
    } else {
        refused.unwrap_err();
    }
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn a_fence_inside_a_raw_savepoint_is_refused_or_cannot_be_lost(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    let notices = world.database.notices_raw_savepoint;
    let fence = fence(KEY, 5);
    match world.source.admit("SAVEPOINT hidden", &fence).await {
        Err(Verdict::InSavepoint) => assert!(notices),
        Err(error) => panic!("{error:?}"),
        Ok(mut tx) => {
            assert!(!notices, "the fence was taken inside a savepoint");
            // Rolling it back takes the fence away: what is written then must not be committed.
            tx.run_past("ROLLBACK TO SAVEPOINT hidden").await.unwrap();
            tx.run_past("UPDATE stock SET quantity = 1").await.unwrap();
            let refused = tx.commit().await;
            assert!(matches!(refused, Err(Verdict::Ended(_))), "{refused:?}");
        }
    }
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn a_lent_connection_is_given_back_clean(world: Arc<World>) {
    if !world.abilities().lends {
        return world.not_applicable(NO_LOAN);
    }
    // With one connection it is the same one that runs what follows.
    let source = world.another_source(1).await;
    let write = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'pear'";

    let mut tx = source.begin_on("", &fence(KEY, 5)).await.unwrap();
    deduct(&mut *tx, "apple", 10).await.unwrap();
    tx.commit().await.unwrap();
    source.run(write).await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.quantity("pear").await, STOCK - 1);

    let mut tx = source.begin_on("", &fence(KEY, 6)).await.unwrap();
    deduct(&mut *tx, "apple", 10).await.unwrap();
    tx.rollback().await.unwrap();
    source.run(write).await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.quantity("pear").await, STOCK - 2);

    let refused = source.begin_on("", &fence(KEY, 4)).await.map(drop);
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    source.run(write).await.unwrap();
    assert_eq!(world.quantity("pear").await, STOCK - 3);
}

pub(super) async fn a_lent_connection_inside_a_transaction_is_refused(world: Arc<World>) {
    if !world.abilities().lends {
        return world.not_applicable(NO_LOAN);
    }
    match world.source.begin_on_nested(&fence(KEY, 5)).await {
        Err(refused) => {
            assert!(matches!(refused, Verdict::InSavepoint), "{refused:?}");
            assert_eq!(world.mark(KEY).await, None);
        }
        Ok(mut tx) => {
            // A driver that cannot know about raw SQL takes that transaction over, or the server
            // commits it before.
            assert!(!world.abilities().counts_savepoints, "it was not noticed");
            tx.run(&set("apple", 1)).await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(world.quantity("apple").await, 1);
            assert_eq!(world.mark(KEY).await, Some(5));
        }
    }
}

pub(super) async fn another_table_has_marks_of_its_own(world: Arc<World>) {
    world.raise(&fence(KEY, 7)).await;
    let table = TableName::new("app_marks").unwrap();
    world.source.migrate(&table).await.unwrap();
    let options = FenceOptions::new().table("app_marks").unwrap();
    let older = options.apply(bare(KEY, 3));
    world.raise(&older).await;
    for admitted in world.verdicts(&older).await {
        admitted.unwrap();
    }
    assert_eq!(world.mark_in("app_marks", "token", KEY).await, Some(3));
    assert_eq!(world.mark(KEY).await, Some(7));
    for refused in world.verdicts(&options.apply(bare(KEY, 2))).await {
        assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    }
}

pub(super) async fn a_missing_table_is_named(world: Arc<World>) {
    let table = TableName::new("not_there").unwrap();
    let missing = FenceOptions::new()
        .table_name(table.clone())
        .apply(bare(KEY, 3));
    for refused in world.verdicts(&missing).await {
        let Err(error @ Verdict::NotMigrated { .. }) = refused else {
            panic!("{refused:?}");
        };
        let text = error.to_string();
        assert!(text.contains("highwater migrate"), "{text}");
        let Verdict::NotMigrated { table: named } = error else {
            unreachable!("it was matched above");
        };
        assert_eq!(named, table);
    }
    world.until_nobody_is_in_a_transaction().await;
}

/// A domain function: it cannot be called without a fence.
async fn sell(tx: &mut dyn Statements, sku: &str) -> Result<i64, Verdict> {
    deduct(tx, sku, 10).await.map_err(Verdict::Database)
}

pub(super) async fn the_body_runs_in_a_spawned_task(world: Arc<World>) {
    let task = {
        let world = world.clone();
        let sku = String::from("apple");
        tokio::spawn(async move {
            let body = body(move |tx| {
                let sku = sku.clone();
                Box::pin(async move { Ok(sell(tx, &sku).await?) })
            });
            world.transaction(&fence(KEY, 5), body).await
        })
    };
    assert_eq!(task.await.unwrap().unwrap(), STOCK - 10);
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

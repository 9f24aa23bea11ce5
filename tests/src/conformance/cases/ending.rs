//! How a fenced transaction ends: a commit that did not happen is never reported as one.
//!
//! An adapter that hands out its driver's own connection does not see errors. There the weaker
//! promise holds: a commit never succeeds unless the transaction is the one that took the fence.

use std::sync::Arc;

use highwater_proof::adapter::{Body, Dialect, Tx, Verdict, body};

use crate::conformance::world::{STOCK, World, deduct, fence, set};

const KEY: &str = "stock/apple";
/// A statement that fails and leaves nothing behind by itself.
const DUPLICATE: &str = "INSERT INTO stock VALUES ('apple', 0)";

/// The commit was refused because something else ended the transaction.
fn assert_ended(outcome: Result<(), Verdict>) {
    assert!(matches!(outcome, Err(Verdict::Ended(_))), "{outcome:?}");
}

#[derive(Debug, thiserror::Error)]
#[error("only {0} left")]
struct OutOfStock(i64);

pub(super) async fn an_error_of_the_body_leaves_nothing_and_restores_the_mark(world: Arc<World>) {
    world.raise(&fence(KEY, 3)).await;
    let sold_out: Body = body(|tx| {
        Box::pin(async move {
            let left = deduct(tx, "apple", 10).await?;
            Err(OutOfStock(left).into())
        })
    });
    let known = fence(KEY, 9);
    let refused = world.source.transaction(&known, sold_out.clone()).await;
    let refused = refused.unwrap_err();
    let refused = refused.downcast_ref::<OutOfStock>();
    assert!(matches!(refused, Some(OutOfStock(90))), "{refused:?}");
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(
        world.mark(KEY).await,
        Some(3),
        "the mark must go back with the rest"
    );
    world.until_nobody_is_in_a_transaction().await;
    // Nothing is locked, and a token between the two is admitted.
    world.raise(&fence(KEY, 4)).await;
    // A key that was new is new again.
    let refused = world.source.transaction(&fence("new", 9), sold_out).await;
    let refused = refused.unwrap_err();
    assert!(refused.is::<OutOfStock>(), "{refused:?}");
    assert_eq!(world.mark("new").await, None);
}

pub(super) async fn a_rolled_back_guard_leaves_nothing(world: Arc<World>) {
    let mut tx = world.begin(&fence(KEY, 9)).await;
    deduct(&mut *tx, "apple", 10).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
    world.until_nobody_is_in_a_transaction().await;
}

/// What a commit may say after an error that the guard did not see, and what is then in.
async fn assert_servers_word(world: &World, outcome: Result<(), Verdict>) {
    let (quantity, mark) = (world.quantity("apple").await, world.mark(KEY).await);
    if world.database.aborts_on_error {
        outcome.unwrap_err();
        assert_eq!((quantity, mark), (STOCK, None));
    } else {
        // The transaction was alive and the fence held: committing it was right.
        outcome.unwrap();
        assert_eq!((quantity, mark), (1, Some(5)));
    }
}

pub(super) async fn a_swallowed_statement_error_refuses_the_commit(world: Arc<World>) {
    let swallow = body(|tx| {
        Box::pin(async move {
            tx.run(&set("apple", 1)).await?;
            // The body does not care about this error.
            tx.run(DUPLICATE).await.unwrap_err();
            Ok(0)
        })
    });
    let outcome = world.transaction(&fence(KEY, 5), swallow).await.map(drop);
    if world.abilities().sees_errors {
        assert!(
            matches!(outcome, Err(Verdict::Poisoned { .. })),
            "{outcome:?}"
        );
        assert_eq!(world.quantity("apple").await, STOCK);
        assert_eq!(world.mark(KEY).await, None);
    } else {
        assert_servers_word(&world, outcome).await;
    }
    world.until_nobody_is_in_a_transaction().await;

    // With the connection itself errors are not seen; then the server's own word counts.
    let mut tx = world.begin(&fence(KEY, 5)).await;
    tx.run_past(&set("apple", 1)).await.unwrap();
    tx.run_past(DUPLICATE).await.unwrap_err();
    let outcome = tx.commit().await;
    assert_servers_word(&world, outcome).await;
}

pub(super) async fn after_an_error_every_statement_is_refused(world: Arc<World>) {
    let mut tx = world.begin(&fence(KEY, 5)).await;
    let first = tx.run("UPDATE no_such_table SET x = 1").await.unwrap_err();
    if world.abilities().sees_errors {
        for _ in 0..2 {
            let refused = tx.run(&set("apple", 1)).await.unwrap_err();
            let poisoned = refused.poisoned();
            let poisoned = poisoned.unwrap_or_else(|| panic!("{refused:?}"));
            assert_eq!(poisoned.first(), first.to_string());
            let refused = tx.number("SELECT 1").await.unwrap_err();
            assert!(refused.poisoned().is_some(), "{refused:?}");
        }
        let refused = tx.commit().await;
        assert!(
            matches!(refused, Err(Verdict::Poisoned { .. })),
            "{refused:?}"
        );
        assert_eq!(world.quantity("apple").await, STOCK);
    } else {
        // Then it is the server that refuses them, or the transaction is as good as before.
        let next = tx.run(&set("apple", 1)).await;
        assert_eq!(next.is_err(), world.database.aborts_on_error, "{next:?}");
        let outcome = tx.commit().await;
        assert_servers_word(&world, outcome).await;
    }
    // The connection is as good as before.
    world.until_nobody_is_in_a_transaction().await;
    world.raise(&fence(KEY, 5)).await;
}

/// Writes, ends the transaction with `end`, writes again, and commits.
async fn end_with(world: &World, end: &str, keeps_first: bool) {
    let mut tx = world.begin(&fence(KEY, 5)).await;
    tx.run(&set("apple", 1)).await.unwrap();
    let ended = tx.run(end).await;
    if world.abilities().vetoes && keeps_first {
        ended.unwrap_err();
        let refused = tx.commit().await;
        if world.abilities().sees_errors {
            assert!(
                matches!(refused, Err(Verdict::Poisoned { .. })),
                "{refused:?}"
            );
        } else {
            // The database rolls back when a commit is vetoed.
            assert_ended(refused);
        }
        assert_eq!(world.quantity("apple").await, STOCK);
        assert_eq!(world.mark(KEY).await, None);
    } else {
        ended.unwrap();
        // This one is outside of every fenced transaction.
        let late = tx.run(&set("pear", 2)).await;
        let outcome = tx.commit().await;
        if late.is_ok() {
            assert_ended(outcome);
        } else {
            outcome.unwrap_err();
        }
        let first = if keeps_first {
            (1, Some(5))
        } else {
            (STOCK, None)
        };
        let found = (world.quantity("apple").await, world.mark(KEY).await);
        assert_eq!(found, first, "what was written under the fence");
        if !world.keeps_late_writes() {
            assert_eq!(
                world.quantity("pear").await,
                STOCK,
                "what was written after it"
            );
        }
    }
    world.until_nobody_is_in_a_transaction().await;
    // What is in the pool is usable, and commits by itself again.
    for _ in 0..4 {
        world.run(&set("plum", 3)).await;
    }
    assert_eq!(world.quantity("plum").await, 3);
}

pub(super) async fn a_raw_commit_is_never_reported_as_success(world: Arc<World>) {
    end_with(&world, "COMMIT", true).await;
}

pub(super) async fn a_raw_rollback_is_never_reported_as_success(world: Arc<World>) {
    end_with(&world, "ROLLBACK", false).await;
}

pub(super) async fn a_raw_commit_and_begin_is_never_reported_as_success(world: Arc<World>) {
    end_with(&world, "COMMIT; BEGIN", true).await;
}

pub(super) async fn through_the_connection_a_raw_end_is_never_reported_as_success(
    world: Arc<World>,
) {
    for end in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
        world.run(&set("apple", STOCK)).await;
        let mut tx = world.begin(&fence(KEY, 5)).await;
        tx.run_past(&set("apple", 1)).await.unwrap();
        let ended = tx.run_past(end).await.is_ok();
        tx.run_past(&set("pear", 2)).await.ok();
        let outcome = tx.commit().await;
        if ended {
            assert_ended(outcome);
        } else {
            // The attempt was refused when it was made, and the transaction goes on.
            assert!(world.abilities().vetoes, "{end}");
            if outcome.is_ok() {
                assert_eq!(world.quantity("apple").await, 1, "{end}");
            }
        }
        world.until_nobody_is_in_a_transaction().await;
    }
}

pub(super) async fn ddl_is_never_committed_behind_the_fences_back(world: Arc<World>) {
    let mut tx = world.begin(&fence(KEY, 5)).await;
    tx.run(&set("apple", 1)).await.unwrap();
    tx.run("CREATE TABLE side (id BIGINT)").await.unwrap();
    tx.run(&set("pear", 2)).await.unwrap();
    let outcome = tx.commit().await;
    if world.database.ddl_commits {
        assert_ended(outcome);
        assert_eq!(
            world.quantity("apple").await,
            1,
            "it was committed under the fence"
        );
        assert_eq!(
            world.quantity("pear").await,
            STOCK,
            "after the end nothing is kept"
        );
    } else {
        outcome.unwrap();
        assert_eq!(world.quantity("apple").await, 1);
        assert_eq!(world.quantity("pear").await, 2);
    }
    assert_eq!(world.mark(KEY).await, Some(5));
}

/// Makes the database itself end or abort the transaction, in the way that it has.
async fn break_transaction(world: &World, tx: &mut dyn Tx) {
    if world.database.server.is_none() {
        let statement = "INSERT OR ROLLBACK INTO stock VALUES ('apple', 0)";
        tx.run_past(statement).await.unwrap_err();
        return;
    }
    // A deadlock with another session, whose victim is the fenced transaction: it has done less,
    // or it looks first.
    let mut other = world.observer.session().await.unwrap();
    if world.database.dialect == Dialect::Postgres {
        let look = "SET LOCAL deadlock_timeout = '50ms'";
        tx.run_past(look).await.unwrap();
        other.run("SET deadlock_timeout = '20s'").await.unwrap();
    }
    other.run("BEGIN").await.unwrap();
    let fillers: Vec<_> = (0..40)
        .map(|number| format!("('filler {number}', 1)"))
        .collect();
    let fillers = format!("INSERT INTO stock VALUES {}", fillers.join(", "));
    other.run(&fillers).await.unwrap();
    other.run(&set("plum", 7)).await.unwrap();
    let waiting = tokio::spawn(async move {
        // The fenced transaction holds the apple.
        other.run(&set("apple", 8)).await.unwrap();
        other.run("ROLLBACK").await.unwrap();
    });
    world.until_somebody_waits().await;
    tx.run_past(&set("plum", 9)).await.unwrap_err();
    waiting.await.unwrap();
}

pub(super) async fn an_end_by_the_database_itself_is_noticed(world: Arc<World>) {
    let mut tx = world.begin(&fence(KEY, 5)).await;
    tx.run(&set("apple", 1)).await.unwrap();
    break_transaction(&world, &mut *tx).await;
    // The application swallowed the error and writes on, past the guard's eyes.
    let late = tx.run_past(&set("pear", 2)).await;
    let kept = if late.is_ok() && world.is_unguarded_file() {
        2
    } else {
        STOCK
    };
    assert_eq!(
        world.quantity("pear").await,
        kept,
        "whether it was committed by itself"
    );
    let outcome = tx.commit().await;
    assert!(
        matches!(outcome, Err(Verdict::Ended(_) | Verdict::Database(_))),
        "{outcome:?}"
    );
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.quantity("pear").await, kept);
    assert_eq!(world.quantity("plum").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn a_savepoint_of_the_body_may_be_rolled_back(world: Arc<World>) {
    let mut tx = world.begin(&fence(KEY, 5)).await;
    tx.run(&set("apple", 1)).await.unwrap();
    tx.nested(&set("pear", 2), false).await.unwrap();
    tx.nested(&set("plum", 3), true).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("apple").await, 1);
    assert_eq!(world.quantity("pear").await, STOCK);
    assert_eq!(world.quantity("plum").await, 3);
    assert_eq!(world.mark(KEY).await, Some(5));
}

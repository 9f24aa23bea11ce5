//! How a fenced transaction ends: a commit that did not happen is never reported as one.

use std::sync::Arc;

use highwater_fencing::sqlx::{FenceError, Fenced, Poisoned, SqlxFence as _};
use sqlx::{Connection as _, Error};

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::world::{STOCK, World, deduct, fence};

const KEY: &str = "stock/apple";

/// Sets the quantity of a sku to a number that tells which write it was.
fn set(sku: &str, quantity: i64) -> String {
    format!("UPDATE stock SET quantity = {quantity} WHERE sku = '{sku}'")
}

/// The commit was refused because something else ended the transaction.
fn assert_ended(outcome: Result<(), FenceError>) {
    assert!(matches!(outcome, Err(FenceError::Ended(_))), "{outcome:?}");
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error(transparent)]
    Sql(#[from] Error),
    #[error("only {0} left")]
    OutOfStock(i64),
}

pub(super) async fn an_error_of_the_body_leaves_nothing_and_restores_the_mark<D: Database>(
    world: Arc<World<D>>,
) {
    fence(KEY, 3)
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let refused = fence(KEY, 9)
        .transaction(&world.pool, async |tx| {
            let left = deduct::<D>(tx, "apple", 10).await?;
            if left < STOCK {
                Err(AppError::OutOfStock(left))
            } else {
                Ok(())
            }
        })
        .await;
    assert!(
        matches!(refused, Err(AppError::OutOfStock(90))),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(
        world.mark(KEY).await,
        Some(3),
        "the mark must go back with the rest"
    );
    world.until_nobody_is_in_a_transaction().await;
    // Nothing is locked, and a token between the two is admitted.
    fence(KEY, 4)
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    // A key that was new is new again.
    let new = fence("new", 9);
    let refused: Result<(), AppError> = new
        .transaction(&world.pool, async |_tx| Err(AppError::OutOfStock(0)))
        .await;
    assert!(
        matches!(refused, Err(AppError::OutOfStock(0))),
        "{refused:?}"
    );
    assert_eq!(world.mark("new").await, None);
}

pub(super) async fn a_rolled_back_guard_leaves_nothing<D: Database>(world: Arc<World<D>>) {
    let mut tx = fence(KEY, 9).begin(&world.pool).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn a_swallowed_statement_error_refuses_the_commit<D: Database>(
    world: Arc<World<D>>,
) {
    let refused: Result<(), FenceError> = fence(KEY, 5)
        .transaction(&world.pool, async |tx| {
            D::Db::run_in(tx, &set("apple", 1)).await?;
            // A duplicate, whose error the body does not care about.
            D::Db::run_in(tx, "INSERT INTO stock VALUES ('apple', 0)")
                .await
                .unwrap_err();
            Ok(())
        })
        .await;
    assert!(
        matches!(refused, Err(FenceError::Poisoned { .. })),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
    world.until_nobody_is_in_a_transaction().await;

    // With the connection itself errors are not seen; then the server's own word counts.
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    let conn = tx.connection();
    D::Db::run_on(conn, &set("apple", 1)).await.unwrap();
    D::Db::run_on(conn, "INSERT INTO stock VALUES ('apple', 0)")
        .await
        .unwrap_err();
    let outcome = tx.commit().await;
    let (quantity, mark) = (world.quantity("apple").await, world.mark(KEY).await);
    if D::ABORTS_ON_ERROR {
        outcome.unwrap_err();
        assert_eq!((quantity, mark), (STOCK, None));
    } else {
        // The transaction was alive and the fence held: committing it was right.
        outcome.unwrap();
        assert_eq!((quantity, mark), (1, Some(5)));
    }
}

pub(super) async fn after_an_error_every_statement_is_refused<D: Database>(world: Arc<World<D>>) {
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    let first = D::Db::run_in(&mut tx, "UPDATE no_such_table SET x = 1")
        .await
        .unwrap_err();
    for _ in 0..2 {
        let refused = D::Db::run_in(&mut tx, &set("apple", 1)).await.unwrap_err();
        let poisoned = refused
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<Poisoned>());
        let poisoned = poisoned.unwrap_or_else(|| panic!("{refused:?}"));
        assert_eq!(poisoned.first(), first.to_string());
        let refused = D::Db::number_in(&mut tx, "SELECT 1").await.unwrap_err();
        assert!(refused.as_database_error().is_some(), "{refused:?}");
    }
    let refused = tx.commit().await;
    assert!(
        matches!(refused, Err(FenceError::Poisoned { .. })),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK);
    // The connection is as good as before.
    world.until_nobody_is_in_a_transaction().await;
    fence(KEY, 5)
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
}

/// Writes, ends the transaction with `end`, writes again, and commits.
async fn end_with<D: Database>(world: &World<D>, end: &str, keeps_first: bool) {
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    D::Db::run_in(&mut tx, &set("apple", 1)).await.unwrap();
    let ended = D::Db::run_in(&mut tx, end).await;
    if D::REFUSES_RAW_COMMIT && keeps_first {
        ended.unwrap_err();
        let refused = tx.commit().await;
        assert!(
            matches!(refused, Err(FenceError::Poisoned { .. })),
            "{refused:?}"
        );
        assert_eq!(world.quantity("apple").await, STOCK);
        assert_eq!(world.mark(KEY).await, None);
    } else {
        ended.unwrap();
        // This one is outside of every fenced transaction.
        let late = D::Db::run_in(&mut tx, &set("pear", 2)).await;
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
        if !D::KEEPS_LATE_WRITES {
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

pub(super) async fn a_raw_commit_is_never_reported_as_success<D: Database>(world: Arc<World<D>>) {
    end_with(&world, "COMMIT", true).await;
}

pub(super) async fn a_raw_rollback_is_never_reported_as_success<D: Database>(world: Arc<World<D>>) {
    end_with(&world, "ROLLBACK", false).await;
}

pub(super) async fn a_raw_commit_and_begin_is_never_reported_as_success<D: Database>(
    world: Arc<World<D>>,
) {
    end_with(&world, "COMMIT; BEGIN", true).await;
}

pub(super) async fn through_the_connection_a_raw_end_is_never_reported_as_success<D: Database>(
    world: Arc<World<D>>,
) {
    for end in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
        world.run(&set("apple", STOCK)).await;
        let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
        let conn = tx.connection();
        D::Db::run_on(conn, &set("apple", 1)).await.unwrap();
        let ended = D::Db::run_on(conn, end).await.is_ok();
        D::Db::run_on(conn, &set("pear", 2)).await.ok();
        let outcome = tx.commit().await;
        if ended {
            assert_ended(outcome);
        } else {
            // The attempt was refused when it was made, and the transaction goes on.
            assert!(D::REFUSES_RAW_COMMIT, "{end}");
            if outcome.is_ok() {
                assert_eq!(world.quantity("apple").await, 1, "{end}");
            }
        }
        world.until_nobody_is_in_a_transaction().await;
    }
}

pub(super) async fn ddl_is_never_committed_behind_the_fences_back<D: Database>(
    world: Arc<World<D>>,
) {
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    D::Db::run_in(&mut tx, &set("apple", 1)).await.unwrap();
    D::Db::run_in(&mut tx, "CREATE TABLE side (id BIGINT)")
        .await
        .unwrap();
    D::Db::run_in(&mut tx, &set("pear", 2)).await.unwrap();
    let outcome = tx.commit().await;
    if D::DDL_COMMITS {
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
async fn break_transaction<D: Database>(world: &World<D>, tx: &mut Fenced<'_, D::Db>) {
    let Some(kind) = D::SERVER else {
        let statement = "INSERT OR ROLLBACK INTO stock VALUES ('apple', 0)";
        D::Db::run_on(tx.connection(), statement).await.unwrap_err();
        return;
    };
    // A deadlock with another session, whose victim is the fenced transaction: it has done less,
    // or it looks first.
    if kind == crate::databases::Kind::Postgres {
        let look = "SET LOCAL deadlock_timeout = '50ms'";
        D::Db::run_on(tx.connection(), look).await.unwrap();
    }
    let pool = world.another_pool(1).await;
    let mut other = pool.acquire().await.unwrap();
    if kind == crate::databases::Kind::Postgres {
        D::Db::run_on(&mut other, "SET deadlock_timeout = '20s'")
            .await
            .unwrap();
    }
    D::Db::run_on(&mut other, "BEGIN").await.unwrap();
    for number in 0..40 {
        let sql = format!("INSERT INTO stock VALUES ('filler {number}', 1)");
        D::Db::run_on(&mut other, &sql).await.unwrap();
    }
    D::Db::run_on(&mut other, &set("plum", 7)).await.unwrap();
    let waiting = tokio::spawn(async move {
        // The fenced transaction holds the apple.
        D::Db::run_on(&mut other, &set("apple", 8)).await.unwrap();
        D::Db::run_on(&mut other, "ROLLBACK").await.unwrap();
    });
    world.until_somebody_waits().await;
    D::Db::run_on(tx.connection(), &set("plum", 9))
        .await
        .unwrap_err();
    waiting.await.unwrap();
    pool.close().await;
}

pub(super) async fn an_end_by_the_database_itself_is_noticed<D: Database>(world: Arc<World<D>>) {
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    D::Db::run_in(&mut tx, &set("apple", 1)).await.unwrap();
    break_transaction(&world, &mut tx).await;
    // The application swallowed the error and writes on, past the guard's eyes.
    let late = D::Db::run_on(tx.connection(), &set("pear", 2)).await;
    if late.is_ok() {
        assert_eq!(
            world.quantity("pear").await,
            STOCK,
            "it was committed by itself"
        );
    }
    let outcome = tx.commit().await;
    assert!(
        matches!(outcome, Err(FenceError::Ended(_) | FenceError::Database(_))),
        "{outcome:?}"
    );
    world.until_nobody_is_in_a_transaction().await;
    for sku in ["apple", "pear", "plum"] {
        assert_eq!(world.quantity(sku).await, STOCK, "{sku}");
    }
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn a_savepoint_of_the_body_may_be_rolled_back<D: Database>(world: Arc<World<D>>) {
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    D::Db::run_in(&mut tx, &set("apple", 1)).await.unwrap();
    let mut savepoint = tx.connection().begin().await.unwrap();
    D::Db::run_on(&mut savepoint, &set("pear", 2))
        .await
        .unwrap();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.connection().begin().await.unwrap();
    D::Db::run_on(&mut savepoint, &set("plum", 3))
        .await
        .unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("apple").await, 1);
    assert_eq!(world.quantity("pear").await, STOCK);
    assert_eq!(world.quantity("plum").await, 3);
    assert_eq!(world.mark(KEY).await, Some(5));
}

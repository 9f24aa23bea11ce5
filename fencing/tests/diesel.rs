//! The forms of diesel: what is special to this driver. What all adapters share stands in the
//! conformance suite.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use diesel::connection::{InstrumentationEvent, SimpleConnection as _};
use diesel::prelude::*;
use diesel::result::{DatabaseErrorKind, Error};
use highwater_fencing::diesel::{DieselFence as _, FenceError};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, migrate};

use schema::stock;

#[allow(missing_docs, unreachable_pub, reason = "written by the macro")]
mod schema {
    diesel::table! {
        stock (sku) {
            sku -> Text,
            quantity -> BigInt,
        }
    }
}

const DEDUCT: &str = "UPDATE stock SET quantity = quantity - 10";

fn connection() -> SqliteConnection {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    migrate::diesel::run(&mut conn).unwrap();
    let stock = "CREATE TABLE stock (sku TEXT NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL); \
                 INSERT INTO stock VALUES ('apple', 100)";
    conn.batch_execute(stock).unwrap();
    conn
}

fn fence(token: u64) -> Fence {
    let domain = Domain::named("tests").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain, FenceKey::new("apple").unwrap(), token)
}

fn quantity(conn: &mut SqliteConnection) -> i64 {
    let apple = stock::table.find("apple").select(stock::quantity);
    apple.first(conn).unwrap()
}

/// The hole that the page of the adapter names: there is no commit hook to refuse it with.
#[test]
fn after_a_raw_commit_writes_are_kept_and_the_commit_says_that_it_was_ended() {
    let mut conn = connection();
    let mut tx = fence(5).begin(&mut conn).unwrap();
    tx.connection().batch_execute("COMMIT").unwrap();
    tx.connection().batch_execute(DEDUCT).unwrap();
    let refused = tx.commit();
    assert!(matches!(refused, Err(FenceError::Ended(_))), "{refused:?}");
    assert_eq!(quantity(&mut conn), 90);
    // Nothing is stuck.
    fence(5).begin(&mut conn).unwrap().commit().unwrap();
}

#[test]
fn a_panic_of_the_body_rolls_back() {
    let mut conn = connection();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let body = |conn: &mut SqliteConnection| -> Result<(), FenceError> {
            conn.batch_execute(DEDUCT)?;
            panic!("as it happens")
        };
        fence(5).transaction(&mut conn, body)
    }));
    assert!(panicked.is_err());
    assert_eq!(quantity(&mut conn), 100);
    // The mark went back too, and the connection is outside of a transaction.
    fence(4).begin(&mut conn).unwrap().commit().unwrap();
}

#[test]
fn inside_a_transaction_of_diesel_a_fence_is_refused() {
    let mut conn = connection();
    let refused: Result<(), FenceError> = conn.transaction(|conn| fence(5).begin(conn)?.commit());
    assert!(
        matches!(refused, Err(FenceError::InSavepoint)),
        "{refused:?}"
    );
    conn.begin_test_transaction().unwrap();
    let refused = fence(5).begin(&mut conn).map(drop);
    assert!(
        matches!(refused, Err(FenceError::InSavepoint)),
        "{refused:?}"
    );
}

#[test]
fn a_transaction_of_diesel_inside_a_fenced_one_is_a_savepoint() {
    let mut conn = connection();
    let body = |conn: &mut SqliteConnection| -> Result<(), FenceError> {
        conn.batch_execute(DEDUCT)?;
        let undone = conn.transaction(|conn| {
            conn.batch_execute(DEDUCT)?;
            Err::<(), _>(Error::RollbackTransaction)
        });
        assert_eq!(undone, Err(Error::RollbackTransaction));
        Ok(())
    };
    fence(5).transaction(&mut conn, body).unwrap();
    assert_eq!(quantity(&mut conn), 90);
}

#[test]
fn a_body_that_fails_because_the_file_is_busy_is_run_again_and_no_other() {
    let mut conn = connection();
    let tries = |text: &str, conn: &mut SqliteConnection| {
        let mut tries = 0;
        let body = |conn: &mut SqliteConnection| -> Result<(), FenceError> {
            tries += 1;
            conn.batch_execute(DEDUCT)?;
            if tries > 1 {
                return Ok(());
            }
            let information = Box::new(text.to_owned());
            Err(Error::DatabaseError(DatabaseErrorKind::Unknown, information).into())
        };
        let done = fence(5).transaction(conn, body).is_ok();
        (done, tries)
    };
    assert_eq!(tries("database is locked", &mut conn), (true, 2));
    assert_eq!(tries("near \"SET\": syntax error", &mut conn), (false, 1));
    assert_eq!(quantity(&mut conn), 90);
}

/// Preparing the statement of the fence takes longer than running it.
#[test]
fn the_statement_of_the_fence_is_prepared_once() {
    let mut conn = connection();
    let prepared = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&prepared);
    conn.set_instrumentation(move |event: InstrumentationEvent<'_>| {
        if let InstrumentationEvent::CacheQuery { sql, .. } = event {
            assert!(sql.starts_with("INSERT INTO \"highwater_fence\""), "{sql}");
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    for token in [5, 6, 6] {
        fence(token).begin(&mut conn).unwrap().commit().unwrap();
        assert_eq!(prepared.load(Ordering::SeqCst), 1, "kept");
    }
    let stale = fence(5).begin(&mut conn);
    assert!(matches!(stale, Err(FenceError::Stale { .. })), "{stale:?}");
}

//! Commits whose outcome does not arrive: no success is ever reported for them.
//!
//! A file has no connection to lose. What comes closest on SQLite is a commit that is kept from
//! its lock by a reader, so that is what the cases do there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::TableName;
use highwater_proof::adapter::{Verdict, body};

use crate::conformance::observer::Observer;
use crate::conformance::world::{PATIENCE, STOCK, World, deduct, fence};
use crate::wait::eventually;
use crate::wire::{Plan, Wire, in_the_clear};

const KEY: &str = "stock/apple";

pub(super) async fn a_connection_lost_before_the_commit_is_no_success(world: Arc<World>) {
    let Some(session) = world.database.session else {
        return a_commit_kept_from_its_lock_is_no_success(&world, true).await;
    };
    let mut tx = world.begin(&fence(KEY, 5)).await;
    deduct(&mut *tx, "apple", 10).await.unwrap();
    let session = tx.number(session).await.unwrap().unwrap();
    let kill = world.database.kill(session);
    world.observer.run(&kill).await.unwrap();
    world.until_nobody_is_in_a_transaction().await;
    let refused = tx.commit().await;
    assert!(
        matches!(refused, Err(Verdict::Unknown(_) | Verdict::Database(_))),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
    // The pool has noticed, and goes on with a new connection.
    world.raise(&fence(KEY, 5)).await;
}

pub(super) async fn a_commit_whose_answer_is_lost_is_no_success(world: Arc<World>) {
    if world.database.server.is_none() {
        return a_commit_kept_from_its_lock_is_no_success(&world, false).await;
    }
    // At the message with the commit itself: a driver may send others before it.
    let url = in_the_clear(world.adapter, world.url());
    let proxy = Arc::new(Wire::start(&url, 0).await.unwrap());
    let source = world.source_at(proxy.url(), 1).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let commit = {
        let (source, proxy, attempts) = (source.clone(), proxy.clone(), attempts.clone());
        let body = body(move |tx| {
            let (proxy, attempts) = (proxy.clone(), attempts.clone());
            Box::pin(async move {
                attempts.fetch_add(1, Ordering::SeqCst);
                deduct(tx, "apple", 10).await?;
                proxy.plan(Plan::SwallowFromCommit);
                Ok(0)
            })
        });
        tokio::spawn(async move { source.transaction(&fence(KEY, 5), body).await })
    };
    eventually("the commit reached the server", PATIENCE, async || {
        (world.quantity("apple").await == STOCK - 10).then_some(())
    })
    .await;
    assert!(!commit.is_finished(), "it answered without an answer");
    proxy.plan(Plan::Closed);
    let refused = commit.await.unwrap().unwrap_err();
    let refused = refused.downcast_ref::<Verdict>();
    assert!(matches!(refused, Some(Verdict::Unknown(_))), "{refused:?}");
    assert_eq!(
        attempts.load(Ordering::SeqCst),
        1,
        "it must not be repeated blindly"
    );
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    drop(proxy);
    let closed = tokio::time::timeout(PATIENCE, source.close()).await;
    closed.expect("the lost connection is not kept");
}

/// In a rollback journal a reader keeps a commit from its lock. In the end it gives up, or the
/// reader does.
async fn a_commit_kept_from_its_lock_is_no_success(world: &World, gives_up: bool) {
    let url = world.url().replace("stock.db", "journal.db");
    let observer = Observer::connect(world.database.dialect, &url, 2).await;
    let observer = observer.unwrap();
    observer.migrate(&TableName::DEFAULT).await.unwrap();
    let table = "CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity BIGINT NOT NULL); \
                 INSERT INTO stock VALUES ('apple', 100)";
    observer.run(table).await.unwrap();
    let source = world.source_at(&url, 1).await;
    let read = "SELECT quantity FROM stock WHERE sku = 'apple'";

    let mut reader = observer.session().await.unwrap();
    reader.run("BEGIN").await.unwrap();
    reader.number(read).await.unwrap();

    let mut tx = source.begin(&fence(KEY, 5)).await.unwrap();
    let patience = if gives_up { 50 } else { 10_000 };
    let patience = format!("PRAGMA busy_timeout = {patience}");
    tx.run_past(&patience).await.unwrap();
    deduct(&mut *tx, "apple", 10).await.unwrap();
    let commit = tokio::spawn(tx.commit());
    if gives_up {
        let refused = commit.await.unwrap();
        assert!(matches!(refused, Err(Verdict::Database(_))), "{refused:?}");
        reader.run("COMMIT").await.unwrap();
        assert_eq!(reader.number(read).await.unwrap(), Some(STOCK));
        // Nothing is stuck: the same connection can do it again.
        let mut tx = source.begin(&fence(KEY, 5)).await.unwrap();
        deduct(&mut *tx, "apple", 10).await.unwrap();
        tx.commit().await.unwrap();
    } else {
        // It waits, and neither success nor failure is claimed while it does.
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!commit.is_finished());
        reader.run("COMMIT").await.unwrap();
        commit.await.unwrap().unwrap();
    }
    assert_eq!(reader.number(read).await.unwrap(), Some(STOCK - 10));
    source.close().await;
}

//! Statements that the server gives up, on its own or because it is told to.
//!
//! Some of these errors end the transaction and some do not, and that differs between databases.
//! What holds for all: a commit never succeeds unless the fence is in it, and what an application
//! writes after it swallowed the error is in together with the fence, or not at all.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use highwater_fencing::{Configured, FenceOptions};
use highwater_proof::adapter::{Dialect, Tx, Verdict};

use crate::conformance::world::{PATIENCE, STOCK, World, bare, fence, set};
use crate::databases::Kind;
use crate::wait::eventually;

const KEY: &str = "stock/apple";
const NO_TIMEOUT: &str = "the database has no such timeout";
const NO_SESSION: &str = "a file has no sessions";

/// A fence that is not tried again.
fn once(number: u64) -> Configured {
    let options = FenceOptions::new().retry_attempts(NonZeroU32::MIN);
    options.apply(bare(KEY, number))
}

/// Makes a session wait for locks only a short time.
fn impatience(world: &World) -> &'static [&'static str] {
    match world.database.dialect {
        // The second one is a general limit, which meets the fence in the same way.
        Dialect::Postgres => &[
            "SET lock_timeout = '80ms'",
            "SET statement_timeout = '80ms'",
        ],
        Dialect::MySql => &["SET innodb_lock_wait_timeout = 1"],
        Dialect::Sqlite => &["PRAGMA busy_timeout = 80"],
    }
}

pub(super) async fn a_fence_that_waits_too_long_leaves_nothing_open(world: Arc<World>) {
    let holder = world.begin(&fence(KEY, 5)).await;
    for impatience in impatience(&world) {
        let source = world.another_source(1).await;
        let late = once(6);
        let mut refused = Vec::new();
        if world.abilities().lends {
            refused.push(source.begin_on(impatience, &late).await.map(drop));
        }
        if world.abilities().joins {
            // What the user's own transaction wrote before goes with it.
            let before = match world.database.server {
                Some(_) => format!("{impatience}; {}", set("pear", 1)),
                None => (*impatience).to_owned(),
            };
            refused.push(source.admit(&before, &late).await.map(drop));
        }
        // With one connection it has the setting by now, unless its pool resets sessions.
        source.run(impatience).await.unwrap();
        if let Ok(refusal) = tokio::time::timeout(PATIENCE / 3, source.begin(&late)).await {
            refused.push(refusal.map(drop));
        }
        assert!(!refused.is_empty(), "no form could be tried");
        for refused in refused {
            assert!(
                matches!(refused, Err(Verdict::Database(_))),
                "{impatience}: {refused:?}"
            );
        }
        source.run(&set("plum", 3)).await.ok();
        source.close().await;
    }
    holder.commit().await.unwrap();
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("pear").await, STOCK);
    assert_eq!(world.mark(KEY).await, Some(5));
    world.raise(&fence(KEY, 6)).await;
}

/// The application swallowed the error of a statement, writes on, and commits.
async fn swallow(world: &World, mut tx: Box<dyn Tx>, past: bool) {
    let late = set("pear", 2);
    let late = if past {
        tx.run_past(&late).await
    } else {
        tx.run(&late).await
    };
    let outcome = tx.commit().await;
    if !past && world.abilities().sees_errors {
        assert!(
            matches!(outcome, Err(Verdict::Poisoned { .. })),
            "{outcome:?}"
        );
    }
    let found = (
        world.quantity("apple").await,
        world.quantity("pear").await,
        world.mark(KEY).await,
    );
    if outcome.is_ok() {
        // The error had left the transaction alive, with its fence.
        late.unwrap();
        assert!(!world.database.aborts_on_error);
        assert_eq!(found, (1, 2, Some(5)));
    } else {
        assert_eq!(found, (STOCK, STOCK, None), "{outcome:?}");
    }
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn a_write_that_waits_too_long_is_no_unfenced_commit(world: Arc<World>) {
    if world.database.server.is_none() {
        return world.not_applicable("a file has one writer, who waits for nobody");
    }
    for past in [false, true] {
        let mut other = world.observer.session().await.unwrap();
        other.run("BEGIN").await.unwrap();
        other.run(&set("plum", 7)).await.unwrap();
        let mut tx = world.begin(&fence(KEY, 5)).await;
        tx.run(&set("apple", 1)).await.unwrap();
        tx.run(impatience(&world)[0]).await.unwrap();
        let late = set("plum", 9);
        let error = if past {
            tx.run_past(&late).await
        } else {
            tx.run(&late).await
        };
        error.unwrap_err();
        other.run("ROLLBACK").await.unwrap();
        swallow(&world, tx, past).await;
        reset(&world).await;
    }
}

/// As it was before the case.
async fn reset(world: &World) {
    let observer = &world.observer;
    observer.run("DELETE FROM highwater_fence").await.unwrap();
    let stock = format!("UPDATE stock SET quantity = {STOCK}");
    observer.run(&stock).await.unwrap();
}

/// Takes a long time.
fn slow(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => "SELECT pg_sleep(30)",
        Dialect::MySql => {
            "SELECT COUNT(*) FROM information_schema.columns a, information_schema.columns b, \
             information_schema.columns c, information_schema.columns d"
        }
        Dialect::Sqlite => unreachable!("a file has no such statement"),
    }
}

pub(super) async fn a_statement_that_takes_too_long_is_no_unfenced_commit(world: Arc<World>) {
    let Some(slow) = slow_or(&world) else {
        return world.not_applicable(NO_TIMEOUT);
    };
    let limited = match world.database.server {
        Some(Kind::Postgres) => format!("SET LOCAL statement_timeout = '60ms'; {slow}"),
        Some(Kind::MySql) => slow.replace("SELECT", "SELECT /*+ MAX_EXECUTION_TIME(60) */"),
        Some(Kind::MariaDb) => format!("SET STATEMENT max_statement_time = 0.06 FOR {slow}"),
        None => return world.not_applicable(NO_TIMEOUT),
    };
    for past in [false, true] {
        let mut tx = world.begin(&fence(KEY, 5)).await;
        tx.run(&set("apple", 1)).await.unwrap();
        let error = if past {
            tx.run_past(&limited).await
        } else {
            tx.run(&limited).await
        };
        error.unwrap_err();
        swallow(&world, tx, past).await;
        reset(&world).await;
    }
}

/// The slow statement, where there is a server to run it.
fn slow_or(world: &World) -> Option<&'static str> {
    world.database.server?;
    Some(slow(world.database.dialect))
}

/// Starts a slow statement in a fenced transaction, and does `with` to its session meanwhile.
async fn disturbed(world: &Arc<World>, slow: &'static str, with: &str) -> Box<dyn Tx> {
    let session = world.database.session.unwrap();
    let mut tx = world.begin(&fence(KEY, 5)).await;
    tx.run(&set("apple", 1)).await.unwrap();
    let session = tx.number(session).await.unwrap().unwrap();
    let running = tokio::spawn(async move {
        let outcome = tx.run(slow).await;
        (tx, outcome)
    });
    let active = match world.database.dialect {
        Dialect::Postgres => format!(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = {session} AND state = 'active'"
        ),
        _ => format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {session} \
             AND command IN ('Query', 'Execute')"
        ),
    };
    eventually("the statement runs", PATIENCE, async || {
        (world.number(&active).await == 1).then_some(())
    })
    .await;
    let with = with.replace("{session}", &session.to_string());
    world.observer.run(&with).await.unwrap();
    let (tx, outcome) = running.await.unwrap();
    outcome.unwrap_err();
    tx
}

pub(super) async fn a_cancelled_statement_is_no_unfenced_commit(world: Arc<World>) {
    let Some(slow) = slow_or(&world) else {
        return world.not_applicable(NO_SESSION);
    };
    let cancel = match world.database.dialect {
        Dialect::Postgres => "SELECT pg_cancel_backend({session})",
        _ => "KILL QUERY {session}",
    };
    let tx = disturbed(&world, slow, cancel).await;
    swallow(&world, tx, false).await;
}

pub(super) async fn a_session_killed_in_the_middle_of_a_statement_is_no_commit(world: Arc<World>) {
    let Some(slow) = slow_or(&world) else {
        return world.not_applicable(NO_SESSION);
    };
    let kill = match world.database.dialect {
        Dialect::Postgres => "SELECT pg_terminate_backend({session})",
        _ => "KILL {session}",
    };
    let mut tx = disturbed(&world, slow, kill).await;
    // A driver that connected again by itself would write outside of the fence here.
    tx.run(&set("pear", 2)).await.unwrap_err();
    tx.commit().await.unwrap_err();
    let next = once(6);
    eventually("the server has ended the session", PATIENCE, async || {
        let free = tokio::time::timeout(Duration::from_secs(1), world.source.begin(&next));
        let tx = free.await.ok()?.ok()?;
        tx.rollback().await.ok()
    })
    .await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.quantity("pear").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
    world.until_nobody_is_in_a_transaction().await;
    // The source goes on with a new connection.
    for _ in 0..4 {
        world.raise(&fence(KEY, 6)).await;
    }
}

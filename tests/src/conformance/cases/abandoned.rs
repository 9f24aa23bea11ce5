//! Futures that are dropped: at every await point, the connections must stay clean.
//!
//! A future is polled N times and then dropped, for every N until it completes; once right after
//! the N-th poll, so that its request is under way, and once after it was woken, so that the answer
//! has come but was not read. After each, one connection must be usable and free of a transaction,
//! the key must be free, and the deduction must be in as a whole or not at all.
//!
//! A driver that blocks does not stop when its caller goes away: there it must come to its end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use highwater_proof::adapter::{End, Form, Source, Verdict};

use crate::conformance::proxy::Proxy;
use crate::conformance::world::{PATIENCE, STOCK, World, deduct, fence, selling, verdict};
use crate::wait::eventually;

const KEY: &str = "stock/apple";
/// How long the proxy holds an answer back.
const ANSWER_TIME: Duration = Duration::from_millis(3);
/// No form needs that many polls; so many mean that it never completes.
const MOST_POLLS: u32 = 400;

/// Polls the future `polls` times, waiting for its wake-up in between, and gives its output if it
/// came; then drops it. With `woken` it waits for one more wake-up before that. Polls before it
/// has `started` do not count.
async fn polled<T>(
    future: impl Future<Output = T>,
    polls: u32,
    woken: bool,
    started: &AtomicBool,
) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    let waiting = std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        let polled = future.as_mut().poll(cx);
        if started.load(Ordering::SeqCst) {
            left -= 1;
        }
        match polled {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Gives the next poll, or the drop, to the next wake-up or to this very moment.
            Poll::Pending if left > 0 || woken => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        }
    });
    // Nobody wakes a future that waits for what never comes, so this has to have an end.
    tokio::time::timeout(Duration::from_secs(2), waiting)
        .await
        .ok()
        .flatten()
}

/// What is abandoned.
#[derive(Clone, Copy)]
enum What {
    Closure,
    Guard(Form, End),
}

impl What {
    fn attempt<'a>(
        self,
        source: &'a dyn Source,
        number: u64,
        started: &'a AtomicBool,
    ) -> BoxFuture<'a, Result<(), Verdict>> {
        Box::pin(async move {
            let fence = fence(KEY, number);
            match self {
                Self::Closure => {
                    started.store(true, Ordering::SeqCst);
                    let done = source.transaction(&fence, selling("apple", 1)).await;
                    done.map(drop).map_err(verdict)
                }
                Self::Guard(form, end) => {
                    let write = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'apple'";
                    source.walk(form, &fence, write, end, started).await
                }
            }
        })
    }

    fn commits(self) -> bool {
        matches!(self, Self::Closure | Self::Guard(_, End::Commit))
    }
}

/// Abandons it at every await point, and checks the world after each.
async fn abandon_everywhere(world: &World, what: What) {
    // With answers that take a while no await point is passed by because the answer was there.
    let proxied = match world.database.server {
        Some(_) => Some(Proxy::start(world.url(), ANSWER_TIME).await.unwrap()),
        None => None,
    };
    let url = proxied.as_ref().map_or(world.url(), |(_, url)| url);
    for woken in [false, true] {
        let source = world.source_at(url, 1).await;
        let mut polls = 0;
        loop {
            assert!(polls < MOST_POLLS, "it does not complete");
            polls += 1;
            let mark = world.mark(KEY).await.unwrap_or(0);
            let number = mark + 2;
            let before = world.quantity("apple").await;
            let started = AtomicBool::new(false);
            let attempt = what.attempt(&*source, number, &started);
            let done = polled(attempt, polls, woken, &started).await;
            if let Some(Err(error)) = &done {
                panic!("poll {polls}: {error:?}");
            }
            let at = format!(
                "after {polls} polls, woken: {woken}, done: {}",
                done.is_some()
            );
            let state = async || {
                let mark = world.mark(KEY).await.unwrap_or(0);
                (world.quantity("apple").await, mark)
            };
            let goal = if what.commits() {
                (before - 1, number)
            } else {
                (before, mark)
            };
            if !world.abilities().cancels {
                eventually("what was begun is done", PATIENCE, async || {
                    (state().await == goal).then_some(())
                })
                .await;
            }
            assert_clean(world, &*source, &at).await;
            let now = state().await;
            assert!(
                now == goal || now == (before, mark),
                "half of it is in, {at}: {before} -> {now:?}"
            );
            if done.is_some() {
                assert_eq!(now, goal, "{at}");
                break;
            }
        }
        assert!(
            polls > 2 || world.database.server.is_none() || !world.abilities().cancels,
            "its await points were not reached"
        );
        source.close().await;
    }
}

/// The one connection of the source is usable, nothing is left open, and the key is free.
async fn assert_clean(world: &World, source: &dyn Source, at: &str) {
    // The server notices a closed connection in its own time.
    world.until_nobody_is_in_a_transaction().await;
    let before = world.quantity("pear").await;
    let plain = "UPDATE stock SET quantity = quantity + 1 WHERE sku = 'pear'";
    let ran = tokio::time::timeout(PATIENCE, source.run(plain)).await;
    let ran = ran.unwrap_or_else(|_| panic!("there is no connection, {at}"));
    ran.unwrap_or_else(|error| panic!("{at}: {error}"));
    let now = world.quantity("pear").await;
    assert_eq!(
        now,
        before + 1,
        "a plain write is not visible elsewhere, {at}"
    );
    let probe = fence(KEY, u64::from(u32::MAX));
    let free = tokio::time::timeout(PATIENCE, world.source.begin(&probe)).await;
    let tx = free
        .unwrap_or_else(|_| panic!("the mark is still held, {at}"))
        .unwrap();
    tx.rollback().await.unwrap();
}

pub(super) async fn a_closure_abandoned_at_every_await_leaves_the_pool_clean(world: Arc<World>) {
    abandon_everywhere(&world, What::Closure).await;
}

pub(super) async fn a_guard_abandoned_at_every_await_leaves_the_pool_clean(world: Arc<World>) {
    abandon_everywhere(&world, What::Guard(Form::Begin, End::Commit)).await;
}

pub(super) async fn a_joined_transaction_abandoned_at_every_await_leaves_the_pool_clean(
    world: Arc<World>,
) {
    if !world.abilities().joins {
        return world.not_applicable("a transaction of the user's cannot be joined");
    }
    abandon_everywhere(&world, What::Guard(Form::Join, End::Commit)).await;
}

pub(super) async fn a_lent_connection_abandoned_at_every_await_leaves_the_pool_clean(
    world: Arc<World>,
) {
    if !world.abilities().lends {
        return world.not_applicable("a connection cannot be lent");
    }
    abandon_everywhere(&world, What::Guard(Form::Lend, End::Commit)).await;
}

pub(super) async fn a_rollback_abandoned_at_every_await_leaves_the_pool_clean(world: Arc<World>) {
    abandon_everywhere(&world, What::Guard(Form::Begin, End::Rollback)).await;
}

pub(super) async fn a_closure_abandoned_while_it_waits_for_a_mark_leaves_the_pool_clean(
    world: Arc<World>,
) {
    let source = world.another_source(1).await;
    let holder = world.begin(&fence(KEY, 5)).await;
    let task = {
        let source = source.clone();
        tokio::spawn(async move {
            let newer = fence(KEY, 6);
            let done = source.transaction(&newer, selling("apple", 1)).await;
            done.map_err(verdict)
        })
    };
    world.until_somebody_waits().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    holder.commit().await.unwrap();
    if world.abilities().cancels {
        assert_clean(&world, &*source, "while it waited").await;
        assert_eq!(world.quantity("apple").await, STOCK);
        assert_eq!(world.mark(KEY).await, Some(5));
    } else {
        eventually("what was begun is done", PATIENCE, async || {
            (world.mark(KEY).await == Some(6)).then_some(())
        })
        .await;
        assert_eq!(world.quantity("apple").await, STOCK - 1);
        assert_clean(&world, &*source, "after it was done").await;
    }
}

pub(super) async fn a_dropped_guard_rolls_back(world: Arc<World>) {
    let source = world.another_source(1).await;
    for number in 1..4 {
        let fence = fence(KEY, number);
        let mut tx = source.begin(&fence).await.unwrap();
        deduct(&mut *tx, "apple", 1).await.unwrap();
        drop(tx);
        assert_clean(&world, &*source, "a dropped guard").await;
        if world.abilities().lends {
            let mut tx = source.begin_on("", &fence).await.unwrap();
            deduct(&mut *tx, "apple", 1).await.unwrap();
            drop(tx);
            assert_clean(&world, &*source, "a dropped guard over a lent connection").await;
        }
        if world.abilities().joins {
            let mut tx = source.admit("", &fence).await.unwrap();
            deduct(&mut *tx, "apple", 1).await.unwrap();
            drop(tx);
            assert_clean(
                &world,
                &*source,
                "a dropped guard over a joined transaction",
            )
            .await;
        }
    }
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
}

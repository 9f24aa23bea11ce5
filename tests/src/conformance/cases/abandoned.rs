//! Futures that are dropped: at every await point, the pool must stay clean.
//!
//! A future is polled N times and then dropped, for every N until it completes; once right after
//! the N-th poll, so that its request is under way, and once after it was woken, so that the answer
//! has come but was not read. After each, one connection must be usable and free of a transaction,
//! the key must be free, and the deduction must be in as a whole or not at all.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use highwater_fencing::Fence;
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::{Pool, Transaction};

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::proxy::Proxy;
use crate::conformance::world::{PATIENCE, STOCK, World, deduct, fence};

const KEY: &str = "stock/apple";
/// How long the proxy holds an answer back.
const ANSWER_TIME: Duration = Duration::from_millis(3);
/// No form needs that many polls; so many mean that it never completes.
const MOST_POLLS: u32 = 400;

/// Polls the future `polls` times, waiting for its wake-up in between, and gives its output if it
/// came; then drops it. With `woken` it waits for one more wake-up before that.
async fn polled<T>(future: impl Future<Output = T>, polls: u32, woken: bool) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    let waiting = std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
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

type Attempt = BoxFuture<'static, Result<(), FenceError>>;

/// Abandons what `form` makes of what was prepared, at every await point, and checks the world
/// after each. What is prepared is not abandoned.
async fn abandon_everywhere<D: Database, P>(
    world: &World<D>,
    prepare: impl AsyncFn(&Pool<D::Db>) -> P,
    form: impl Fn(P, Fence) -> Attempt,
    commits: bool,
) {
    // With answers that take a while no await point is passed by because the answer was there.
    let proxied = match D::SERVER {
        Some(_) => Some(Proxy::start(world.url(), ANSWER_TIME).await.unwrap()),
        None => None,
    };
    let url = proxied.as_ref().map_or(world.url(), |(_, url)| url);
    for woken in [false, true] {
        let options = PoolOptions::new().max_connections(1);
        let pool = options
            .acquire_timeout(PATIENCE)
            .connect(url)
            .await
            .unwrap();
        let mut polls = 0;
        loop {
            assert!(polls < MOST_POLLS, "it does not complete");
            polls += 1;
            let mark = world.mark(KEY).await.unwrap_or(0);
            let number = mark + 2;
            let before = world.quantity("apple").await;
            let prepared = prepare(&pool).await;
            let done = polled(form(prepared, fence(KEY, number)), polls, woken).await;
            if let Some(Err(error)) = &done {
                panic!("poll {polls}: {error:?}");
            }
            let at = format!(
                "after {polls} polls, woken: {woken}, done: {}",
                done.is_some()
            );
            assert_clean(world, &pool, &at).await;
            let now = (
                world.quantity("apple").await,
                world.mark(KEY).await.unwrap_or(0),
            );
            let applied = now == (before - 1, number);
            let untouched = now == (before, mark);
            assert!(
                applied || untouched,
                "half of it is in, {at}: {before} -> {now:?}"
            );
            if done.is_some() {
                assert_eq!(applied, commits, "{at}");
                break;
            }
        }
        assert!(
            polls > 2 || D::SERVER.is_none(),
            "its await points were not reached"
        );
        pool.close().await;
    }
}

/// The one connection of the pool is usable, nothing is left open, and the key is free.
async fn assert_clean<D: Database>(world: &World<D>, pool: &Pool<D::Db>, at: &str) {
    // The server notices a closed connection in its own time.
    world.until_nobody_is_in_a_transaction().await;
    let before = world.quantity("pear").await;
    let plain = "UPDATE stock SET quantity = quantity + 1 WHERE sku = 'pear'";
    let ran = tokio::time::timeout(PATIENCE, D::Db::run(pool, plain)).await;
    let ran = ran.unwrap_or_else(|_| panic!("the pool gives no connection, {at}"));
    assert_eq!(ran.unwrap_or_else(|error| panic!("{at}: {error}")), 1);
    let now = world.quantity("pear").await;
    assert_eq!(
        now,
        before + 1,
        "a plain write is not visible elsewhere, {at}"
    );
    let probe = fence(KEY, u64::from(u32::MAX));
    let free = tokio::time::timeout(PATIENCE, probe.begin(&world.pool)).await;
    let tx = free
        .unwrap_or_else(|_| panic!("the mark is still held, {at}"))
        .unwrap();
    tx.rollback().await.unwrap();
}

pub(super) async fn a_closure_abandoned_at_every_await_leaves_the_pool_clean<D: Database>(
    world: Arc<World<D>>,
) {
    let form = |pool: Pool<D::Db>, fence: Fence| -> Attempt {
        Box::pin(async move {
            fence
                .transaction(&pool, async |tx| {
                    deduct::<D>(tx, "apple", 1).await?;
                    Ok(())
                })
                .await
        })
    };
    abandon_everywhere(&world, async |pool: &Pool<_>| pool.clone(), form, true).await;
}

pub(super) async fn a_guard_abandoned_at_every_await_leaves_the_pool_clean<D: Database>(
    world: Arc<World<D>>,
) {
    let form = |pool: Pool<D::Db>, fence: Fence| -> Attempt {
        Box::pin(async move {
            let mut tx = fence.begin(&pool).await?;
            deduct::<D>(&mut tx, "apple", 1).await?;
            tx.commit().await
        })
    };
    abandon_everywhere(&world, async |pool: &Pool<_>| pool.clone(), form, true).await;
}

pub(super) async fn a_joined_transaction_abandoned_at_every_await_leaves_the_pool_clean<
    D: Database,
>(
    world: Arc<World<D>>,
) {
    let form = |tx: Transaction<'static, D::Db>, fence: Fence| -> Attempt {
        Box::pin(async move {
            let mut tx = fence.admit(tx).await?;
            // No prepared statement: sqlx loses step with MySQL when one is dropped while it is
            // being prepared, and the guard cannot close a connection that the user's transaction
            // owns.
            let write = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'apple'";
            D::Db::run_in(&mut tx, write).await?;
            tx.commit().await
        })
    };
    let prepare = async |pool: &Pool<D::Db>| pool.begin().await.unwrap();
    abandon_everywhere(&world, prepare, form, true).await;
}

pub(super) async fn a_lent_connection_abandoned_at_every_await_leaves_the_pool_clean<
    D: Database,
>(
    world: Arc<World<D>>,
) {
    let form = |mut conn: PoolConnection<D::Db>, fence: Fence| -> Attempt {
        Box::pin(async move {
            let mut tx = fence.begin_on(&mut conn).await?;
            deduct::<D>(&mut tx, "apple", 1).await?;
            tx.commit().await
        })
    };
    let prepare = async |pool: &Pool<D::Db>| pool.acquire().await.unwrap();
    abandon_everywhere(&world, prepare, form, true).await;
}

pub(super) async fn a_rollback_abandoned_at_every_await_leaves_the_pool_clean<D: Database>(
    world: Arc<World<D>>,
) {
    let form = |pool: Pool<D::Db>, fence: Fence| -> Attempt {
        Box::pin(async move {
            let mut tx = fence.begin(&pool).await?;
            deduct::<D>(&mut tx, "apple", 1).await?;
            tx.rollback().await
        })
    };
    abandon_everywhere(&world, async |pool: &Pool<_>| pool.clone(), form, false).await;
}

pub(super) async fn a_closure_abandoned_while_it_waits_for_a_mark_leaves_the_pool_clean<
    D: Database,
>(
    world: Arc<World<D>>,
) {
    let pool = world.another_pool(1).await;
    let holder = fence(KEY, 5).begin(&world.pool).await.unwrap();
    let task = {
        let pool = pool.clone();
        tokio::spawn(async move {
            let body = fence(KEY, 6);
            let body = body.transaction(&pool, async |tx| {
                deduct::<D>(tx, "apple", 1).await.map_err(FenceError::from)
            });
            body.await
        })
    };
    world.until_somebody_waits().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    holder.commit().await.unwrap();
    assert_clean(&world, &pool, "while it waited").await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, Some(5));
}

pub(super) async fn a_dropped_guard_rolls_back<D: Database>(world: Arc<World<D>>) {
    let pool = world.another_pool(1).await;
    for number in 1..4 {
        let mut tx = fence(KEY, number).begin(&pool).await.unwrap();
        deduct::<D>(&mut tx, "apple", 1).await.unwrap();
        drop(tx);
        assert_clean(&world, &pool, "a dropped guard").await;
        let mut conn = pool.acquire().await.unwrap();
        let mut tx = fence(KEY, number).begin_on(&mut conn).await.unwrap();
        deduct::<D>(&mut tx, "apple", 1).await.unwrap();
        drop(tx);
        drop(conn);
        assert_clean(&world, &pool, "a dropped guard over a lent connection").await;
        let tx = pool.begin().await.unwrap();
        let mut tx = fence(KEY, number).admit(tx).await.unwrap();
        deduct::<D>(&mut tx, "apple", 1).await.unwrap();
        drop(tx);
        assert_clean(&world, &pool, "a dropped guard over a joined transaction").await;
    }
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
}

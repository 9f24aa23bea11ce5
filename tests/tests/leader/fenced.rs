//! What a leader writes goes through the fence, and one that was replaced writes nothing.

use std::sync::Arc;
use std::time::Duration;

use highwater_client::Fence;
use highwater_client::leader::{
    Backend, LeaderElector, LeaderGroupElector, LeaderGroupOptions, LeaderGuard, LeaderOptions,
};
use highwater_fencing::FenceError;
use highwater_fencing::migrate::sqlite as migrate;
use highwater_fencing::sqlx::SqlxFence as _;
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

type AppError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) async fn base() -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    migrate::run(&pool).await.unwrap();
    let table = sqlx::query("CREATE TABLE closed (month INT, by_whom TEXT)");
    table.execute(&pool).await.unwrap();
    pool
}

/// Whether the write was admitted.
pub(crate) async fn close(pool: &SqlitePool, fence: Fence, by_whom: &str) -> bool {
    let written = fence.transaction(pool, async |tx| {
        let insert = sqlx::query("INSERT INTO closed VALUES (11, ?)").bind(by_whom);
        insert.execute(&mut *tx).await?;
        Ok::<_, AppError>(())
    });
    match written.await {
        Ok(()) => true,
        Err(error) => {
            let fence = error.downcast_ref::<FenceError<sqlx::Error>>();
            assert!(matches!(fence, Some(FenceError::Stale { .. })), "{error:?}");
            false
        }
    }
}

pub(crate) async fn closed_by(pool: &SqlitePool) -> Vec<String> {
    let rows = sqlx::query_scalar("SELECT by_whom FROM closed ORDER BY rowid");
    rows.fetch_all(pool).await.unwrap()
}

/// Backends for nodes.
trait Backends: AsyncFn(&str) -> Arc<dyn Backend> {}
impl<F: AsyncFn(&str) -> Arc<dyn Backend>> Backends for F {}

/// Waits for its turn, if there is somebody else.
async fn leads(backends: &impl Backends, node: &str, lease: Duration) -> LeaderGuard {
    let options = LeaderOptions::builder().wait(Duration::from_secs(20));
    let options = options.lease(lease).node(node).build().unwrap();
    let elector = LeaderElector::new(backends(node).await, options);
    elector.try_acquire("invoice").await.unwrap().unwrap()
}

/// ShedLock: with JDBC there is no fence, and a job that was overtaken writes all the same.
async fn a_write_of_a_leader_that_was_replaced_is_refused_by_the_database(backends: impl Backends) {
    let pool = base().await;
    let old = leads(&backends, "a", Duration::from_millis(300)).await;
    // The fence is at hand in the action, whatever became of the lease meanwhile.
    let stale = old.context().fence().unwrap();
    assert!(close(&pool, stale.clone(), "a, while it led").await);
    let new = leads(&backends, "b", Duration::from_secs(60)).await;
    assert!(close(&pool, new.fence(), "b").await);
    assert!(!close(&pool, stale, "a, although it was replaced").await);
    assert!(close(&pool, new.fence(), "b again").await);
    assert_eq!(closed_by(&pool).await, ["a, while it led", "b", "b again"]);
}

async fn leaders_of_one_group_do_not_fence_each_other_out(backends: impl Backends) {
    let pool = base().await;
    let options = LeaderGroupOptions::builder().slots(2).wait(Duration::ZERO);
    let group = LeaderGroupElector::new(backends("a").await, options.build().unwrap());
    let first = group.try_acquire("invoice").await.unwrap().unwrap();
    let second = group.try_acquire("invoice").await.unwrap().unwrap();
    assert!(close(&pool, second.fence(), "second").await);
    // A lower token, of another slot.
    assert!(close(&pool, first.fence(), "first").await);
    let stale = first.fence();
    first.release().await;
    let next = group.try_acquire("invoice").await.unwrap().unwrap();
    assert!(close(&pool, next.fence(), "the next of the first slot").await);
    assert!(!close(&pool, stale, "first, although it was replaced").await);
    assert!(close(&pool, second.fence(), "second again").await);
}

/// After a restart without a memory the tokens cannot be compared: it fails closed.
async fn a_leader_of_another_domain_writes_nothing_before_an_operator_says_so(
    backends: impl Backends,
    restart: impl AsyncFnOnce(),
) {
    let pool = base().await;
    let old = leads(&backends, "a", Duration::from_secs(60)).await;
    assert!(close(&pool, old.fence(), "a").await);
    restart().await;
    let new = leads(&backends, "b", Duration::from_secs(60)).await;
    let fence = new.fence();
    let refused = fence.transaction(&pool, async |_| Ok::<_, AppError>(()));
    let refused = refused.await.unwrap_err();
    let refused = refused.downcast_ref::<FenceError<sqlx::Error>>();
    assert!(
        matches!(refused, Some(FenceError::DomainMismatch { .. })),
        "{refused:?}"
    );
}

mod in_process {
    use std::sync::Arc;

    use highwater_client::leader::{Backend, InProcess};

    fn backends() -> (InProcess, impl super::Backends) {
        let service = InProcess::new();
        let backend: Arc<dyn Backend> = Arc::new(service.clone());
        (service, async move |_: &str| Arc::clone(&backend))
    }

    #[tokio::test]
    async fn a_write_of_a_leader_that_was_replaced_is_refused_by_the_database() {
        let backends = backends().1;
        super::a_write_of_a_leader_that_was_replaced_is_refused_by_the_database(backends).await;
    }

    #[tokio::test]
    async fn leaders_of_one_group_do_not_fence_each_other_out() {
        super::leaders_of_one_group_do_not_fence_each_other_out(backends().1).await;
    }

    #[tokio::test]
    async fn a_leader_of_another_domain_writes_nothing_before_an_operator_says_so() {
        let (service, backends) = backends();
        let restart = async || service.restart();
        super::a_leader_of_another_domain_writes_nothing_before_an_operator_says_so(
            backends, restart,
        )
        .await;
    }
}

mod at_a_server {
    use highwater_client::leader::contract::Service;

    use crate::world::World;

    #[tokio::test]
    async fn a_write_of_a_leader_that_was_replaced_is_refused_by_the_database() {
        let world = World::highwater().await;
        let backends = async |node: &str| world.backend(node).await;
        super::a_write_of_a_leader_that_was_replaced_is_refused_by_the_database(backends).await;
    }

    #[tokio::test]
    async fn leaders_of_one_group_do_not_fence_each_other_out() {
        let world = World::highwater().await;
        let backends = async |node: &str| world.backend(node).await;
        super::leaders_of_one_group_do_not_fence_each_other_out(backends).await;
    }

    #[tokio::test]
    async fn a_leader_of_another_domain_writes_nothing_before_an_operator_says_so() {
        let world = World::highwater().await;
        let backends = async |node: &str| world.backend(node).await;
        let restart = async || {
            world.restart().await;
        };
        super::a_leader_of_another_domain_writes_nothing_before_an_operator_says_so(
            backends, restart,
        )
        .await;
    }
}

//! The forms in which a fence meets a transaction.

use std::sync::Arc;

use highwater_fencing::sqlx::{FenceError, Fenced, SqlxFence as _};
use highwater_fencing::{FenceOptions, TableName};
use sqlx::Connection as _;

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::world::{STOCK, World, deduct, fence};

const KEY: &str = "stock/apple";

/// Raises the mark to 7.
async fn newer_holder<D: Database>(world: &World<D>) {
    fence(KEY, 7)
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
}

pub(super) async fn the_guard_commits_what_was_written<D: Database>(world: Arc<World<D>>) {
    let mut tx = fence(KEY, 5).begin(&world.pool).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    assert_eq!(
        world.quantity("apple").await,
        STOCK,
        "visible before the commit"
    );
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(5));
}

pub(super) async fn a_joined_transaction_commits_what_was_written<D: Database>(
    world: Arc<World<D>>,
) {
    let tx = world.pool.begin().await.unwrap();
    let mut tx = fence(KEY, 5).admit(tx).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(5));

    let tx = world.pool.begin().await.unwrap();
    let mut tx = fence(KEY, 6).admit(tx).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark(KEY).await, Some(5));
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn a_joined_transaction_is_refused_when_stale_and_rolled_back<D: Database>(
    world: Arc<World<D>>,
) {
    newer_holder(&world).await;
    for _ in 0..3 {
        let tx = world.pool.begin().await.unwrap();
        let refused = fence(KEY, 6).admit(tx).await;
        assert!(
            matches!(refused, Err(FenceError::Stale { .. })),
            "{refused:?}"
        );
        world.until_nobody_is_in_a_transaction().await;
    }
    // The connections are usable, and commit by themselves.
    let pool = world.another_pool(1).await;
    let refused = fence(KEY, 6).admit(pool.begin().await.unwrap()).await;
    refused.unwrap_err();
    D::Db::run(&pool, "UPDATE stock SET quantity = 1 WHERE sku = 'pear'")
        .await
        .unwrap();
    assert_eq!(world.quantity("pear").await, 1);
}

pub(super) async fn a_fence_inside_a_savepoint_is_refused<D: Database>(world: Arc<World<D>>) {
    let mut tx = world.pool.begin().await.unwrap();
    let nested = tx.begin().await.unwrap();
    let refused = fence(KEY, 5).admit(nested).await;
    assert!(
        matches!(refused, Err(FenceError::InSavepoint)),
        "{refused:?}"
    );
    drop(refused);
    // Only the savepoint is gone; the user's transaction goes on.
    D::Db::run_on(&mut tx, "UPDATE stock SET quantity = 1 WHERE sku = 'pear'")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(world.quantity("pear").await, 1);
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn a_fence_inside_a_raw_savepoint_is_refused_or_cannot_be_lost<D: Database>(
    world: Arc<World<D>>,
) {
    let mut tx = world.pool.begin().await.unwrap();
    D::Db::run_on(&mut tx, "SAVEPOINT hidden").await.unwrap();
    match fence(KEY, 5).admit(tx).await {
        Err(FenceError::InSavepoint) => assert!(D::NOTICES_RAW_SAVEPOINT),
        Err(error) => panic!("{error:?}"),
        Ok(mut tx) => {
            assert!(
                !D::NOTICES_RAW_SAVEPOINT,
                "the fence was taken inside a savepoint"
            );
            // Rolling it back takes the fence away: what is written then must not be committed.
            D::Db::run_on(tx.connection(), "ROLLBACK TO SAVEPOINT hidden")
                .await
                .unwrap();
            D::Db::run_on(tx.connection(), "UPDATE stock SET quantity = 1")
                .await
                .unwrap();
            let refused = tx.commit().await;
            assert!(matches!(refused, Err(FenceError::Ended(_))), "{refused:?}");
        }
    }
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("apple").await, STOCK);
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn a_lent_connection_is_given_back_clean<D: Database>(world: Arc<World<D>>) {
    let pool = world.another_pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let write = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'pear'";

    let mut tx = fence(KEY, 5).begin_on(&mut conn).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    tx.commit().await.unwrap();
    D::Db::run_on(&mut conn, write).await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.quantity("pear").await, STOCK - 1);

    let mut tx = fence(KEY, 6).begin_on(&mut conn).await.unwrap();
    deduct::<D>(&mut tx, "apple", 10).await.unwrap();
    tx.rollback().await.unwrap();
    D::Db::run_on(&mut conn, write).await.unwrap();
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.quantity("pear").await, STOCK - 2);

    let refused = fence(KEY, 4).begin_on(&mut conn).await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    drop(refused);
    D::Db::run_on(&mut conn, write).await.unwrap();
    assert_eq!(world.quantity("pear").await, STOCK - 3);
    drop(conn);
    D::Db::run(&pool, write).await.unwrap();
    assert_eq!(world.quantity("pear").await, STOCK - 4);
}

pub(super) async fn a_lent_connection_inside_a_transaction_is_refused<D: Database>(
    world: Arc<World<D>>,
) {
    let mut conn = world.pool.acquire().await.unwrap();
    // sqlx forgets a transaction of raw SQL, so begin one the way sqlx sees.
    let open = conn.begin().await.unwrap();
    std::mem::forget(open);
    let refused = fence(KEY, 5).begin_on(&mut conn).await;
    assert!(
        matches!(refused, Err(FenceError::InSavepoint)),
        "{refused:?}"
    );
    drop(refused);
    drop(conn.detach());
    assert_eq!(world.mark(KEY).await, None);
}

pub(super) async fn another_table_has_marks_of_its_own<D: Database>(world: Arc<World<D>>) {
    newer_holder(&world).await;
    let table = TableName::new("app_marks").unwrap();
    D::Db::migrate(&world.pool, &table).await.unwrap();
    let options = FenceOptions::new().table("app_marks").unwrap();
    let older = options.apply(fence(KEY, 3));
    older
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let joined = older
        .admit(world.pool.begin().await.unwrap())
        .await
        .unwrap();
    joined.commit().await.unwrap();
    assert_eq!(world.mark_in("app_marks", "token", KEY).await, Some(3));
    assert_eq!(world.mark(KEY).await, Some(7));
    let refused = options.apply(fence(KEY, 2)).begin(&world.pool).await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
}

pub(super) async fn a_missing_table_is_named<D: Database>(world: Arc<World<D>>) {
    let table = TableName::new("not_there").unwrap();
    let missing = FenceOptions::new()
        .table_name(table.clone())
        .apply(fence(KEY, 3));
    let mut conn = world.pool.acquire().await.unwrap();
    let outcomes = [
        missing.begin(&world.pool).await.map(drop),
        missing
            .admit(world.pool.begin().await.unwrap())
            .await
            .map(drop),
        missing.begin_on(&mut conn).await.map(drop),
        missing
            .transaction(&world.pool, async |_tx| Ok::<_, FenceError>(()))
            .await,
    ];
    for refused in outcomes {
        let Err(FenceError::NotMigrated { table: named }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(named, table);
    }
    drop(conn);
    world.until_nobody_is_in_a_transaction().await;
}

/// A domain function: it cannot be called without a fence.
async fn sell<D: Database>(
    tx: &mut Fenced<'_, D::Db>,
    sku: &str,
    amount: i64,
) -> Result<i64, FenceError> {
    Ok(deduct::<D>(tx, sku, amount).await?)
}

pub(super) async fn the_body_runs_in_a_spawned_task<D: Database>(world: Arc<World<D>>) {
    let (pool, sku) = (world.pool.clone(), String::from("apple"));
    let task = tokio::spawn(async move {
        let fence = fence(KEY, 5);
        // Borrows a local of the task.
        let sku = &sku;
        fence
            .transaction(&pool, async |tx| sell::<D>(tx, sku, 10).await)
            .await
    });
    assert_eq!(task.await.unwrap().unwrap(), STOCK - 10);
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

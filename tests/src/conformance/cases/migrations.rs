//! The table of marks beside what is there already.

use std::path::Path;
use std::sync::Arc;

use highwater_fencing::TableName;
use highwater_fencing::migrate::{self, MigrateError, Outcome};
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use sqlx::migrate::Migrator;

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::world::{World, fence};

pub(super) async fn running_again_changes_nothing<D: Database>(world: Arc<World<D>>) {
    fence("kept", 7)
        .begin(&world.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    for _ in 0..2 {
        let outcome = D::Db::migrate(&world.pool, &TableName::DEFAULT)
            .await
            .unwrap();
        assert_eq!(outcome, Outcome::Present);
        assert_eq!(world.mark("kept").await, Some(7));
    }
}

pub(super) async fn eight_at_once_succeed<D: Database>(world: Arc<World<D>>) {
    let starters = world.another_pool(8).await;
    for round in 0..3 {
        let table = TableName::new(format!("marks_{round}")).unwrap();
        // Somebody who creates the same table and then does not: it lines the others up. Where DDL
        // commits there is no such thing.
        let other = world.another_pool(1).await;
        let mut other = other.acquire().await.unwrap();
        if !D::DDL_COMMITS {
            let up = migrate::print(D::Db::MIGRATIONS, &table);
            D::Db::run_on(&mut other, "BEGIN").await.unwrap();
            D::Db::run_on(&mut other, &up).await.unwrap();
        }
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (pool, table) = (starters.clone(), table.clone());
                tokio::spawn(async move { D::Db::migrate(&pool, &table).await })
            })
            .collect();
        if !D::DDL_COMMITS {
            world.until_waiting(8).await;
            D::Db::run_on(&mut other, "ROLLBACK").await.unwrap();
        }
        let mut created = 0;
        for task in tasks {
            let outcome = task.await.unwrap().unwrap();
            created += u32::from(outcome == Outcome::Created);
        }
        assert!(created >= 1, "the table was there before");
        let count = format!("SELECT COUNT(*) FROM {table}");
        assert_eq!(world.number(&count).await, 0);
    }
}

pub(super) async fn they_live_beside_the_users_own<D: Database>(world: Arc<World<D>>) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, sql: &str| std::fs::write(folder.path().join(name), sql).unwrap();
    write("0001_app.sql", "CREATE TABLE app (id BIGINT)");
    // The user's first migration has the number that ours has in the repository.
    let migrator = async |folder: &Path| Migrator::new(folder).await.unwrap();
    D::Db::run_migrator(&world.pool, migrator(folder.path()).await)
        .await
        .unwrap();
    let again = D::Db::migrate(&world.pool, &TableName::DEFAULT)
        .await
        .unwrap();
    assert_eq!(again, Outcome::Present);
    let other = TableName::new("other_marks").unwrap();
    let created = D::Db::migrate(&world.pool, &other).await.unwrap();
    assert_eq!(created, Outcome::Created);
    // Copied into the user's folder it is a migration like any other.
    let copied = TableName::new("copied_marks").unwrap();
    write(
        "0002_fence.sql",
        &migrate::print(D::Db::MIGRATIONS, &copied),
    );
    for _ in 0..2 {
        D::Db::run_migrator(&world.pool, migrator(folder.path()).await)
            .await
            .unwrap();
    }
    let known = world.number("SELECT COUNT(*) FROM _sqlx_migrations").await;
    assert_eq!(known, 2, "only the user's own are recorded");
    for table in ["other_marks", "copied_marks", "highwater_fence", "app"] {
        assert_eq!(
            world.number(&format!("SELECT COUNT(*) FROM {table}")).await,
            0
        );
    }
    let present = D::Db::migrate(&world.pool, &copied).await.unwrap();
    assert_eq!(present, Outcome::Present);
}

pub(super) async fn the_printed_sql_creates_the_table_and_drops_it<D: Database>(
    world: Arc<World<D>>,
) {
    let table = TableName::DEFAULT;
    let down = migrate::print_down(D::Db::MIGRATIONS, &table);
    for _ in 0..2 {
        world.run(&down).await;
        let refused = fence("key", 1).begin(&world.pool).await;
        assert!(
            matches!(refused, Err(FenceError::NotMigrated { .. })),
            "{refused:?}"
        );
        let up = migrate::print(D::Db::MIGRATIONS, &table);
        world.run(&up).await;
        world.run(&up).await;
        fence("key", 1)
            .begin(&world.pool)
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
        assert_eq!(world.mark("key").await, Some(1));
    }
}

pub(super) async fn a_foreign_table_of_the_same_name_is_refused<D: Database>(world: Arc<World<D>>) {
    world.run("CREATE TABLE fence (id BIGINT)").await;
    let table = TableName::new("fence").unwrap();
    let refused = D::Db::migrate(&world.pool, &table).await;
    assert!(
        matches!(refused, Err(MigrateError::ForeignTable { .. })),
        "{refused:?}"
    );
    assert_eq!(world.number("SELECT COUNT(*) FROM fence").await, 0);
}

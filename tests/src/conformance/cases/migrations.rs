//! The table of marks beside what is there already.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

use highwater_fencing::TableName;
use highwater_fencing::migrate::{self, MigrateError};
use highwater_proof::adapter::Verdict;
use sqlx::migrate::Migrator;

use crate::conformance::world::{World, bare, fence};

pub(super) async fn running_again_changes_nothing(world: Arc<World>) {
    world.raise(&fence("kept", 7)).await;
    for _ in 0..2 {
        world.source.migrate(&TableName::DEFAULT).await.unwrap();
        assert_eq!(world.mark("kept").await, Some(7));
    }
}

pub(super) async fn eight_at_once_succeed(world: Arc<World>) {
    let starters = world.another_source(8).await;
    for round in 0..3 {
        let table = TableName::new(format!("marks_{round}")).unwrap();
        // Somebody who creates the same table and then does not: it lines the others up. Where DDL
        // commits there is no such thing.
        let lines_up = !world.database.ddl_commits;
        let mut other = world.observer.session().await.unwrap();
        if lines_up {
            let up = migrate::print(world.database.migrations(), &table);
            other.run("BEGIN").await.unwrap();
            other.run(&up).await.unwrap();
        }
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (source, table) = (starters.clone(), table.clone());
                tokio::spawn(async move { source.migrate(&table).await })
            })
            .collect();
        if lines_up {
            world.until_waiting(8).await;
            other.run("ROLLBACK").await.unwrap();
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let count = format!("SELECT COUNT(*) FROM {table}");
        assert_eq!(world.number(&count).await, 0);
    }
}

pub(super) async fn they_live_beside_the_users_own(world: Arc<World>) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, sql: &str| std::fs::write(folder.path().join(name), sql).unwrap();
    write("0001_app.sql", "CREATE TABLE app (id BIGINT)");
    // The user's first migration has the number that ours has in the repository.
    let migrate_users = async |folder: &Path| {
        let migrator = Migrator::new(folder).await.unwrap();
        world.observer.run_migrator(migrator).await.unwrap();
    };
    migrate_users(folder.path()).await;
    world.source.migrate(&TableName::DEFAULT).await.unwrap();
    let other = TableName::new("other_marks").unwrap();
    world.source.migrate(&other).await.unwrap();
    // Copied into the user's folder it is a migration like any other.
    let copied = TableName::new("copied_marks").unwrap();
    let up = migrate::print(world.database.migrations(), &copied);
    write("0002_fence.sql", &up);
    for _ in 0..2 {
        migrate_users(folder.path()).await;
    }
    let known = world.number("SELECT COUNT(*) FROM _sqlx_migrations").await;
    assert_eq!(known, 2, "only the user's own are recorded");
    for table in ["other_marks", "copied_marks", "highwater_fence", "app"] {
        let count = format!("SELECT COUNT(*) FROM {table}");
        assert_eq!(world.number(&count).await, 0);
    }
    world.source.migrate(&copied).await.unwrap();
}

pub(super) async fn the_printed_sql_creates_the_table_and_drops_it(world: Arc<World>) {
    let (dialect, table) = (world.database.migrations(), TableName::DEFAULT);
    let down = migrate::print_down(dialect, &table);
    for _ in 0..2 {
        world.run(&down).await;
        let refused = world.refusal(&fence("key", 1)).await;
        assert!(
            matches!(refused, Verdict::NotMigrated { .. }),
            "{refused:?}"
        );
        let up = migrate::print(dialect, &table);
        world.run(&up).await;
        world.run(&up).await;
        world.raise(&fence("key", 1)).await;
        assert_eq!(world.mark("key").await, Some(1));
    }
}

pub(super) async fn a_foreign_table_of_the_same_name_is_refused(world: Arc<World>) {
    world.run("CREATE TABLE fence (id BIGINT)").await;
    let table = TableName::new("fence").unwrap();
    match world.source.migrate(&table).await {
        Err(refused) => {
            let source = refused.source();
            let source = source.and_then(|error| error.downcast_ref::<migrate::Error>());
            assert!(
                matches!(source, None | Some(MigrateError::ForeignTable { .. })),
                "{refused:?}"
            );
        }
        Ok(()) => {
            // With the printed SQL alone the first fence says it.
            let options = highwater_fencing::FenceOptions::new().table_name(table);
            let refused = world.refusal(&options.apply(bare("key", 1))).await;
            assert!(matches!(refused, Verdict::Database(_)), "{refused:?}");
        }
    }
    assert_eq!(world.number("SELECT COUNT(*) FROM fence").await, 0);
}

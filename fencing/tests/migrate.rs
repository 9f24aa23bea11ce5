//! The table of marks beside the migrations of the user's own.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use highwater_fencing::migrate::{self, Dialect, Outcome};
use highwater_fencing::{TableName, migrate::MigrateError};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlitePool};

async fn pool(folder: &tempfile::TempDir) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("base.db"))
        .create_if_missing(true);
    SqlitePool::connect_with(options).await.unwrap()
}

fn user_migrations(more: Option<String>) -> Migrator {
    let table = "CREATE TABLE stock (sku TEXT)".to_owned();
    let migrations = std::iter::once(table).chain(more).zip(1..);
    let migrations = migrations.map(|(sql, version)| {
        let sql = AssertSqlSafe(sql).into_sql_str();
        Migration::new(version, "own".into(), MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(migrations.collect())
}

#[tokio::test]
async fn running_again_is_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(&folder).await;
    assert_eq!(migrate::sqlite::run(&pool).await.unwrap(), Outcome::Created);
    assert_eq!(migrate::sqlite::run(&pool).await.unwrap(), Outcome::Present);
}

#[tokio::test]
async fn eight_programs_may_start_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let pool = pool(&folder).await;
        tasks.spawn(async move { migrate::sqlite::run(&pool).await.unwrap() });
    }
    let outcomes = tasks.join_all().await;
    assert!(outcomes.contains(&Outcome::Created), "{outcomes:?}");
}

#[tokio::test]
async fn the_users_own_migrations_live_beside_it_in_any_order() {
    for ours_first in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(&folder).await;
        if ours_first {
            migrate::sqlite::run(&pool).await.unwrap();
        }
        user_migrations(None).run(&pool).await.unwrap();
        migrate::sqlite::run(&pool).await.unwrap();
        user_migrations(None).run(&pool).await.unwrap();
        let applied: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM _sqlx_migrations")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(applied, 1);
    }
}

#[tokio::test]
async fn the_printed_sql_can_be_one_of_the_users_own_migrations() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(&folder).await;
    let table = TableName::new("marks").unwrap();
    let sql = migrate::print(Dialect::Sqlite, &table);
    user_migrations(Some(sql)).run(&pool).await.unwrap();
    let outcome = migrate::sqlite::run_for(&pool, &table).await.unwrap();
    assert_eq!(outcome, Outcome::Present);
    let down = migrate::print_down(Dialect::Sqlite, &table);
    sqlx::raw_sql(AssertSqlSafe(down))
        .execute(&pool)
        .await
        .unwrap();
    let outcome = migrate::sqlite::run_for(&pool, &table).await.unwrap();
    assert_eq!(outcome, Outcome::Created);
}

#[tokio::test]
async fn a_foreign_table_of_the_same_name_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(&folder).await;
    sqlx::raw_sql("CREATE TABLE highwater_fence (sku TEXT)")
        .execute(&pool)
        .await
        .unwrap();
    let error = migrate::sqlite::run(&pool).await.unwrap_err();
    assert!(
        matches!(error, MigrateError::ForeignTable { .. }),
        "{error:?}"
    );
    sqlx::query("INSERT INTO highwater_fence VALUES ('kept')")
        .execute(&pool)
        .await
        .unwrap();
}

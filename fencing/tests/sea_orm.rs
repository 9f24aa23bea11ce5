//! The forms of sea-orm: what is special to this driver. What all adapters share stands in the
//! conformance suite; the page of the adapter shows entities.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::BoxFuture;
use highwater_fencing::sea_orm::{FenceError, Fenced, SeaOrmFence as _, poisoned};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, Resolution, Step, migrate};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbErr, ExecResult, Statement,
    TransactionTrait as _,
};

/// A database file with the table of marks and a table `stock`, gone when dropped.
struct Base {
    db: DatabaseConnection,
    _folder: tempfile::TempDir,
}

impl Base {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.db");
        let mut options = ConnectOptions::new(format!("sqlite://{}?mode=rwc", path.display()));
        options.max_connections(2).sqlx_logging(false);
        let db = Database::connect(options).await.unwrap();
        migrate::sea_orm::run(&db).await.unwrap();
        db.execute_unprepared(
            "CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL)",
        )
        .await
        .unwrap();
        Self {
            db,
            _folder: folder,
        }
    }

    async fn rows(&self) -> i64 {
        number(&self.db, "SELECT COUNT(*) FROM stock").await
    }
}

fn fence(token: u64) -> Fence {
    let key = FenceKey::new("apple").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(Domain::named("test").unwrap(), key, token)
}

fn plain(conn: &impl ConnectionTrait, sql: &str) -> Statement {
    Statement::from_string(conn.get_database_backend(), sql)
}

async fn number(conn: &impl ConnectionTrait, sql: &str) -> i64 {
    let row = conn.query_one_raw(plain(conn, sql)).await.unwrap();
    row.unwrap().try_get_by_index(0).unwrap()
}

async fn put(conn: &impl ConnectionTrait, sku: &str) -> Result<ExecResult, DbErr> {
    let insert = "INSERT INTO stock VALUES (?, ?)";
    let values = [sku.into(), 1_i64.into()];
    let insert = Statement::from_sql_and_values(conn.get_database_backend(), insert, values);
    conn.execute_raw(insert).await
}

/// The error of a second writer that does not wait.
async fn locked(db: &DatabaseConnection) -> DbErr {
    let second = "PRAGMA busy_timeout = 0; UPDATE stock SET quantity = 0";
    db.execute_unprepared(second).await.unwrap_err()
}

#[tokio::test]
async fn a_body_runs_inside_a_spawned_task_borrows_and_is_run_again() {
    let base = Base::new().await;
    let db = base.db.clone();
    let task = tokio::spawn(async move {
        let sku = String::from("apple");
        let calls = AtomicU32::new(0);
        let (borrowed, counted) = (&sku, &calls);
        fence(7)
            .transaction(&db, async |tx: &Fenced| {
                put(tx, borrowed).await?;
                if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                    // What sqlx says when the file is locked, from a statement past the guard.
                    return Err(locked(&db).await.into());
                }
                Ok::<_, FenceError>(counted.load(Ordering::SeqCst))
            })
            .await
    });
    assert_eq!(task.await.unwrap().unwrap(), 2);
    assert_eq!(base.rows().await, 1);
}

#[tokio::test]
async fn values_and_rows_are_those_of_sea_orm() {
    let base = Base::new().await;
    let tx = fence(7).begin(&base.db).await.unwrap();
    assert_eq!(put(&tx, "apple").await.unwrap().rows_affected(), 1);
    let (pear, plum) = futures_util::join!(put(&tx, "pear"), put(&tx, "plum"));
    pear.unwrap();
    plum.unwrap();
    let all = plain(&tx, "SELECT sku, quantity FROM stock ORDER BY sku");
    let rows = tx.query_all_raw(all).await.unwrap();
    let skus: Vec<String> = rows
        .iter()
        .map(|row| row.try_get("", "sku").unwrap())
        .collect();
    assert_eq!(skus, ["apple", "pear", "plum"]);
    tx.commit().await.unwrap();
    assert_eq!(base.rows().await, 3);
}

#[tokio::test]
async fn every_way_to_run_a_statement_poisons() {
    type Way = for<'t> fn(&'t Fenced) -> BoxFuture<'t, Result<(), DbErr>>;
    const BAD: &str = "SELECT 1 FROM no_such_table";
    let ways: [Way; 4] = [
        |tx| Box::pin(async move { tx.execute_raw(plain(tx, BAD)).await.map(drop) }),
        |tx| Box::pin(async move { tx.execute_unprepared(BAD).await.map(drop) }),
        |tx| Box::pin(async move { tx.query_one_raw(plain(tx, BAD)).await.map(drop) }),
        |tx| Box::pin(async move { tx.query_all_raw(plain(tx, BAD)).await.map(drop) }),
    ];
    let base = Base::new().await;
    for (number, way) in ways.into_iter().enumerate() {
        let tx = fence(7).begin(&base.db).await.unwrap();
        way(&tx).await.expect_err(&format!("way {number}"));
        let refused = put(&tx, "apple").await.unwrap_err();
        let refusal = poisoned(&refused).unwrap_or_else(|| panic!("{number}: {refused:?}"));
        assert!(refusal.first().contains("no such table"), "{refusal:?}");
        let outcome = tx.commit().await;
        assert!(
            matches!(outcome, Err(FenceError::Poisoned { .. })),
            "{number}: {outcome:?}"
        );
    }
    assert_eq!(base.rows().await, 0);
}

#[tokio::test]
async fn what_a_query_did_not_find_is_no_failure_and_nothing_is_seen_past_the_guard() {
    let base = Base::new().await;
    let tx = fence(7).begin(&base.db).await.unwrap();
    let none = plain(&tx, "SELECT 1 FROM stock");
    assert!(tx.query_one_raw(none).await.unwrap().is_none());
    let text = plain(&tx, "SELECT 'text'");
    let text = tx.query_one_raw(text).await.unwrap().unwrap();
    text.try_get_by_index::<i64>(0).unwrap_err();
    put(&tx, "apple").await.unwrap();
    // A duplicate.
    put(&tx.connection(), "apple").await.unwrap_err();
    put(&tx.connection(), "pear").await.unwrap();
    assert_eq!(
        number(&tx.connection(), "SELECT COUNT(*) FROM stock").await,
        2
    );
    tx.commit().await.unwrap();
    assert_eq!(base.rows().await, 2);
}

#[tokio::test]
async fn a_raw_end_is_refused_and_nothing_after_it_is_kept() {
    let base = Base::new().await;
    let tx = fence(7).begin(&base.db).await.unwrap();
    put(&tx, "before").await.unwrap();
    let past = tx.connection();
    past.execute_unprepared("ROLLBACK").await.unwrap();
    put(&past, "after").await.unwrap_err();
    let outcome = tx.commit().await;
    assert!(matches!(outcome, Err(FenceError::Ended(_))), "{outcome:?}");
    assert_eq!(base.rows().await, 0);
}

#[tokio::test]
async fn a_write_with_a_step_is_resolved() {
    let base = Base::new().await;
    let fence = fence(7).with_step(Step::new(1).unwrap());
    let resolved = fence.resolve(&base.db).await.unwrap();
    assert_eq!(resolved, Resolution::NotApplied);
    fence.begin(&base.db).await.unwrap().commit().await.unwrap();
    let resolved = fence.resolve(&base.db).await.unwrap();
    assert_eq!(resolved, Resolution::Applied);
}

#[tokio::test]
async fn a_connection_without_a_pool_of_sqlx_is_refused() {
    let none = DatabaseConnection::default();
    let refused = fence(7).begin(&none).await;
    assert!(
        matches!(
            refused,
            Err(FenceError::Database(DbErr::BackendNotSupported { .. }))
        ),
        "{refused:?}"
    );
    migrate::sea_orm::run(&none).await.unwrap_err();
}

/// Why there is no `admit`: a guard over a nested transaction would report a commit that the outer
/// one can take back.
#[tokio::test]
async fn a_nested_transaction_of_sea_orm_reports_a_commit_that_is_none() {
    let base = Base::new().await;
    let outer = base.db.begin().await.unwrap();
    // The same type, without a word about its depth.
    let nested: sea_orm::DatabaseTransaction = outer.begin().await.unwrap();
    put(&nested, "apple").await.unwrap();
    nested.commit().await.unwrap();
    outer.rollback().await.unwrap();
    assert_eq!(base.rows().await, 0);
}

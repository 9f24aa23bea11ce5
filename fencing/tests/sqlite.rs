//! The forms on SQLite: needs no server. What all databases share stands in the conformance suite;
//! here is what is special to SQLite and to the guard itself.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::sqlx::{FenceError, Fenced, Poisoned, SqlxFence as _};
use highwater_fencing::{
    Domain, DomainPolicy, Fence, FenceKey, FenceOptions, FencingToken, Mark, TableName, migrate,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Acquire as _, AssertSqlSafe, Row as _, Sqlite, SqlitePool};

/// A database file with the table of marks and a table `stock`, gone when dropped.
struct Base {
    pool: SqlitePool,
    _folder: tempfile::TempDir,
}

impl Base {
    async fn new() -> Self {
        Self::with(SqliteJournalMode::Wal, 4).await
    }

    async fn with(journal: SqliteJournalMode, connections: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("base.db"))
            .create_if_missing(true)
            .journal_mode(journal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .max_connections(connections)
            .connect_with(options)
            .await
            .unwrap();
        migrate::sqlite::run(&pool).await.unwrap();
        sqlx::raw_sql("CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            pool,
            _folder: folder,
        }
    }

    /// With protected tables a commit has to close what the fence opened.
    async fn protect(&self) {
        let protect = migrate::print_protect(migrate::Dialect::Sqlite, &TableName::DEFAULT);
        sqlx::raw_sql(AssertSqlSafe(protect))
            .execute(&self.pool)
            .await
            .unwrap();
    }

    async fn rows(&self) -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM stock")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    async fn mark(&self, key: &str) -> Option<i64> {
        sqlx::query_scalar("SELECT token FROM highwater_fence WHERE key = ?")
            .bind(key.as_bytes())
            .fetch_optional(&self.pool)
            .await
            .unwrap()
    }

    /// Every connection of the pool is outside of a transaction and can commit.
    async fn assert_clean(&self) {
        let mut held = Vec::new();
        for _ in 0..self.pool.size() {
            let mut conn = self.pool.acquire().await.unwrap();
            sqlx::raw_sql("BEGIN IMMEDIATE; CREATE TABLE _probe (x); DROP TABLE _probe; COMMIT")
                .execute(&mut *conn)
                .await
                .expect("the connection is outside of a transaction and commits");
            let tx = conn.begin().await.unwrap();
            tx.rollback().await.unwrap();
            held.push(conn);
        }
    }
}

fn domain() -> Domain {
    Domain::named("test").unwrap()
}

fn fence(key: &str, token: u64) -> Fence {
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain(), FenceKey::new(key).unwrap(), token)
}

async fn put(tx: &mut Fenced<'_, Sqlite>, sku: &str) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO stock VALUES (?, 1)")
        .bind(sku)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error("sold out")]
    SoldOut,
}

// --- the closure ---------------------------------------------------------------------------------

#[tokio::test]
async fn a_body_runs_inside_a_spawned_task_and_borrows() {
    let base = Base::new().await;
    let pool = base.pool.clone();
    let task = tokio::spawn(async move {
        let sku = String::from("apple");
        let borrowed = &sku;
        fence("apple", 7)
            .transaction(&pool, async |tx| {
                put(tx, borrowed).await?;
                Ok::<_, AppError>(borrowed.len())
            })
            .await
    });
    assert_eq!(task.await.unwrap().unwrap(), 5);
    assert_eq!((base.rows().await, base.mark("apple").await), (1, Some(7)));
}

#[tokio::test]
async fn a_body_owns_what_it_captures_and_boxes() {
    let base = Base::new().await;
    let (sku, pool, offered) = (String::from("pear"), base.pool.clone(), fence("pear", 1));
    let future: std::pin::Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>> =
        Box::pin(async move {
            offered
                .transaction(&pool, async move |tx| {
                    put(tx, &sku).await?;
                    Ok(())
                })
                .await
        });
    tokio::spawn(future).await.unwrap().unwrap();
    assert_eq!(base.rows().await, 1);
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::test]
async fn the_error_of_the_fence_is_enough_for_a_body() {
    let base = Base::new().await;
    let result = fence("a", 1)
        .transaction(&base.pool, async |tx| {
            put(tx, "a").await?;
            put(tx, "a").await?;
            Ok::<_, FenceError>(())
        })
        .await;
    assert!(matches!(result, Err(FenceError::Database(_))), "{result:?}");
    assert_eq!((base.rows().await, base.mark("a").await), (0, None));
}

#[tokio::test]
async fn the_bodys_own_error_rolls_everything_back() {
    let base = Base::new().await;
    let result: Result<(), AppError> = fence("a", 1)
        .transaction(&base.pool, async |tx| {
            put(tx, "a").await?;
            Err(AppError::SoldOut)
        })
        .await;
    assert!(matches!(result, Err(AppError::SoldOut)));
    assert_eq!((base.rows().await, base.mark("a").await), (0, None));
    base.assert_clean().await;
}

#[tokio::test]
async fn a_swallowed_error_is_not_committed() {
    let base = Base::new().await;
    let result = fence("a", 1)
        .transaction(&base.pool, async |tx| {
            put(tx, "a").await?;
            let repeated = put(tx, "a").await;
            assert!(repeated.is_err());
            Ok::<_, AppError>(())
        })
        .await;
    assert!(
        matches!(result, Err(AppError::Fence(FenceError::Poisoned { .. }))),
        "{result:?}"
    );
    assert_eq!(base.rows().await, 0);
    base.assert_clean().await;
}

#[tokio::test]
async fn a_stale_body_never_runs() {
    let base = Base::new().await;
    fence("a", 7)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let runs = AtomicU32::new(0);
    let result = fence("a", 6)
        .transaction(&base.pool, async |_tx| {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, AppError>(())
        })
        .await;
    let Err(AppError::Fence(FenceError::Stale {
        key,
        offered,
        highest,
    })) = result
    else {
        panic!("{result:?}");
    };
    assert_eq!(key.as_bytes(), b"a");
    assert_eq!((offered.get(), highest.get()), (6, 7));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    base.assert_clean().await;
}

/// A real "database is locked", while the fenced transaction of the caller holds the lock.
async fn busy(base: &Base) -> sqlx::Error {
    let options = (*base.pool.connect_options()).clone();
    let options = options.busy_timeout(Duration::ZERO);
    let hasty = SqlitePool::connect_with(options).await.unwrap();
    hasty.begin_with("BEGIN IMMEDIATE").await.unwrap_err()
}

#[tokio::test]
async fn a_busy_database_runs_the_whole_body_again() {
    let base = Base::new().await;
    let runs = AtomicU32::new(0);
    let result = fence("a", 1)
        .transaction(&base.pool, async |tx| {
            put(tx, "a").await?;
            if runs.fetch_add(1, Ordering::SeqCst) < 2 {
                return Err(FenceError::from(busy(&base).await));
            }
            Ok(())
        })
        .await;
    result.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(base.rows().await, 1);
}

#[tokio::test]
async fn attempts_end_with_the_budget_and_the_last_error() {
    let base = Base::new().await;
    let runs = AtomicU32::new(0);
    let options = FenceOptions::new().retry_attempts(3.try_into().unwrap());
    let result: Result<(), BoxError> = options
        .apply(fence("a", 1))
        .transaction(&base.pool, async |_tx| {
            runs.fetch_add(1, Ordering::SeqCst);
            Err(busy(&base).await.into())
        })
        .await;
    assert!(result.is_err());
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_busy_begin_is_tried_again() {
    let base = Base::new().await;
    let options = (*base.pool.connect_options()).clone();
    let hasty = SqlitePool::connect_with(options.busy_timeout(Duration::ZERO))
        .await
        .unwrap();
    let lock = base.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let offered = fence("a", 1);
    let begin = offered.begin(&hasty);
    tokio::pin!(begin);
    assert!(
        tokio::time::timeout(Duration::from_millis(60), &mut begin)
            .await
            .is_err()
    );
    lock.rollback().await.unwrap();
    begin.await.unwrap().commit().await.unwrap();
}

// --- the guard -----------------------------------------------------------------------------------

#[tokio::test]
async fn a_failed_statement_leaves_only_the_rollback() {
    let base = Base::new().await;
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    put(&mut tx, "a").await.unwrap_err();
    let refused = put(&mut tx, "b").await.unwrap_err();
    let poisoned: &Poisoned = refused.as_database_error().unwrap().downcast_ref();
    assert!(poisoned.first().contains("UNIQUE"), "{poisoned}");
    let refused = sqlx::query("SELECT 1").fetch_optional(&mut tx).await;
    assert!(refused.is_err());
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, FenceError::Poisoned { .. }), "{error:?}");
    assert_eq!((base.rows().await, base.mark("a").await), (0, None));
    base.assert_clean().await;
}

#[tokio::test]
async fn every_way_to_run_a_statement_poisons_when_it_fails() {
    use sqlx::{Executor as _, SqlSafeStr as _};
    let base = Base::new().await;
    for way in 0..4 {
        let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
        let failed = match way {
            0 => tx.execute("SELECT nothing").await.is_err(),
            1 => tx.fetch_optional("SELECT nothing").await.is_err(),
            2 => tx.prepare("SELECT nothing".into_sql_str()).await.is_err(),
            _ => tx.fetch_all("SELECT nothing").await.is_err(),
        };
        assert!(failed);
        let error = tx.commit().await.unwrap_err();
        assert!(
            matches!(error, FenceError::Poisoned { .. }),
            "{way}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_row_that_is_not_there_does_not_poison() {
    let base = Base::new().await;
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    let missing = sqlx::query("SELECT * FROM stock").fetch_one(&mut tx).await;
    assert!(matches!(missing, Err(sqlx::Error::RowNotFound)));
    put(&mut tx, "a").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(base.rows().await, 1);
}

#[tokio::test]
async fn a_stream_may_be_left_after_its_first_row() {
    use futures_util::TryStreamExt as _;
    let base = Base::new().await;
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    put(&mut tx, "b").await.unwrap();
    let mut rows = sqlx::query("SELECT sku FROM stock ORDER BY sku").fetch(&mut tx);
    let first = rows.try_next().await.unwrap().unwrap();
    drop(rows);
    assert_eq!(first.get::<String, _>(0), "a");
    put(&mut tx, "c").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(base.rows().await, 3);
}

#[tokio::test]
async fn a_statement_that_is_abandoned_half_way_poisons() {
    use futures_util::FutureExt as _;
    let base = Base::new().await;
    // The thread of the connection may answer before the first poll is over: then again.
    for round in 0.. {
        let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
        if put(&mut tx, "a").now_or_never().is_some() {
            assert!(round < 1_000, "every answer came at once");
            tx.rollback().await.unwrap();
            continue;
        }
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, FenceError::Poisoned { .. }), "{error:?}");
        break;
    }
    assert_eq!(base.rows().await, 0);
    base.assert_clean().await;
}

#[tokio::test]
async fn a_commit_whose_answer_nobody_waits_for_does_not_spoil_the_connection() {
    for protected in [false, true] {
        let base = Base::with(SqliteJournalMode::Wal, 1).await;
        if protected {
            base.protect().await;
        }
        assert!(
            unanswered_commits(&base).await > 0,
            "no commit was abandoned after it had happened"
        );
    }
}

async fn unanswered_commits(base: &Base) -> u32 {
    let options = (*base.pool.connect_options()).clone();
    let outside = SqlitePool::connect_with(options).await.unwrap();
    let mut unanswered = 0;
    for round in 0..600 {
        let polls = 1 + round % 6;
        let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
        let sku = format!("row-{round}");
        put(&mut tx, &sku).await.unwrap();
        let mut commit = Box::pin(tx.commit());
        if abandon_after(polls, &mut commit).await.is_some() {
            continue;
        }
        // Give the thread time to commit, but do not look at its answer.
        let is_in = async || {
            let found = sqlx::query("SELECT 1 FROM stock WHERE sku = ?").bind(&sku);
            found.fetch_optional(&outside).await.unwrap().is_some()
        };
        for _ in 0..10 {
            if is_in().await {
                unanswered += 1;
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(commit);
        drop(fence("a", 1).begin(&base.pool).await.unwrap());
        base.assert_clean().await;
    }
    unanswered
}

#[tokio::test]
async fn a_dropped_guard_is_rolled_back_and_its_connection_is_sound() {
    let base = Base::with(SqliteJournalMode::Wal, 1).await;
    for failed in [false, true] {
        let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
        put(&mut tx, "a").await.unwrap();
        if failed {
            put(&mut tx, "a").await.unwrap_err();
        }
        drop(tx);
        assert_eq!((base.rows().await, base.mark("a").await), (0, None));
        base.assert_clean().await;
    }
}

#[tokio::test]
async fn a_dropped_guard_whose_transaction_was_gone_leaves_a_sound_connection() {
    let base = Base::with(SqliteJournalMode::Wal, 1).await;
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    sqlx::query("INSERT OR ROLLBACK INTO stock VALUES ('a', 1)")
        .execute(&mut tx)
        .await
        .unwrap_err();
    drop(tx);
    base.assert_clean().await;
    assert_eq!(base.rows().await, 0);
    fence("a", 1)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
}

/// sqlx goes on counting a transaction that a statement rolled back, and its pool hands that out.
#[tokio::test]
async fn a_connection_with_something_left_open_is_watched_like_any_other() {
    let base = Base::with(SqliteJournalMode::Wal, 1).await;
    let mut plain = base.pool.begin().await.unwrap();
    let twice = "INSERT INTO stock VALUES ('x', 1); INSERT OR ROLLBACK INTO stock VALUES ('x', 1)";
    sqlx::raw_sql(twice).execute(&mut *plain).await.unwrap_err();
    drop(plain);
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    let raw = |text: &'static str| sqlx::raw_sql(text);
    raw("COMMIT").execute(tx.connection()).await.unwrap_err();
    raw("INSERT INTO stock VALUES ('b', 1)")
        .execute(tx.connection())
        .await
        .unwrap_err();
    let ended = tx.commit().await;
    assert!(matches!(ended, Err(FenceError::Ended(_))), "{ended:?}");
    assert_eq!(base.rows().await, 0);
    base.assert_clean().await;
}

/// What was asked for and not waited for is worked off before the commit.
#[tokio::test]
async fn a_commit_that_comes_before_the_guards_takes_its_place() {
    use futures_util::FutureExt as _;

    let base = Base::with(SqliteJournalMode::Wal, 1).await;
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    let slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) \
                SELECT max(i) FROM n";
    for text in [slow, "COMMIT", "BEGIN", "INSERT INTO stock VALUES ('b', 1)"] {
        let queued = sqlx::raw_sql(text).execute(tx.connection());
        assert!(queued.now_or_never().is_none(), "{text}");
    }
    let ended = tx.commit().await;
    assert!(matches!(ended, Err(FenceError::Ended(_))), "{ended:?}");
    let found: Vec<(String,)> = sqlx::query_as("SELECT sku FROM stock")
        .fetch_all(&base.pool)
        .await
        .unwrap();
    assert!(!found.contains(&("b".to_owned(),)), "{found:?}");
    base.assert_clean().await;
}

#[tokio::test]
async fn a_rollback_restores_the_mark() {
    let base = Base::new().await;
    fence("a", 3)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    fence("a", 9)
        .begin(&base.pool)
        .await
        .unwrap()
        .rollback()
        .await
        .unwrap();
    assert_eq!(base.mark("a").await, Some(3));
    base.assert_clean().await;
}

#[tokio::test]
async fn nested_transactions_on_the_connection_are_savepoints() {
    let base = Base::new().await;
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    let mut nested = tx.connection().begin().await.unwrap();
    sqlx::query("INSERT INTO stock VALUES ('b', 1)")
        .execute(&mut *nested)
        .await
        .unwrap();
    nested.rollback().await.unwrap();
    let mut nested = tx.connection().begin().await.unwrap();
    sqlx::query("INSERT INTO stock VALUES ('c', 1)")
        .execute(&mut *nested)
        .await
        .unwrap();
    nested.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(base.rows().await, 2);
    base.assert_clean().await;
}

// --- a commit that cannot lie --------------------------------------------------------------------

/// Runs `between` past the guard, then a write past the guard, then commits.
async fn commit_after(base: &Base, between: &'static str) -> Result<(), FenceError> {
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "before").await.unwrap();
    let _ = sqlx::raw_sql(between).execute(tx.connection()).await;
    let _ = sqlx::raw_sql("INSERT INTO stock VALUES ('after', 1)")
        .execute(tx.connection())
        .await;
    tx.commit().await
}

#[tokio::test]
async fn a_transaction_that_something_else_ended_is_not_reported_as_committed() {
    for between in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT; BEGIN",
        "ROLLBACK; BEGIN",
        "INSERT OR ROLLBACK INTO stock VALUES ('before', 1)",
    ] {
        let base = Base::with(SqliteJournalMode::Wal, 1).await;
        let result = commit_after(&base, between).await;
        assert!(
            matches!(result, Err(FenceError::Ended(_))),
            "{between}: {result:?}"
        );
        assert_eq!(
            base.rows().await,
            0,
            "{between}: the commit hook let something through"
        );
        base.assert_clean().await;
        fence("a", 2)
            .begin(&base.pool)
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_hook_that_is_replaced_meanwhile_is_never_a_commit() {
    let base = Base::with(SqliteJournalMode::Wal, 1).await;
    for (commit, then) in [
        (true, "SELECT 1"),
        (false, "SELECT 1"),
        (true, "ROLLBACK; BEGIN"),
        (false, "ROLLBACK; BEGIN"),
    ] {
        let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
        let mut handle = tx.connection().lock_handle().await.unwrap();
        match commit {
            true => handle.remove_commit_hook(),
            false => handle.remove_rollback_hook(),
        }
        drop(handle);
        let then = sqlx::raw_sql(then).execute(tx.connection()).await;
        then.unwrap();
        let insert = sqlx::query("INSERT INTO stock VALUES ('x', 1)");
        insert.execute(tx.connection()).await.unwrap();
        let result = tx.commit().await;
        assert!(matches!(result, Err(FenceError::Ended(_))), "{result:?}");
        assert_eq!((base.rows().await, base.mark("a").await), (0, None));
        base.assert_clean().await;
    }
}

#[tokio::test]
async fn a_deferred_constraint_is_a_rollback_with_its_error() {
    let base = Base::new().await;
    sqlx::raw_sql(
        "CREATE TABLE sale (sku TEXT REFERENCES stock (sku) DEFERRABLE INITIALLY DEFERRED)",
    )
    .execute(&base.pool)
    .await
    .unwrap();
    let mut tx = fence("a", 1).begin(&base.pool).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    sqlx::query("INSERT INTO sale VALUES ('nothing')")
        .execute(&mut tx)
        .await
        .unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, FenceError::Database(_)), "{error:?}");
    assert_eq!((base.rows().await, base.mark("a").await), (0, None));
    base.assert_clean().await;
}

#[tokio::test]
async fn a_reader_in_the_way_of_the_commit_is_waited_for() {
    for protected in [false, true] {
        let base = Base::with(SqliteJournalMode::Delete, 4).await;
        if protected {
            base.protect().await;
        }
        let options = (*base.pool.connect_options()).clone();
        let hasty = SqlitePool::connect_with(options.busy_timeout(Duration::ZERO))
            .await
            .unwrap();
        let mut reader = base.pool.begin().await.unwrap();
        sqlx::query("SELECT * FROM stock")
            .fetch_all(&mut *reader)
            .await
            .unwrap();
        let mut tx = fence("a", 1).begin(&hasty).await.unwrap();
        put(&mut tx, "a").await.unwrap();
        let leaving = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            reader.rollback().await.unwrap();
        };
        let (committed, ()) = tokio::join!(tx.commit(), leaving);
        committed.unwrap();
        assert_eq!(base.rows().await, 1);
    }
}

// --- lent and joined -----------------------------------------------------------------------------

#[tokio::test]
async fn a_lent_connection_is_usable_afterwards_however_it_ended() {
    let base = Base::new().await;
    let mut conn = base.pool.acquire().await.unwrap();
    let mut tx = fence("a", 1).begin_on(&mut conn).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = fence("a", 1).begin_on(&mut conn).await.unwrap();
    put(&mut tx, "b").await.unwrap();
    drop(tx);
    let mut tx = fence("a", 1).begin_on(&mut *conn).await.unwrap();
    put(&mut tx, "c").await.unwrap();
    tx.rollback().await.unwrap();
    sqlx::query("INSERT INTO stock VALUES ('plain', 1)")
        .execute(&mut *conn)
        .await
        .unwrap();
    assert_eq!(base.rows().await, 2);
    drop(conn);
    base.assert_clean().await;
}

#[tokio::test]
async fn a_lent_or_joined_connection_is_usable_after_something_else_ended_its_transaction() {
    for between in ["COMMIT", "ROLLBACK", "ROLLBACK; BEGIN"] {
        let base = Base::new().await;
        let mut conn = base.pool.acquire().await.unwrap();
        for joined in [false, true] {
            let mut tx = if joined {
                fence("a", 1)
                    .admit(conn.begin().await.unwrap())
                    .await
                    .unwrap()
            } else {
                fence("a", 1).begin_on(&mut conn).await.unwrap()
            };
            let _ = sqlx::raw_sql(between).execute(tx.connection()).await;
            let result = tx.commit().await;
            assert!(
                matches!(result, Err(FenceError::Ended(_))),
                "{between}: {result:?}"
            );
            fence("a", 1)
                .begin_on(&mut conn)
                .await
                .unwrap()
                .commit()
                .await
                .unwrap();
        }
        drop(conn);
        base.assert_clean().await;
    }
}

#[tokio::test]
async fn a_fence_is_not_begun_inside_an_open_transaction() {
    let base = Base::new().await;
    let mut conn = base.pool.acquire().await.unwrap();
    let mut outer = conn.begin().await.unwrap();
    let error = fence("a", 1).begin_on(&mut *outer).await.unwrap_err();
    assert!(matches!(error, FenceError::InSavepoint), "{error:?}");
    // The outer transaction is untouched by the refusal.
    sqlx::query("INSERT INTO stock VALUES ('outer', 1)")
        .execute(&mut *outer)
        .await
        .unwrap();
    outer.commit().await.unwrap();
    assert_eq!(base.rows().await, 1);
}

#[tokio::test]
async fn a_joined_transaction_commits_through_its_guard() {
    let base = Base::new().await;
    let tx = base.pool.begin().await.unwrap();
    let mut tx = fence("a", 5).admit(tx).await.unwrap();
    put(&mut tx, "a").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!((base.rows().await, base.mark("a").await), (1, Some(5)));

    let tx = base.pool.begin().await.unwrap();
    let error = fence("a", 4).admit(tx).await.unwrap_err();
    assert!(matches!(error, FenceError::Stale { .. }), "{error:?}");

    let tx = base.pool.begin().await.unwrap();
    let mut tx = fence("a", 6).admit(tx).await.unwrap();
    put(&mut tx, "b").await.unwrap();
    drop(tx);
    assert_eq!((base.rows().await, base.mark("a").await), (1, Some(5)));
    base.assert_clean().await;
}

#[tokio::test]
async fn a_nested_transaction_cannot_be_joined() {
    let base = Base::new().await;
    let mut outer = base.pool.begin().await.unwrap();
    let nested = outer.begin().await.unwrap();
    let error = fence("a", 1).admit(nested).await.unwrap_err();
    assert!(matches!(error, FenceError::InSavepoint), "{error:?}");
    outer.rollback().await.unwrap();
    assert_eq!(base.mark("a").await, None);
}

// --- several keys, steps, domains, range ---------------------------------------------------------

#[tokio::test]
async fn one_stale_key_refuses_all_of_them() {
    let base = Base::new().await;
    fence("b", 7)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let both = fence("a", 9).and(fence("b", 6)).unwrap();
    let error = both.begin(&base.pool).await.unwrap_err();
    let FenceError::Stale { key, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(key.as_bytes(), b"b");
    assert_eq!(
        (base.mark("a").await, base.mark("b").await),
        (None, Some(7))
    );
    base.assert_clean().await;
}

#[tokio::test]
async fn a_step_is_admitted_once() {
    let base = Base::new().await;
    let step = |number: u64| fence("a", 1).with_step(number.try_into().unwrap());
    let begin = async |offered: Fence| offered.begin(&base.pool).await?.commit().await;
    begin(step(1)).await.unwrap();
    begin(step(2)).await.unwrap();
    for repeated in [1, 2] {
        let error = begin(step(repeated)).await.unwrap_err();
        assert!(
            matches!(error, FenceError::AlreadyApplied { .. }),
            "{error:?}"
        );
    }
    begin(step(3)).await.unwrap();
    // A new token starts its own count.
    begin(fence("a", 2).with_step(1.try_into().unwrap()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_token_that_no_database_stores_is_refused_without_a_request() {
    let base = Base::new().await;
    base.pool.close().await;
    let edge = i64::MAX.unsigned_abs();
    for (token, refused) in [(edge, false), (edge + 1, true), (u64::MAX, true)] {
        let error = fence("a", token).begin(&base.pool).await.unwrap_err();
        assert_eq!(
            matches!(error, FenceError::TokenOutOfRange { .. }),
            refused,
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn the_highest_token_is_stored_exactly() {
    let base = Base::new().await;
    let edge = i64::MAX.unsigned_abs();
    fence("a", edge)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    assert_eq!(base.mark("a").await, Some(i64::MAX));
}

#[tokio::test]
async fn another_domain_is_refused_or_adopted_as_the_policy_says() {
    let base = Base::new().await;
    fence("a", 7)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    let other = Domain::named("other").unwrap();
    let foreign = |number: u64| {
        let token = FencingToken::new(number).unwrap();
        Fence::new(other, FenceKey::new("a").unwrap(), token)
    };
    let error = foreign(99).begin(&base.pool).await.unwrap_err();
    assert!(
        matches!(error, FenceError::DomainMismatch { .. }),
        "{error:?}"
    );

    let adopt = FenceOptions::new().domain_policy(DomainPolicy::AdoptHigher);
    for number in [6, 7] {
        let error = adopt
            .apply(foreign(number))
            .begin(&base.pool)
            .await
            .unwrap_err();
        assert!(
            matches!(error, FenceError::DomainMismatch { .. }),
            "{error:?}"
        );
    }
    adopt
        .apply(foreign(8))
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    for old in [7, 8, 9] {
        let error = fence("a", old).begin(&base.pool).await.unwrap_err();
        assert!(
            matches!(error, FenceError::DomainMismatch { .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_table_says_what_to_do() {
    let base = Base::new().await;
    let error = FenceOptions::new()
        .table("elsewhere")
        .unwrap()
        .apply(fence("a", 1))
        .begin(&base.pool)
        .await
        .unwrap_err();
    assert!(matches!(error, FenceError::NotMigrated { .. }), "{error:?}");
    assert!(error.to_string().contains("highwater migrate"), "{error}");
    base.assert_clean().await;
}

#[tokio::test]
async fn tables_of_marks_are_independent() {
    let base = Base::new().await;
    let table = "main.second".parse().unwrap();
    migrate::sqlite::run_for(&base.pool, &table).await.unwrap();
    let second = FenceOptions::new().table_name(table);
    fence("a", 7)
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    second
        .apply(fence("a", 3))
        .begin(&base.pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
    assert_eq!(base.mark("a").await, Some(7));
}

// --- many at once --------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_between_many_writers() {
    let base = Base::new().await;
    let counted = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u64 {
        let (pool, counted) = (base.pool.clone(), counted.clone());
        tasks.spawn(async move {
            let marks = ["x", "y"].map(|key| Mark {
                key: FenceKey::new(key).unwrap(),
                token: FencingToken::MIN,
            });
            let fence = Fence::from_marks(domain(), marks).unwrap();
            for round in 0..10 {
                let sku = format!("{task}-{round}");
                let result = fence
                    .transaction(&pool, async |tx| Ok::<_, FenceError>(put(tx, &sku).await?))
                    .await;
                result.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(base.rows().await, i64::from(counted.load(Ordering::SeqCst)));
}

/// Polls `future` at most `polls` times and drops it.
async fn abandon_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_transaction_abandoned_at_any_point_leaves_the_pool_clean() {
    let base = Base::with(SqliteJournalMode::Wal, 1).await;
    let mut finished = 0;
    for polls in 0.. {
        let sku = format!("row-{polls}");
        let run = fence_run(&base.pool, &sku);
        let before = base.rows().await;
        let done = abandon_after(polls, run).await;
        let after = base.rows().await;
        base.assert_clean().await;
        match done {
            Some(result) => {
                result.unwrap();
                assert_eq!(after, before + 1);
                finished += 1;
            }
            // The commit itself may have been under way.
            None => assert!(after == before || after == before + 1),
        }
        if finished == 3 {
            break;
        }
        assert!(polls < 500, "it never finishes");
    }
}

async fn fence_run(pool: &SqlitePool, sku: &str) -> Result<(), FenceError> {
    fence("a", 1)
        .transaction(pool, async |tx| {
            put(tx, sku).await?;
            sqlx::query("SELECT * FROM stock")
                .fetch_all(&mut *tx)
                .await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_fenced_transaction_works_in_memory() {
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect("sqlite::memory:")
        .await
        .unwrap();
    migrate::sqlite::run(&pool).await.unwrap();
    drop(fence("a", 1).begin(&pool).await.unwrap());
    fence("a", 1)
        .begin(&pool)
        .await
        .unwrap()
        .commit()
        .await
        .unwrap();
}

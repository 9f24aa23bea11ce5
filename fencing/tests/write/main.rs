//! The write of one row in one statement, on real servers, and what happens to the writes that it does
//! not offer if somebody puts them together by hand. The URLs come from HIGHWATER_TEST_POSTGRES_URL,
//! HIGHWATER_TEST_MYSQL_URL and HIGHWATER_TEST_MARIADB_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

mod by_hand;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::sqlx::{FenceError, RowWrite, SqlxFence as _};
use highwater_fencing::{
    Configured, Domain, DomainPolicy, Fence, FenceKey, FenceOptions, FencingToken, Isolation,
    Resolution, Step, TableName, Written,
};
use sqlx::AssertSqlSafe;

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("set {variable} to the URL of a test server"))
}

/// A name that no other test on the server has.
fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    format!("{stem}_{}_{number}", std::process::id())
}

fn offered(domain: &str, key: &str, token: u64) -> Fence {
    let domain = Domain::named(domain).unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain, FenceKey::new(key).unwrap(), token)
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// MariaDB answers the question who waits from a cache, which it renews only if nobody asked for a
/// tenth of a second: so the tests of this process ask in turn, and each waits that long before.
async fn ask_in_turn() -> tokio::sync::MutexGuard<'static, ()> {
    static ASKED: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let turn = ASKED.lock().await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    turn
}

macro_rules! server {
    ($name:ident, $variable:literal, $db:ty, $pool:ty, $pool_options:ty, $migrate:path,
     how: $how:expr, logs: $logs:expr, waiting: $waiting:literal, first_in_one: $first:expr) => {
        mod $name {
            use super::*;

            struct Base {
                pool: $pool,
                marks: TableName,
                stock: TableName,
            }

            impl Base {
                /// With a row `a` of 100 pieces, and a mark for its key.
                async fn new() -> Self {
                    let base = Self::unmarked().await;
                    let mark = base.fence("a", 1).begin(&base.pool).await.unwrap();
                    mark.commit().await.unwrap();
                    base
                }

                async fn unmarked() -> Self {
                    let pool = <$pool_options>::new().max_connections(6);
                    let pool = pool.connect(&url($variable)).await.unwrap();
                    let marks = TableName::new(unique("marks")).unwrap();
                    $migrate(&pool, &marks).await.unwrap();
                    let stock = unique("stock");
                    let base = Self {
                        pool,
                        marks,
                        stock: TableName::new(&stock).unwrap(),
                    };
                    base.run(
                        "CREATE TABLE stock (sku varchar(40) PRIMARY KEY, quantity int NOT NULL, \
                         note varchar(40))",
                    )
                    .await;
                    base.run("INSERT INTO stock VALUES ('a', 100, NULL)").await;
                    base
                }

                fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
                    AssertSqlSafe(sql.replace("stock", self.stock.name()))
                }

                async fn run(&self, sql: &str) {
                    let sql = sqlx::raw_sql(self.sql(sql));
                    sql.execute(&self.pool).await.unwrap();
                }

                fn options(&self) -> FenceOptions {
                    FenceOptions::new().table_name(self.marks.clone())
                }

                fn fence(&self, key: &str, token: u64) -> Configured {
                    self.options().apply(offered("test", key, token))
                }

                fn take(&self, sku: &'static str, pieces: i32) -> RowWrite<'static, $db> {
                    RowWrite::update(self.stock.clone(), "sku", sku).subtract("quantity", pieces)
                }

                async fn rows(&self) -> Vec<(String, i32)> {
                    sqlx::query_as(self.sql("SELECT sku, quantity FROM stock ORDER BY sku"))
                        .fetch_all(&self.pool)
                        .await
                        .unwrap()
                }

                async fn quantity(&self) -> i32 {
                    self.rows().await[0].1
                }

                async fn marked(&self, key: &str) -> Option<(i64, i64)> {
                    let marks = self.marks.name();
                    let read = format!(
                        "SELECT CAST(token AS {0}), CAST(step AS {0}) FROM {marks} WHERE {1} = {2}",
                        $how.number,
                        $how.key,
                        $how.literal(key),
                    );
                    let read = sqlx::query_as(AssertSqlSafe(read));
                    read.fetch_optional(&self.pool).await.unwrap()
                }

                /// Waits until a statement on this table waits for a lock.
                async fn somebody_waits(&self) {
                    eventually("a wait for a lock", || async {
                        let _turn = ask_in_turn().await;
                        let asked = AssertSqlSafe($waiting.replace("@marks", self.marks.name()));
                        let count: i64 = sqlx::query_scalar(asked)
                            .fetch_one(&self.pool)
                            .await
                            .unwrap();
                        count > 0
                    })
                    .await;
                }

                /// Logs how each write comes.
                async fn log(&self) {
                    for statement in $logs {
                        self.run(statement).await;
                    }
                }

                async fn was_one_statement(&self) -> bool {
                    let log = self.sql("SELECT how FROM stock_log");
                    let log: Vec<String> =
                        sqlx::query_scalar(log).fetch_all(&self.pool).await.unwrap();
                    assert!(!log.is_empty());
                    log.iter().all(|how| how.starts_with($how.one))
                }
            }

            #[tokio::test]
            async fn an_update_raises_the_mark_and_writes_the_row_in_one_statement() {
                let base = Base::new().await;
                base.log().await;
                let written = base
                    .fence("a", 5)
                    .write(&base.pool, &base.take("a", 10))
                    .await;
                assert_eq!(written.unwrap(), Written::Applied);
                assert_eq!(base.marked("a").await, Some((5, 0)));
                assert_eq!(base.quantity().await, 90);
                assert!(base.was_one_statement().await);
                // An equal token, and one that is higher.
                for token in [5, 6] {
                    let write = base.take("a", 10).set("note", "x");
                    let written = base.fence("a", token).write(&base.pool, &write).await;
                    assert_eq!(written.unwrap(), Written::Applied, "{token}");
                }
                assert_eq!(base.quantity().await, 70);
                assert!(base.was_one_statement().await);
            }

            #[tokio::test]
            async fn the_first_fence_of_a_key_writes_too() {
                let base = Base::unmarked().await;
                base.log().await;
                let written = base
                    .fence("a", 5)
                    .write(&base.pool, &base.take("a", 10))
                    .await;
                assert_eq!(written.unwrap(), Written::Applied);
                assert_eq!(base.marked("a").await, Some((5, 0)));
                assert_eq!(base.quantity().await, 90);
                assert_eq!(base.was_one_statement().await, $first);
            }

            #[tokio::test]
            async fn a_level_that_was_asked_for_is_kept() {
                let base = Base::new().await;
                base.log().await;
                let options = base.options().isolation(Isolation::Serializable);
                let fence = options.apply(offered("test", "a", 5));
                let written = fence.write(&base.pool, &base.take("a", 10)).await;
                assert_eq!(written.unwrap(), Written::Applied);
                assert!(!base.was_one_statement().await);
            }

            #[tokio::test]
            async fn rows_are_inserted_and_deleted() {
                let base = Base::new().await;
                let insert = || {
                    RowWrite::insert(base.stock.clone(), "sku", "b")
                        .add("quantity", 7)
                        .set("note", Option::<String>::None)
                };
                let fence = base.fence("b", 5);
                assert_eq!(
                    fence.write(&base.pool, &insert()).await.unwrap(),
                    Written::Applied
                );
                assert_eq!(base.rows().await[1], ("b".to_owned(), 7));
                let twice = fence.write(&base.pool, &insert()).await.unwrap_err();
                assert!(matches!(twice, FenceError::Database(_)), "{twice:?}");
                let delete = RowWrite::delete(base.stock.clone(), "sku", "b");
                assert_eq!(
                    fence.write(&base.pool, &delete).await.unwrap(),
                    Written::Applied
                );
                assert_eq!(
                    fence.write(&base.pool, &delete).await.unwrap(),
                    Written::NoRow
                );
                assert_eq!(base.rows().await.len(), 1);
            }

            #[tokio::test]
            async fn a_stale_token_writes_nothing_and_says_why() {
                let base = Base::new().await;
                let newer = base
                    .fence("a", 7)
                    .write(&base.pool, &base.take("a", 1))
                    .await;
                assert_eq!(newer.unwrap(), Written::Applied);
                for write in [
                    base.take("a", 10),
                    base.take("nobody", 10),
                    RowWrite::insert(base.stock.clone(), "sku", "b").set("quantity", 1),
                    RowWrite::delete(base.stock.clone(), "sku", "a"),
                ] {
                    let stale = base
                        .fence("a", 6)
                        .write(&base.pool, &write)
                        .await
                        .unwrap_err();
                    let FenceError::Stale {
                        offered, highest, ..
                    } = stale
                    else {
                        panic!("{stale:?}");
                    };
                    assert_eq!((offered.get(), highest.get()), (6, 7));
                }
                assert_eq!(base.rows().await, [("a".to_owned(), 99)]);
                assert_eq!(base.marked("a").await, Some((7, 0)));
            }

            #[tokio::test]
            async fn a_missing_row_leaves_mark_and_step_as_they_were() {
                let base = Base::new().await;
                let step = Step::new(3).unwrap();
                let fence = base
                    .options()
                    .apply(offered("test", "a", 5).with_step(step));
                let written = fence.write(&base.pool, &base.take("nobody", 10)).await;
                assert_eq!(written.unwrap(), Written::NoRow);
                assert_eq!(base.marked("a").await, Some((1, 0)));
                let written = fence.write(&base.pool, &base.take("a", 10)).await;
                assert_eq!(written.unwrap(), Written::Applied);
                assert_eq!(base.marked("a").await, Some((5, 3)));
                let again = fence
                    .write(&base.pool, &base.take("a", 10))
                    .await
                    .unwrap_err();
                assert!(
                    matches!(again, FenceError::AlreadyApplied { .. }),
                    "{again:?}"
                );
                let found = fence.resolve(&base.pool).await.unwrap();
                assert_eq!(found, Resolution::Applied);
                assert_eq!(base.quantity().await, 90);
                // A write without a step keeps it, a higher token starts anew.
                for (token, mark) in [(5, (5, 3)), (6, (6, 0))] {
                    let written = base
                        .fence("a", token)
                        .write(&base.pool, &base.take("a", 10))
                        .await;
                    assert_eq!(written.unwrap(), Written::Applied);
                    assert_eq!(base.marked("a").await, Some(mark));
                }
            }

            #[tokio::test]
            async fn another_domain_is_refused_or_adopted_as_everywhere() {
                let base = Base::new().await;
                let other = |token, policy| {
                    let options = base.options().domain_policy(policy);
                    options.apply(offered("another", "a", token))
                };
                let write = base.take("a", 10);
                let refused = other(9, DomainPolicy::Strict)
                    .write(&base.pool, &write)
                    .await;
                assert!(
                    matches!(refused, Err(FenceError::DomainMismatch { .. })),
                    "{refused:?}"
                );
                let equal = other(1, DomainPolicy::AdoptHigher)
                    .write(&base.pool, &write)
                    .await;
                assert!(
                    matches!(equal, Err(FenceError::DomainMismatch { .. })),
                    "{equal:?}"
                );
                let higher = other(2, DomainPolicy::AdoptHigher)
                    .write(&base.pool, &write)
                    .await;
                assert_eq!(higher.unwrap(), Written::Applied);
                let old = base.fence("a", 9).write(&base.pool, &write).await;
                assert!(
                    matches!(old, Err(FenceError::DomainMismatch { .. })),
                    "{old:?}"
                );
                assert_eq!(base.quantity().await, 90);
            }

            #[tokio::test]
            async fn several_keys_are_fenced_together() {
                let base = Base::new().await;
                let both = offered("test", "a", 5)
                    .and(offered("test", "b", 5))
                    .unwrap();
                let both = base.options().apply(both);
                let written = both.write(&base.pool, &base.take("a", 10)).await;
                assert_eq!(written.unwrap(), Written::Applied);
                assert_eq!(base.marked("b").await, Some((5, 0)));
                base.fence("b", 6)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                let stale = both
                    .write(&base.pool, &base.take("a", 10))
                    .await
                    .unwrap_err();
                assert!(matches!(stale, FenceError::Stale { .. }), "{stale:?}");
                assert_eq!(base.quantity().await, 90);
            }

            #[tokio::test]
            async fn a_missing_table_of_marks_is_named() {
                let base = Base::new().await;
                let options = FenceOptions::new().table(unique("nowhere")).unwrap();
                let fence = options.apply(offered("test", "a", 5));
                let error = fence
                    .write(&base.pool, &base.take("a", 10))
                    .await
                    .unwrap_err();
                assert!(matches!(error, FenceError::NotMigrated { .. }), "{error:?}");
            }

            /// An older holder is in the middle of a transaction that changes the row.
            #[tokio::test]
            async fn a_newer_write_waits_for_the_older_one_and_adds_to_it() {
                for ending in ["commit", "rollback"] {
                    let base = Base::new().await;
                    let mut older = base.fence("a", 5).begin(&base.pool).await.unwrap();
                    let update =
                        base.sql("UPDATE stock SET quantity = quantity - 60 WHERE sku = 'a'");
                    sqlx::query(update).execute(&mut older).await.unwrap();
                    let (pool, fence, write) =
                        (base.pool.clone(), base.fence("a", 6), base.take("a", 10));
                    let newer = tokio::spawn(async move { fence.write(&pool, &write).await });
                    base.somebody_waits().await;
                    let left = match ending {
                        "commit" => {
                            older.commit().await.unwrap();
                            30
                        }
                        _ => {
                            older.rollback().await.unwrap();
                            90
                        }
                    };
                    assert_eq!(newer.await.unwrap().unwrap(), Written::Applied, "{ending}");
                    assert_eq!(base.quantity().await, left, "{ending}");
                }
            }

            #[tokio::test]
            async fn an_older_write_that_waited_for_a_newer_one_is_stale() {
                let base = Base::new().await;
                let newer = base.fence("a", 6).begin(&base.pool).await.unwrap();
                let (pool, fence, write) =
                    (base.pool.clone(), base.fence("a", 5), base.take("a", 10));
                let older = tokio::spawn(async move { fence.write(&pool, &write).await });
                base.somebody_waits().await;
                newer.commit().await.unwrap();
                let stale = older.await.unwrap().unwrap_err();
                assert!(matches!(stale, FenceError::Stale { .. }), "{stale:?}");
                assert_eq!(base.quantity().await, 100);
            }

            /// What the statement does not see, because it began before, the transaction does.
            #[tokio::test]
            async fn a_row_that_came_while_the_write_waited_is_written() {
                let base = Base::new().await;
                let mut older = base.fence("a", 5).begin(&base.pool).await.unwrap();
                let insert = base.sql("INSERT INTO stock VALUES ('new', 50, NULL)");
                sqlx::query(insert).execute(&mut older).await.unwrap();
                let (pool, fence, write) =
                    (base.pool.clone(), base.fence("a", 6), base.take("new", 10));
                let newer = tokio::spawn(async move { fence.write(&pool, &write).await });
                base.somebody_waits().await;
                older.commit().await.unwrap();
                assert_eq!(newer.await.unwrap().unwrap(), Written::Applied);
                assert_eq!(base.rows().await[1], ("new".to_owned(), 40));
            }

            #[tokio::test]
            async fn a_write_that_is_dropped_leaves_the_pool_sound() {
                let base = Base::new().await;
                let newer = base.fence("a", 6).begin(&base.pool).await.unwrap();
                let (fence, write) = (base.fence("a", 6), base.take("a", 10));
                tokio::select! {
                    biased;
                    done = fence.write(&base.pool, &write) => panic!("{done:?}"),
                    () = base.somebody_waits() => {}
                }
                newer.commit().await.unwrap();
                for _ in 0..6 {
                    let written = base
                        .fence("a", 7)
                        .write(&base.pool, &base.take("a", 1))
                        .await;
                    assert_eq!(written.unwrap(), Written::Applied);
                }
                // It may have been written all the same, once.
                assert!([84, 94].contains(&base.quantity().await));
            }

            #[tokio::test]
            async fn twelve_at_once_lose_nothing() {
                let base = Base::unmarked().await;
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..12 {
                    let (pool, fence, write) =
                        (base.pool.clone(), base.fence("a", 5), base.take("a", 1));
                    tasks.spawn(async move { fence.write(&pool, &write).await.unwrap() });
                }
                assert_eq!(tasks.join_all().await, [Written::Applied; 12]);
                assert_eq!(base.quantity().await, 88);
            }
        }
    };
}

/// How a server is asked.
struct How {
    number: &'static str,
    key: &'static str,
    text: fn(&str) -> String,
    /// What the log says of a write that was one statement.
    one: &'static str,
}

impl How {
    fn literal(&self, key: &str) -> String {
        (self.text)(key)
    }
}

const ON_POSTGRES: How = How {
    number: "bigint",
    key: "key",
    text: |key| format!("convert_to('{key}', 'UTF8')"),
    one: "WITH fence",
};

const ON_MYSQL: How = How {
    number: "signed",
    key: "`key`",
    text: |key| format!("'{key}'"),
    // Transactions run without autocommit.
    one: "alone",
};

/// The triggers say how the statement came that fired them.
const POSTGRES_LOG: [&str; 3] = [
    "CREATE TABLE stock_log (how text NOT NULL)",
    "CREATE FUNCTION stock_logs() RETURNS trigger LANGUAGE plpgsql AS \
     'BEGIN INSERT INTO stock_log VALUES (current_query()); RETURN NULL; END'",
    "CREATE TRIGGER stock_logs AFTER UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION stock_logs()",
];

const MYSQL_LOG: [&str; 2] = [
    "CREATE TABLE stock_log (how varchar(40) NOT NULL)",
    "CREATE TRIGGER stock_logs AFTER UPDATE ON stock FOR EACH ROW \
     INSERT INTO stock_log VALUES (IF(@@autocommit, 'alone', 'in a transaction'))",
];

server!(
    on_postgres,
    "HIGHWATER_TEST_POSTGRES_URL",
    sqlx::Postgres,
    sqlx::PgPool,
    sqlx::postgres::PgPoolOptions,
    highwater_fencing::migrate::postgres::run_for,
    how: ON_POSTGRES,
    logs: POSTGRES_LOG,
    waiting: "SELECT COUNT(*) FROM pg_stat_activity \
              WHERE wait_event_type = 'Lock' AND query LIKE '%@marks%'",
    first_in_one: true
);
server!(
    on_mysql,
    "HIGHWATER_TEST_MYSQL_URL",
    sqlx::MySql,
    sqlx::MySqlPool,
    sqlx::mysql::MySqlPoolOptions,
    highwater_fencing::migrate::mysql::run_for,
    how: ON_MYSQL,
    logs: MYSQL_LOG,
    waiting: "SELECT COUNT(*) FROM performance_schema.data_lock_waits w \
              JOIN performance_schema.data_locks l \
              ON l.engine_lock_id = w.requesting_engine_lock_id WHERE l.object_name = '@marks'",
    first_in_one: false
);
server!(
    on_mariadb,
    "HIGHWATER_TEST_MARIADB_URL",
    sqlx::MySql,
    sqlx::MySqlPool,
    sqlx::mysql::MySqlPoolOptions,
    highwater_fencing::migrate::mysql::run_for,
    how: ON_MYSQL,
    logs: MYSQL_LOG,
    waiting: "SELECT COUNT(*) FROM information_schema.innodb_trx \
              WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%@marks%'",
    first_in_one: false
);

/// There a statement alone would be told as applied, and be lost with the connection.
#[tokio::test]
async fn without_autocommit_a_write_is_a_transaction() {
    for variable in ["HIGHWATER_TEST_MYSQL_URL", "HIGHWATER_TEST_MARIADB_URL"] {
        let base = sqlx::MySqlPool::connect(&url(variable)).await.unwrap();
        let marks = TableName::new(unique("marks")).unwrap();
        highwater_fencing::migrate::mysql::run_for(&base, &marks)
            .await
            .unwrap();
        let stock = TableName::new(unique("stock")).unwrap();
        let create = format!(
            "CREATE TABLE {stock} (sku varchar(40) PRIMARY KEY, quantity int NOT NULL); \
             INSERT INTO {stock} VALUES ('a', 100)"
        );
        sqlx::raw_sql(AssertSqlSafe(create))
            .execute(&base)
            .await
            .unwrap();
        let held = sqlx::mysql::MySqlPoolOptions::new()
            .max_connections(1)
            .after_connect(|conn, _| {
                Box::pin(async move {
                    sqlx::raw_sql("SET autocommit = 0").execute(conn).await?;
                    Ok(())
                })
            })
            .connect(&url(variable))
            .await
            .unwrap();
        let options = FenceOptions::new().table_name(marks);
        for token in [5, 6] {
            let write = RowWrite::update(stock.clone(), "sku", "a").subtract("quantity", 10);
            let fence = options.apply(offered("test", "a", token));
            let written = fence.write(&held, &write).await;
            assert_eq!(written.unwrap(), Written::Applied, "{variable}");
        }
        let quantity = AssertSqlSafe(format!("SELECT quantity FROM {stock}"));
        let quantity: i32 = sqlx::query_scalar(quantity).fetch_one(&base).await.unwrap();
        assert_eq!(quantity, 80, "{variable}");
    }
}

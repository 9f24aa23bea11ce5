//! The guard on real servers: how transactions end, what the session looks like afterwards, and
//! what is left behind when a future is dropped. The URLs come from HIGHWATER_TEST_POSTGRES_URL,
//! HIGHWATER_TEST_MYSQL_URL and HIGHWATER_TEST_MARIADB_URL; a missing one is a failure.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::sqlx::{FenceError, Fenced, SqlxFence as _};
use highwater_fencing::{
    Configured, Domain, DomainPolicy, Fence, FenceKey, FenceOptions, FencingToken, Isolation, Mark,
    TableName,
};
use sqlx::{AssertSqlSafe, Connection as _};

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("set {variable} to the URL of a test server"))
}

fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

fn offered(key: &str, token: u64) -> Fence {
    let domain = Domain::named("test").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(domain, FenceKey::new(key).unwrap(), token)
}

/// Polls `future` at most `polls` times, with real waiting in between, and drops it.
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

async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

macro_rules! server {
    ($name:ident, $variable:literal, $db:ty, $pool:ty, $pool_options:ty, $migrate:path,
     tells_savepoint: $tells_savepoint:expr,
     after_ddl: $after_ddl:expr, plain_after_end: $plain:expr, kill: $kill:expr, id: $id:literal) => {
        mod $name {
            use super::*;

            /// Tables of its own on the server.
            struct Base {
                pool: $pool,
                /// Sees only what was committed.
                outside: $pool,
                table: TableName,
                stock: String,
            }

            impl Base {
                async fn new() -> Self {
                    Self::with(4).await
                }

                async fn with(connections: u32) -> Self {
                    let url = url($variable);
                    let pool = <$pool_options>::new()
                        .max_connections(connections)
                        .connect(&url)
                        .await
                        .unwrap();
                    let outside = <$pool_options>::new().max_connections(2).connect(&url);
                    let outside = outside.await.unwrap();
                    let suffix = format!("{}_{}", std::process::id(), number());
                    let table = TableName::new(format!("fence_{suffix}")).unwrap();
                    $migrate(&pool, &table).await.unwrap();
                    let base = Self {
                        pool,
                        outside,
                        table,
                        stock: format!("stock_{suffix}"),
                    };
                    base.run(
                        "CREATE TABLE stock (sku VARCHAR(40) PRIMARY KEY, quantity INT NOT NULL)",
                    )
                    .await;
                    base
                }

                fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
                    AssertSqlSafe(sql.replace("stock", &self.stock))
                }

                async fn run(&self, sql: &str) {
                    sqlx::raw_sql(self.sql(sql))
                        .execute(&self.outside)
                        .await
                        .unwrap();
                }

                fn options(&self) -> FenceOptions {
                    FenceOptions::new().table_name(self.table.clone())
                }

                fn fence(&self, key: &str, token: u64) -> Configured {
                    self.options().apply(offered(key, token))
                }

                async fn put(
                    &self,
                    tx: &mut Fenced<'_, $db>,
                    sku: &str,
                ) -> Result<(), sqlx::Error> {
                    let insert = self.sql(&format!("INSERT INTO stock VALUES ('{sku}', 1)"));
                    sqlx::query(insert).execute(&mut *tx).await.map(|_| ())
                }

                async fn skus(&self) -> Vec<String> {
                    sqlx::query_scalar(self.sql("SELECT sku FROM stock ORDER BY sku"))
                        .fetch_all(&self.outside)
                        .await
                        .unwrap()
                }

                async fn highest(&self, key: &str) -> Option<u64> {
                    let error = self.fence(key, 1).begin(&self.outside).await;
                    match error {
                        Ok(tx) => {
                            tx.rollback().await.unwrap();
                            None
                        }
                        Err(FenceError::Stale { highest, .. }) => Some(highest.get()),
                        Err(error) => panic!("{error:?}"),
                    }
                }

                /// A plain write on every connection of the pool is seen by others at once.
                async fn assert_clean(&self) {
                    let mut held = Vec::new();
                    let size = self.pool.options().get_max_connections();
                    for index in 0..size {
                        let mut conn = self.pool.acquire().await.unwrap();
                        let sku = format!("clean-{index}");
                        let insert = self.sql(&format!("INSERT INTO stock VALUES ('{sku}', 1)"));
                        sqlx::query(insert).execute(&mut *conn).await.unwrap();
                        assert!(
                            self.skus().await.contains(&sku),
                            "the write is not committed"
                        );
                        let delete = self.sql(&format!("DELETE FROM stock WHERE sku = '{sku}'"));
                        sqlx::query(delete).execute(&mut *conn).await.unwrap();
                        conn.begin().await.unwrap().rollback().await.unwrap();
                        held.push(conn);
                    }
                }

                /// A transaction that writes past the guard, runs `between`, writes again, commits.
                async fn commit_after(&self, between: &str) -> Result<(), FenceError> {
                    let mut tx = self.fence("a", 7).begin(&self.pool).await.unwrap();
                    self.put(&mut tx, "before").await.unwrap();
                    let _ = sqlx::raw_sql(self.sql(between))
                        .execute(tx.connection())
                        .await;
                    let after = self.sql("INSERT INTO stock VALUES ('after', 1)");
                    let _ = sqlx::raw_sql(after).execute(tx.connection()).await;
                    tx.commit().await
                }
            }

            #[tokio::test]
            async fn a_commit_raises_the_mark_and_leaves_the_session_as_it_was() {
                let base = Base::with(1).await;
                for round in 1..=3 {
                    let mut tx = base.fence("a", round).begin(&base.pool).await.unwrap();
                    base.put(&mut tx, &format!("row-{round}")).await.unwrap();
                    tx.commit().await.unwrap();
                    base.assert_clean().await;
                }
                assert_eq!(base.skus().await, ["row-1", "row-2", "row-3"]);
                assert_eq!(base.highest("a").await, Some(3));
            }

            #[tokio::test]
            async fn a_refusal_names_the_mark_and_leaves_the_session_as_it_was() {
                let base = Base::with(1).await;
                base.fence("b", 7)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                let both = offered("a", 9).and(offered("b", 6)).unwrap();
                let error = base
                    .options()
                    .apply(both)
                    .begin(&base.pool)
                    .await
                    .unwrap_err();
                let FenceError::Stale {
                    key,
                    offered,
                    highest,
                } = &error
                else {
                    panic!("{error:?}");
                };
                assert_eq!(key.as_bytes(), b"b");
                assert_eq!((offered.get(), highest.get()), (6, 7));
                base.assert_clean().await;
                assert_eq!(base.highest("a").await, None);

                let error = base
                    .fence("b", 6)
                    .admit(base.pool.begin().await.unwrap())
                    .await;
                assert!(matches!(error, Err(FenceError::Stale { .. })), "{error:?}");
                base.assert_clean().await;
                let mut conn = base.pool.acquire().await.unwrap();
                let error = base.fence("b", 6).begin_on(&mut conn).await.unwrap_err();
                assert!(matches!(error, FenceError::Stale { .. }), "{error:?}");
                drop(conn);
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn steps_and_domains_are_checked_in_every_form() {
                let base = Base::with(1).await;
                let step = |number: u64| {
                    let fence = offered("a", 1).with_step(number.try_into().unwrap());
                    base.options().apply(fence)
                };
                step(2)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                for repeated in [1, 2] {
                    let error = step(repeated).begin(&base.pool).await.unwrap_err();
                    assert!(
                        matches!(error, FenceError::AlreadyApplied { .. }),
                        "{error:?}"
                    );
                    let tx = base.pool.begin().await.unwrap();
                    let error = step(repeated).admit(tx).await.unwrap_err();
                    assert!(
                        matches!(error, FenceError::AlreadyApplied { .. }),
                        "{error:?}"
                    );
                }
                step(3)
                    .admit(base.pool.begin().await.unwrap())
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                // An equal token without a step keeps the count; a higher one begins anew.
                base.fence("a", 1)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                let error = step(3).begin(&base.pool).await.unwrap_err();
                assert!(
                    matches!(error, FenceError::AlreadyApplied { .. }),
                    "{error:?}"
                );
                let higher = offered("a", 2).with_step(1.try_into().unwrap());
                let higher = base.options().apply(higher);
                higher
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();

                let foreign = |token: u64| {
                    let token = FencingToken::new(token).unwrap();
                    Fence::new(
                        Domain::named("other").unwrap(),
                        FenceKey::new("a").unwrap(),
                        token,
                    )
                };
                let strict = base.options().apply(foreign(9));
                let error = strict.begin(&base.pool).await.unwrap_err();
                assert!(
                    matches!(error, FenceError::DomainMismatch { .. }),
                    "{error:?}"
                );
                let adopt = base.options().domain_policy(DomainPolicy::AdoptHigher);
                for token in [1, 2] {
                    let error = adopt
                        .apply(foreign(token))
                        .begin(&base.pool)
                        .await
                        .unwrap_err();
                    assert!(
                        matches!(error, FenceError::DomainMismatch { .. }),
                        "{error:?}"
                    );
                }
                let adopted = adopt.apply(foreign(3));
                adopted
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                let error = base.fence("a", 99).begin(&base.pool).await.unwrap_err();
                assert!(
                    matches!(error, FenceError::DomainMismatch { .. }),
                    "{error:?}"
                );
                adopted
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn the_highest_token_is_stored_and_the_next_is_refused() {
                let base = Base::new().await;
                let edge = i64::MAX.unsigned_abs();
                base.fence("a", edge)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                assert_eq!(base.highest("a").await, Some(edge));
                let error = base
                    .fence("a", edge + 1)
                    .begin(&base.pool)
                    .await
                    .unwrap_err();
                assert!(
                    matches!(error, FenceError::TokenOutOfRange { .. }),
                    "{error:?}"
                );
            }

            #[tokio::test]
            async fn a_transaction_that_something_else_ended_is_not_reported_as_committed() {
                for between in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
                    let base = Base::with(1).await;
                    let result = base.commit_after(between).await;
                    assert!(
                        matches!(result, Err(FenceError::Ended(_))),
                        "{between}: {result:?}"
                    );
                    base.assert_clean().await;
                    let skus = base.skus().await;
                    let before = between.starts_with("COMMIT");
                    assert_eq!(skus.contains(&"before".to_owned()), before, "{between}");
                    let after = $plain && !between.ends_with("BEGIN");
                    assert_eq!(skus.contains(&"after".to_owned()), after, "{between}");
                }
            }

            #[tokio::test]
            async fn a_lent_or_joined_transaction_that_something_else_ended_is_reported_too() {
                for between in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
                    let base = Base::with(1).await;
                    for joined in [false, true] {
                        let mut conn = base.pool.acquire().await.unwrap();
                        let mut tx = if joined {
                            base.fence("a", 7)
                                .admit(conn.begin().await.unwrap())
                                .await
                                .unwrap()
                        } else {
                            base.fence("a", 7).begin_on(&mut *conn).await.unwrap()
                        };
                        let _ = sqlx::raw_sql(between).execute(tx.connection()).await;
                        let result = tx.commit().await;
                        assert!(
                            matches!(result, Err(FenceError::Ended(_))),
                            "{between}: {result:?}"
                        );
                        let tx = base.fence("a", 7).begin_on(&mut *conn).await.unwrap();
                        tx.commit().await.unwrap();
                        drop(conn);
                        base.assert_clean().await;
                    }
                }
            }

            #[tokio::test]
            async fn ddl_ends_the_transaction_where_the_server_does_that() {
                let base = Base::with(1).await;
                let result = base.commit_after("CREATE TABLE stock_2 (x INT)").await;
                let (ended, skus): (bool, &[&str]) = $after_ddl;
                assert_eq!(
                    matches!(result, Err(FenceError::Ended(_))),
                    ended,
                    "{result:?}"
                );
                assert_eq!(base.skus().await, skus);
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn savepoints_of_the_body_are_its_own_business() {
                let base = Base::with(1).await;
                let mut tx = base.fence("a", 1).begin(&base.pool).await.unwrap();
                base.put(&mut tx, "kept").await.unwrap();
                let mut nested = tx.connection().begin().await.unwrap();
                let lost = base.sql("INSERT INTO stock VALUES ('lost', 1)");
                sqlx::query(lost).execute(&mut *nested).await.unwrap();
                nested.rollback().await.unwrap();
                let nested = tx.connection().begin().await.unwrap();
                drop(nested);
                base.put(&mut tx, "kept-2").await.unwrap();
                tx.commit().await.unwrap();
                assert_eq!(base.skus().await, ["kept", "kept-2"]);
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn the_end_of_a_forgotten_nested_transaction_is_not_taken_for_the_commit() {
                let base = Base::with(1).await;
                let mut conn = base.pool.acquire().await.unwrap();
                // The savepoint that the driver would release for it exists outside of the fence.
                sqlx::raw_sql("BEGIN; SAVEPOINT _sqlx_savepoint_1")
                    .execute(&mut *conn)
                    .await
                    .unwrap();
                let mut tx = base.fence("a", 7).begin_on(&mut conn).await.unwrap();
                base.put(&mut tx, "never").await.unwrap();
                std::mem::forget(tx.connection().begin().await.unwrap());
                tx.commit().await.unwrap_err();
                assert_eq!(base.skus().await, [""; 0]);
            }

            #[tokio::test]
            async fn a_fence_that_was_rolled_back_to_an_earlier_savepoint_does_not_commit() {
                let base = Base::with(1).await;
                let mut tx = base.pool.begin().await.unwrap();
                sqlx::raw_sql("SAVEPOINT early")
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                match base.fence("a", 7).admit(tx).await {
                    // Seen at once where the server tells.
                    Err(error) => {
                        assert!(matches!(error, FenceError::InSavepoint), "{error:?}");
                        assert!($tells_savepoint);
                    }
                    Ok(mut tx) => {
                        assert!(!$tells_savepoint);
                        let back = sqlx::raw_sql("ROLLBACK TO SAVEPOINT early");
                        back.execute(&mut tx).await.unwrap();
                        base.put(&mut tx, "unfenced").await.unwrap();
                        let error = tx.commit().await.unwrap_err();
                        assert!(matches!(error, FenceError::Ended(_)), "{error:?}");
                    }
                }
                assert!(base.skus().await.is_empty());
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn a_swallowed_error_is_not_committed() {
                let base = Base::with(1).await;
                let result = base
                    .fence("a", 1)
                    .transaction(&base.pool, async |tx| {
                        base.put(tx, "a").await?;
                        base.put(tx, "a").await.unwrap_err();
                        base.put(tx, "b").await.unwrap_err();
                        Ok::<_, FenceError>(())
                    })
                    .await;
                assert!(
                    matches!(result, Err(FenceError::Poisoned { .. })),
                    "{result:?}"
                );
                assert!(base.skus().await.is_empty());
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn a_lent_connection_is_as_it_was_however_it_ended() {
                let base = Base::with(1).await;
                let mut conn = base.pool.acquire().await.unwrap();
                let mut tx = base.fence("a", 1).begin_on(&mut conn).await.unwrap();
                base.put(&mut tx, "committed").await.unwrap();
                tx.commit().await.unwrap();
                let mut tx = base.fence("a", 1).begin_on(&mut *conn).await.unwrap();
                base.put(&mut tx, "dropped").await.unwrap();
                drop(tx);
                let mut tx = base.fence("a", 1).begin_on(&mut conn).await.unwrap();
                base.put(&mut tx, "rolled-back").await.unwrap();
                tx.rollback().await.unwrap();
                let plain = base.sql("INSERT INTO stock VALUES ('plain', 1)");
                sqlx::query(plain).execute(&mut *conn).await.unwrap();
                assert_eq!(base.skus().await, ["committed", "plain"]);
                drop(conn);
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn a_joined_transaction_is_committed_by_its_guard_alone() {
                let base = Base::with(1).await;
                let mut tx = base
                    .fence("a", 1)
                    .admit(base.pool.begin().await.unwrap())
                    .await
                    .unwrap();
                base.put(&mut tx, "committed").await.unwrap();
                tx.commit().await.unwrap();
                let mut tx = base
                    .fence("a", 2)
                    .admit(base.pool.begin().await.unwrap())
                    .await
                    .unwrap();
                base.put(&mut tx, "dropped").await.unwrap();
                drop(tx);
                assert_eq!(base.skus().await, ["committed"]);
                base.assert_clean().await;
                assert_eq!(base.highest("a").await, None);
            }

            #[tokio::test]
            async fn a_transaction_abandoned_at_any_point_leaves_the_pool_clean() {
                let base = Base::with(1).await;
                let mut finished = 0;
                for polls in 0.. {
                    let sku = format!("row-{polls}");
                    let done = abandon_after(
                        polls,
                        base.fence("a", 1).transaction(&base.pool, async |tx| {
                            base.put(tx, &sku).await?;
                            base.put(tx, &format!("{sku}-2")).await?;
                            Ok::<_, FenceError>(())
                        }),
                    )
                    .await;
                    base.assert_clean().await;
                    if let Some(result) = done {
                        result.unwrap();
                        finished += 1;
                    }
                    let skus = base.skus().await;
                    let both = [sku.clone(), format!("{sku}-2")].map(|sku| skus.contains(&sku));
                    assert_eq!(both[0], both[1], "half of a transaction is in");
                    if finished == 3 {
                        break;
                    }
                    assert!(polls < 500, "it never finishes");
                }
            }

            #[tokio::test]
            async fn a_lent_or_joined_transaction_abandoned_at_any_point_leaves_the_pool_clean() {
                let base = Base::with(1).await;
                for joined in [false, true] {
                    let mut finished = 0;
                    for polls in 0.. {
                        let sku = format!("row-{joined}-{polls}");
                        let work = async |mut tx: Fenced<'_, $db>| {
                            base.put(&mut tx, &sku).await.unwrap();
                            tx.commit().await
                        };
                        let done = if joined {
                            // sqlx's own begin is not safe to abandon, so it is not part of it.
                            let tx = base.pool.begin().await.unwrap();
                            abandon_after(polls, async {
                                work(base.fence("a", 1).admit(tx).await.unwrap()).await
                            })
                            .await
                        } else {
                            let mut conn = base.pool.acquire().await.unwrap();
                            abandon_after(polls, async {
                                work(base.fence("a", 1).begin_on(&mut conn).await.unwrap()).await
                            })
                            .await
                        };
                        base.assert_clean().await;
                        if let Some(result) = done {
                            result.unwrap();
                            finished += 1;
                            assert!(base.skus().await.contains(&sku));
                        }
                        if finished == 3 {
                            break;
                        }
                        assert!(polls < 500, "it never finishes");
                    }
                }
            }

            #[tokio::test]
            async fn a_dropped_guard_lets_the_next_holder_in() {
                let base = Base::with(2).await;
                let mut tx = base.fence("a", 1).begin(&base.pool).await.unwrap();
                base.put(&mut tx, "lost").await.unwrap();
                drop(tx);
                let next = base.fence("a", 2);
                let next = next.begin(&base.pool);
                let next = tokio::time::timeout(Duration::from_secs(10), next)
                    .await
                    .unwrap();
                next.unwrap().commit().await.unwrap();
                assert!(base.skus().await.is_empty());
            }

            #[tokio::test]
            async fn a_connection_that_dies_before_the_commit_gives_no_success() {
                let base = Base::with(1).await;
                for lent in [false, true] {
                    let mut conn = base.pool.acquire().await.unwrap();
                    let mut tx = if lent {
                        base.fence("a", 1).begin_on(&mut conn).await.unwrap()
                    } else {
                        drop(conn);
                        base.fence("a", 1).begin(&base.pool).await.unwrap()
                    };
                    base.put(&mut tx, "lost").await.unwrap();
                    let id: i64 = sqlx::query_scalar($id).fetch_one(&mut tx).await.unwrap();
                    let kill = AssertSqlSafe(format!($kill, id));
                    sqlx::raw_sql(kill).execute(&base.outside).await.unwrap();
                    let error = tx.commit().await.unwrap_err();
                    if lent {
                        // COMMIT was not sent.
                        assert!(matches!(error, FenceError::Database(_)), "{error:?}");
                    } else {
                        assert!(matches!(error, FenceError::Unknown(_)), "{error:?}");
                    }
                    assert!(base.skus().await.is_empty());
                }
                base.assert_clean().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_deadlock_runs_the_whole_body_again() {
                let base = Base::new().await;
                base.run("INSERT INTO stock VALUES ('x', 0), ('y', 0)")
                    .await;
                let (runs, barrier) = (AtomicU32::new(0), tokio::sync::Barrier::new(2));
                // Two fences that do not know each other, and rows in opposite orders.
                let writer = async |key: &str, first: &str, second: &str, swallow: bool| {
                    let add = |sku: &str| {
                        let add = "UPDATE stock SET quantity = quantity + 1 WHERE sku = ";
                        base.sql(&format!("{add}'{sku}'"))
                    };
                    base.fence(key, 1)
                        .transaction(&base.pool, async |tx| {
                            let run = runs.fetch_add(1, Ordering::SeqCst);
                            sqlx::query(add(first)).execute(&mut *tx).await?;
                            if run < 2 {
                                barrier.wait().await;
                            }
                            let result = sqlx::query(add(second)).execute(&mut *tx).await;
                            if swallow {
                                // What is written now must not outlive the deadlock.
                                let stray = base.sql("INSERT INTO stock VALUES ('stray', 1)");
                                let _ = sqlx::query(stray).execute(tx.connection()).await;
                                if result.is_ok() {
                                    let clean = base.sql("DELETE FROM stock WHERE sku = 'stray'");
                                    sqlx::query(clean).execute(&mut *tx).await?;
                                }
                            } else {
                                result?;
                            }
                            Ok::<_, FenceError>(())
                        })
                        .await
                };
                for swallow in [false, true] {
                    runs.store(0, Ordering::SeqCst);
                    let (left, right) = tokio::join!(
                        writer("left", "x", "y", swallow),
                        writer("right", "y", "x", swallow)
                    );
                    left.unwrap();
                    right.unwrap();
                    assert!(runs.load(Ordering::SeqCst) > 2, "there was no deadlock");
                }
                assert_eq!(base.skus().await, ["x", "y"]);
                let sum: i64 = sqlx::query_scalar(
                    base.sql(
                        "SELECT CAST(SUM(quantity) AS SIGNED) FROM stock"
                            .replace(
                                "SIGNED",
                                if stringify!($name) == "postgres" {
                                    "BIGINT"
                                } else {
                                    "SIGNED"
                                },
                            )
                            .as_str(),
                    ),
                )
                .fetch_one(&base.pool)
                .await
                .unwrap();
                assert_eq!(sum, 8);
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn no_update_is_lost_on_any_isolation_level() {
                for isolation in [
                    Isolation::ReadCommitted,
                    Isolation::RepeatableRead,
                    Isolation::Serializable,
                ] {
                    let base = Base::with(8).await;
                    base.run("INSERT INTO stock VALUES ('x', 0)").await;
                    let writer = async || {
                        for _ in 0..10 {
                            let marks = ["k", "l", "m"].map(|key| Mark {
                                key: FenceKey::new(key).unwrap(),
                                token: FencingToken::MIN,
                            });
                            let fence =
                                Fence::from_marks(Domain::named("test").unwrap(), marks).unwrap();
                            let options = base
                                .options()
                                .isolation(isolation)
                                .retry_attempts(1_000.try_into().unwrap());
                            options
                                .apply(fence)
                                .transaction(&base.pool, async |tx| {
                                    // Read, then write: lost without the fence.
                                    let read = base.sql("SELECT quantity FROM stock");
                                    let left: i32 =
                                        sqlx::query_scalar(read).fetch_one(&mut *tx).await?;
                                    let next = left + 1;
                                    let write = format!("UPDATE stock SET quantity = {next}");
                                    sqlx::query(base.sql(&write)).execute(&mut *tx).await?;
                                    Ok::<_, FenceError>(())
                                })
                                .await
                                .unwrap();
                        }
                    };
                    futures_util::future::join_all((0..6).map(|_| writer())).await;
                    let read = base.sql("SELECT quantity FROM stock");
                    let sum: i32 = sqlx::query_scalar(read)
                        .fetch_one(&base.pool)
                        .await
                        .unwrap();
                    assert_eq!(sum, 60, "{isolation:?}");
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn eight_programs_may_migrate_at_once() {
                for _ in 0..5 {
                    let table = format!("fence_{}_{}", std::process::id(), number());
                    let table = TableName::new(table).unwrap();
                    let mut tasks = tokio::task::JoinSet::new();
                    for _ in 0..8 {
                        let table = table.clone();
                        tasks.spawn(async move {
                            let pool = <$pool_options>::new().connect(&url($variable)).await;
                            $migrate(&pool.unwrap(), &table).await.unwrap()
                        });
                    }
                    tasks.join_all().await;
                }
            }

            #[tokio::test]
            async fn a_missing_table_says_what_to_do() {
                let base = Base::with(1).await;
                let options = FenceOptions::new().table("nowhere").unwrap();
                let error = options
                    .apply(offered("a", 1))
                    .begin(&base.pool)
                    .await
                    .unwrap_err();
                assert!(matches!(error, FenceError::NotMigrated { .. }), "{error:?}");
                let tx = base.pool.begin().await.unwrap();
                let error = options.apply(offered("a", 1)).admit(tx).await.unwrap_err();
                assert!(matches!(error, FenceError::NotMigrated { .. }), "{error:?}");
                base.assert_clean().await;
            }

            #[tokio::test]
            async fn the_mark_of_an_abandoned_holder_is_free_in_the_end() {
                let base = Base::with(2).await;
                let tx = base.fence("a", 9).begin(&base.pool).await.unwrap();
                drop(tx);
                eventually("the lock is gone", || async {
                    let fence = base.fence("a", 1);
                    let begin = fence.begin(&base.pool);
                    match tokio::time::timeout(Duration::from_millis(200), begin).await {
                        Ok(Ok(tx)) => tx.rollback().await.is_ok(),
                        _ => false,
                    }
                })
                .await;
            }
        }
    };
}

server!(postgres, "HIGHWATER_TEST_POSTGRES_URL", sqlx::Postgres, sqlx::PgPool,
    sqlx::postgres::PgPoolOptions, highwater_fencing::migrate::postgres::run_for,
    tells_savepoint: true, after_ddl: (false, &["after", "before"]), plain_after_end: true,
    kill: "SELECT pg_terminate_backend({})", id: "SELECT pg_backend_pid()::bigint");
server!(mysql, "HIGHWATER_TEST_MYSQL_URL", sqlx::MySql, sqlx::MySqlPool,
    sqlx::mysql::MySqlPoolOptions, highwater_fencing::migrate::mysql::run_for,
    tells_savepoint: false, after_ddl: (true, &["before"]), plain_after_end: false,
    kill: "KILL {}", id: "SELECT CAST(CONNECTION_ID() AS SIGNED)");
server!(mariadb, "HIGHWATER_TEST_MARIADB_URL", sqlx::MySql, sqlx::MySqlPool,
    sqlx::mysql::MySqlPoolOptions, highwater_fencing::migrate::mysql::run_for,
    tells_savepoint: false, after_ddl: (true, &["before"]), plain_after_end: false,
    kill: "KILL {}", id: "SELECT CAST(CONNECTION_ID() AS SIGNED)");

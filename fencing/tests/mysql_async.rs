//! What the conformance suite cannot see of mysql_async: connections whose answers are out of step,
//! and what comes back to a pool that resets nothing. The URLs come from HIGHWATER_TEST_MYSQL_URL and
//! HIGHWATER_TEST_MARIADB_URL.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use highwater_fencing::mysql_async::{FenceError, MysqlAsyncFence as _};
use highwater_fencing::{Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken};
use highwater_fencing::{TableName, migrate};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};

/// A pool of one connection, which is not reset, and a table of its own.
struct Base {
    pool: Pool,
    table: TableName,
}

impl Base {
    async fn on(variable: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let url = std::env::var(variable);
        let url = url.unwrap_or_else(|_| panic!("set {variable} to the URL of a test server"));
        let one = PoolOpts::default()
            .with_constraints(PoolConstraints::new(1, 1).unwrap())
            .with_reset_connection(false);
        let options = OptsBuilder::from_opts(Opts::from_url(&url).unwrap()).pool_opts(one);
        let base = Self {
            pool: Pool::new(options),
            table: TableName::new(format!("ma_{}_{number}", std::process::id())).unwrap(),
        };
        migrate::mysql_async::run_for(&base.pool, &base.table)
            .await
            .unwrap();
        base
    }

    fn fence(&self, token: u64) -> Configured {
        let domain = Domain::named("test").unwrap();
        let token = FencingToken::new(token).unwrap();
        let fence = Fence::new(domain, FenceKey::new("a").unwrap(), token);
        FenceOptions::new()
            .table_name(self.table.clone())
            .apply(fence)
    }

    /// The session that the pool gives, and its autocommit.
    async fn session(&self) -> (u64, u8) {
        let mut conn = self.pool.get_conn().await.unwrap();
        let session = conn.query_first("SELECT CONNECTION_ID(), @@autocommit");
        session.await.unwrap().unwrap()
    }

    async fn close(self) {
        let mut conn = self.pool.get_conn().await.unwrap();
        let drop_table = format!("DROP TABLE {}", self.table.name());
        conn.query_drop(drop_table).await.unwrap();
        drop(conn);
        self.pool.disconnect().await.unwrap();
    }
}

macro_rules! server {
    ($name:ident, $variable:literal) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn a_statement_abandoned_past_the_guard_is_not_taken_for_the_commit() {
                let base = Base::on($variable).await;
                let (first, _) = base.session().await;
                let mut tx = base.fence(7).begin(&base.pool).await.unwrap();
                let past = tx.connection().query_drop("DO SLEEP(0.2)").now_or_never();
                assert!(past.is_none());
                let outcome = tx.commit().await;
                assert!(
                    matches!(outcome, Err(FenceError::Unknown(_))),
                    "{outcome:?}"
                );
                let (second, autocommit) = base.session().await;
                assert_ne!(first, second, "the connection is out of step");
                assert_eq!(autocommit, 1);
                base.close().await;
            }

            #[tokio::test]
            async fn a_statement_abandoned_in_the_guard_poisons() {
                let base = Base::on($variable).await;
                let (first, _) = base.session().await;
                let mut tx = base.fence(7).begin(&base.pool).await.unwrap();
                assert!(tx.query_drop("DO SLEEP(0.2)").now_or_never().is_none());
                tx.query_drop("DO 0").await.unwrap_err();
                let outcome = tx.commit().await;
                assert!(
                    matches!(outcome, Err(FenceError::Poisoned { .. })),
                    "{outcome:?}"
                );
                let (second, autocommit) = base.session().await;
                assert_ne!(first, second, "the connection is out of step");
                assert_eq!(autocommit, 1);
                base.close().await;
            }

            #[tokio::test]
            async fn what_ends_well_comes_back_as_it_was_and_a_dropped_guard_does_not() {
                let base = Base::on($variable).await;
                let (first, _) = base.session().await;
                base.fence(7)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
                assert_eq!(base.session().await, (first, 1));
                base.fence(7)
                    .begin(&base.pool)
                    .await
                    .unwrap()
                    .rollback()
                    .await
                    .unwrap();
                assert_eq!(base.session().await, (first, 1));
                base.fence(6).begin(&base.pool).await.unwrap_err();
                assert_eq!(base.session().await, (first, 1));
                drop(base.fence(7).begin(&base.pool).await.unwrap());
                let (second, autocommit) = base.session().await;
                assert_ne!(first, second);
                assert_eq!(autocommit, 1);
                base.close().await;
            }

            #[tokio::test]
            async fn an_error_of_an_abandoned_statement_is_not_taken_for_the_commit() {
                let base = Base::on($variable).await;
                let mut tx = base.fence(7).begin(&base.pool).await.unwrap();
                // Undone alone: the transaction goes on.
                let bad = "SELECT * FROM nowhere_at_all";
                let past = tx.connection().query_drop(bad).now_or_never();
                assert!(past.is_none());
                let outcome = tx.commit().await;
                assert!(
                    matches!(outcome, Err(FenceError::Unknown(_))),
                    "{outcome:?}"
                );
                let count = format!("SELECT COUNT(*) FROM {}", base.table.name());
                let mut conn = base.pool.get_conn().await.unwrap();
                let marks: Option<u64> = conn.query_first(count).await.unwrap();
                assert_eq!(marks, Some(1), "it was committed");
                drop(conn);
                base.close().await;
            }

            #[tokio::test]
            async fn a_guard_that_is_dropped_with_an_error_unread_leaves_nothing_open() {
                let base = Base::on($variable).await;
                let (first, _) = base.session().await;
                let mut tx = base.fence(7).begin(&base.pool).await.unwrap();
                let two = "SELECT 1; SELECT * FROM nowhere_at_all";
                let mut rows = tx.query_iter(two).await.unwrap();
                let ones: Vec<u8> = rows.collect().await.unwrap();
                assert_eq!(ones, [1]);
                drop(rows);
                drop(tx);
                let (second, autocommit) = base.session().await;
                assert_ne!(first, second, "a transaction is open there");
                assert_eq!(autocommit, 1);
                base.close().await;
            }

            #[tokio::test]
            async fn a_guard_that_is_dropped_among_several_answers_leaves_nothing_open() {
                let base = Base::on($variable).await;
                let mut tx = base.fence(7).begin(&base.pool).await.unwrap();
                // The second answer has begun when the first is read, and takes its time.
                let two = "SELECT 1; SELECT REPEAT('x', 100000) UNION ALL SELECT SLEEP(0.5)";
                drop(tx.query_iter(two).await.unwrap());
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(tx);
                let (_, autocommit) = base.session().await;
                assert_eq!(autocommit, 1);
                let count = format!("SELECT COUNT(*) FROM {}", base.table.name());
                let mut conn = base.pool.get_conn().await.unwrap();
                let marks: Option<u64> = conn.query_first(count).await.unwrap();
                assert_eq!(marks, Some(0), "the transaction is still open");
                drop(conn);
                base.close().await;
            }

            #[tokio::test]
            async fn a_dropped_guard_on_a_lent_connection_is_rolled_back_there() {
                let base = Base::on($variable).await;
                let mut conn = base.pool.get_conn().await.unwrap();
                let id = conn.id();
                drop(base.fence(7).begin_on(&mut conn).await.unwrap());
                let count = format!("SELECT COUNT(*) FROM {}", base.table.name());
                let marks: Option<u64> = conn.query_first(count).await.unwrap();
                assert_eq!(marks, Some(0), "the mark is still raised");
                drop(conn);
                assert_eq!(base.session().await, (u64::from(id), 1));
                base.close().await;
            }
        }
    };
}

server!(mysql, "HIGHWATER_TEST_MYSQL_URL");
server!(mariadb, "HIGHWATER_TEST_MARIADB_URL");

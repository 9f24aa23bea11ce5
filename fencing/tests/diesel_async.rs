//! What the conformance suite cannot see of diesel-async: connections whose answers are out of step,
//! and what the driver believes about them. The URLs come from HIGHWATER_TEST_*_URL.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::sync::atomic::{AtomicU32, Ordering};

use diesel::result::Error;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection as _, AsyncMysqlConnection, AsyncPgConnection,
    SimpleAsyncConnection as _, TransactionManager as _,
};
use futures_util::FutureExt as _;
use highwater_fencing::diesel_async::{Connection, DieselAsyncFence as _, FenceError};
use highwater_fencing::{Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken};
use highwater_fencing::{TableName, migrate};

/// Tables of its own, and the key `a` in them.
struct Base {
    table: TableName,
    rows: String,
}

impl Base {
    async fn on<C: Connection>(conn: &mut C) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let base = Self {
            table: TableName::new(format!("da_{}_{number}", std::process::id())).unwrap(),
            rows: format!("da_rows_{}_{number}", std::process::id()),
        };
        migrate::diesel_async::run_for(conn, &base.table)
            .await
            .unwrap();
        let create = format!("CREATE TABLE {} (id INT NOT NULL PRIMARY KEY)", base.rows);
        conn.batch_execute(&create).await.unwrap();
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

    fn insert(&self) -> String {
        format!("INSERT INTO {} VALUES (1)", self.rows)
    }

    /// Succeeds if nothing of the other transactions is in; waits for those that are still open.
    async fn drop_empty<C: Connection>(self, conn: &mut C) {
        conn.batch_execute(&self.insert()).await.unwrap();
        let drop = format!("DROP TABLE {}; DROP TABLE {}", self.rows, self.table.name());
        conn.batch_execute(&drop).await.unwrap();
    }
}

fn is_broken<T>(outcome: Result<T, FenceError>) -> bool {
    matches!(
        outcome,
        Err(FenceError::Database(Error::BrokenTransactionManager))
    )
}

macro_rules! server {
    ($name:ident, $connection:ty, $variable:literal, sleep: $sleep:literal, in_step: $in_step:literal) => {
        mod $name {
            use super::*;

            async fn connect() -> $connection {
                let url = std::env::var($variable);
                let url = url.unwrap_or_else(|_| panic!("set {} to a test server", $variable));
                <$connection>::establish(&url).await.unwrap()
            }

            #[tokio::test]
            async fn an_abandoned_statement_is_not_taken_for_the_commit() {
                let (mut conn, mut other) = (connect().await, connect().await);
                let base = Base::on(&mut other).await;
                let fence = base.fence(7);
                let mut tx = fence.begin(&mut conn).await.unwrap();
                let abandoned = tx.connection().batch_execute($sleep).now_or_never();
                assert!(abandoned.is_none());
                let outcome = tx.commit().await;
                if $in_step {
                    outcome.unwrap();
                    fence
                        .begin(&mut conn)
                        .await
                        .unwrap()
                        .rollback()
                        .await
                        .unwrap();
                } else {
                    assert!(
                        matches!(outcome, Err(FenceError::Unknown(_))),
                        "{outcome:?}"
                    );
                    assert!(is_broken(fence.begin(&mut conn).await));
                }
                drop(conn);
                base.drop_empty(&mut other).await;
            }

            #[tokio::test]
            async fn a_connection_out_of_step_is_not_given_back_by_a_rollback() {
                let (mut conn, mut other) = (connect().await, connect().await);
                let base = Base::on(&mut other).await;
                let (fence, insert) = (base.fence(7), base.insert());
                let refused: Result<(), FenceError> = fence
                    .transaction(&mut conn, async |conn| {
                        conn.batch_execute(&insert).await?;
                        assert!(conn.batch_execute($sleep).now_or_never().is_none());
                        Err(FenceError::Database(Error::RollbackTransaction))
                    })
                    .await;
                assert!(
                    matches!(
                        refused,
                        Err(FenceError::Database(Error::RollbackTransaction))
                    ),
                    "{refused:?}"
                );
                if $in_step {
                    fence
                        .begin(&mut conn)
                        .await
                        .unwrap()
                        .rollback()
                        .await
                        .unwrap();
                } else {
                    assert!(is_broken(fence.begin(&mut conn).await));
                }
                drop(conn);
                base.drop_empty(&mut other).await;
            }

            #[tokio::test]
            async fn a_nested_transaction_left_open_refuses_the_commit() {
                let (mut conn, mut other) = (connect().await, connect().await);
                let base = Base::on(&mut other).await;
                let mut tx = base.fence(7).begin(&mut conn).await.unwrap();
                tx.connection().batch_execute(&base.insert()).await.unwrap();
                AnsiTransactionManager::begin_transaction(tx.connection())
                    .await
                    .unwrap();
                let refused = tx.commit().await;
                assert!(
                    matches!(refused, Err(FenceError::Database(_))),
                    "{refused:?}"
                );
                base.drop_empty(&mut other).await;
            }

            #[tokio::test]
            async fn a_dropped_guard_breaks_its_connection_and_frees_the_mark() {
                let (mut conn, mut other) = (connect().await, connect().await);
                let base = Base::on(&mut other).await;
                let mut tx = base.fence(7).begin(&mut conn).await.unwrap();
                tx.connection().batch_execute(&base.insert()).await.unwrap();
                drop(tx);
                assert!(is_broken(base.fence(7).begin(&mut conn).await));
                // The connection is still there: it was rolled back, not only closed.
                let tx = base.fence(1).begin(&mut other).await.unwrap();
                tx.rollback().await.unwrap();
                base.drop_empty(&mut other).await;
                drop(conn);
            }
        }
    };
}

server!(postgres, AsyncPgConnection, "HIGHWATER_TEST_POSTGRES_URL",
    sleep: "SELECT pg_sleep(0.2)", in_step: true);
server!(mysql, AsyncMysqlConnection, "HIGHWATER_TEST_MYSQL_URL",
    sleep: "DO SLEEP(0.2)", in_step: false);
server!(mariadb, AsyncMysqlConnection, "HIGHWATER_TEST_MARIADB_URL",
    sleep: "DO SLEEP(0.2)", in_step: false);

//! The database: one row for each run of the job, behind the fencing adapter.

use std::time::Duration;

use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{Fence, FencingToken, migrate};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

use crate::Failure;

#[derive(Clone)]
pub(crate) struct Ledger(SqlitePool);

impl Ledger {
    pub(crate) async fn open(url: &str) -> Result<Self, sqlx::Error> {
        let options = url.parse::<SqliteConnectOptions>()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        Ok(Self(SqlitePool::connect_with(options).await?))
    }

    /// Creates the table of the job, and that of the marks.
    pub(crate) async fn create(&self) -> Result<(), Failure> {
        migrate::sqlite::run(&self.0).await?;
        let runs = "CREATE TABLE runs (number INTEGER PRIMARY KEY, node TEXT NOT NULL, \
                    token TEXT NOT NULL) STRICT";
        sqlx::raw_sql(runs).execute(&self.0).await?;
        Ok(())
    }

    /// Records one run, if nobody with a higher token was here before.
    pub(crate) async fn record(
        &self,
        fence: &Fence,
        node: &str,
        token: FencingToken,
    ) -> Result<(), FenceError> {
        fence
            .transaction(&self.0, async |tx| {
                sqlx::query("INSERT INTO runs (node, token) VALUES (?1, ?2)")
                    .bind(node)
                    .bind(token.to_string())
                    .execute(&mut *tx)
                    .await?;
                Ok::<_, FenceError>(())
            })
            .await
    }

    /// All runs in their order: node and token.
    pub(crate) async fn runs(&self) -> Result<Vec<(String, String)>, sqlx::Error> {
        let read = "SELECT node, token FROM runs ORDER BY number";
        sqlx::query_as(read).fetch_all(&self.0).await
    }
}

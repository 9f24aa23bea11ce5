//! A database of the test, whatever its kind.

use std::time::Duration;

use highwater_fencing::operate::Marks;
use highwater_fencing::sqlx::{FenceError, SqlxFence as _};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, migrate};
use highwater_tests::wait::eventually;
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

use crate::Outcome;

pub(crate) enum Shop {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// The same words over each kind of pool.
macro_rules! on_each {
    ($shop:expr, $pool:ident => $work:expr) => {
        match $shop {
            Shop::Postgres($pool) => $work,
            Shop::MySql($pool) => $work,
            Shop::Sqlite($pool) => $work,
        }
    };
}

impl Shop {
    /// Waits for a server that has just been started.
    pub(crate) async fn open(url: &str) -> Self {
        let limit = Duration::from_secs(120);
        eventually("the database answers", limit, async || {
            Some(match url.split(':').next() {
                Some("postgres") => Self::Postgres(PgPool::connect(url).await.ok()?),
                Some("mysql") => Self::MySql(MySqlPool::connect(url).await.ok()?),
                _ => Self::Sqlite(SqlitePool::connect(url).await.ok()?),
            })
        })
        .await
    }

    pub(crate) async fn close(self) {
        on_each!(self, pool => pool.close().await);
    }

    pub(crate) async fn migrate(&self) -> Outcome<()> {
        match self {
            Self::Postgres(pool) => migrate::postgres::run(pool).await?,
            Self::MySql(pool) => migrate::mysql::run(pool).await?,
            Self::Sqlite(pool) => migrate::sqlite::run(pool).await?,
        };
        Ok(())
    }

    pub(crate) fn marks(&self) -> Marks {
        on_each!(self, pool => Marks::new(pool.clone()))
    }

    /// A fenced transaction that leaves what can be told from every other.
    pub(crate) async fn write(&self, name: &str, token: u64) -> Result<(), FenceError> {
        let sql = format!("INSERT INTO writes VALUES ('{name}', {token})");
        let token = FencingToken::new(token).expect("not zero");
        let fence = Fence::new(domain(), key(name), token);
        on_each!(self, pool => {
            fence
                .transaction(pool, async |tx| {
                    sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut *tx).await?;
                    Ok::<_, FenceError>(())
                })
                .await
        })
    }

    pub(crate) async fn run(&self, sql: &str) -> Outcome<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        Ok(on_each!(self, pool => sql.execute(pool).await.map(drop))?)
    }

    pub(crate) async fn number(&self, sql: &str) -> Outcome<i64> {
        let sql = sql.to_owned();
        Ok(on_each!(self, pool => {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await
        })?)
    }
}

pub(crate) fn domain() -> Domain {
    Domain::named("locks").expect("a name")
}

pub(crate) fn key(name: &str) -> FenceKey {
    FenceKey::new(name).expect("a key")
}

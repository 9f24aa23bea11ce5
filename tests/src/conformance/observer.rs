//! The observer: a pool of sqlx's beside the adapter under test.
//!
//! What it sees is committed. It also plays the other users of the database: sessions that hold
//! locks, migrations of the user's own.

use highwater_fencing::TableName;
use highwater_fencing::migrate;
use highwater_proof::adapter::Dialect;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::{AssertSqlSafe, Error, MySql, MySqlPool, PgPool, Postgres, Sqlite, SqlitePool};

use super::world::PATIENCE;

/// Connections that only look, or disturb.
#[derive(Debug)]
pub(super) enum Observer {
    /// To PostgreSQL.
    Postgres(PgPool),
    /// To MySQL or MariaDB.
    MySql(MySqlPool),
    /// To a file.
    Sqlite(SqlitePool),
}

/// One connection of an observer.
#[derive(Debug)]
pub(super) enum Session {
    /// To PostgreSQL.
    Postgres(PoolConnection<Postgres>),
    /// To MySQL or MariaDB.
    MySql(PoolConnection<MySql>),
    /// To a file.
    Sqlite(PoolConnection<Sqlite>),
}

/// Runs the same code for whichever it is.
macro_rules! each {
    ($of:ident, $value:expr, $inner:ident => $do:expr) => {
        match $value {
            $of::Postgres($inner) => $do,
            $of::MySql($inner) => $do,
            $of::Sqlite($inner) => $do,
        }
    };
}

impl Observer {
    /// Connects up to `connections` times to the database of this URL.
    pub(super) async fn connect(
        dialect: Dialect,
        url: &str,
        connections: u32,
    ) -> Result<Self, Error> {
        macro_rules! connect {
            ($kind:ident) => {{
                let options = PoolOptions::<$kind>::new().max_connections(connections);
                let options = options.min_connections(0).acquire_timeout(PATIENCE);
                Self::$kind(options.connect(url).await?)
            }};
        }
        Ok(match dialect {
            Dialect::Postgres => connect!(Postgres),
            Dialect::MySql => connect!(MySql),
            Dialect::Sqlite => connect!(Sqlite),
        })
    }

    /// Runs SQL, perhaps several statements.
    pub(super) async fn run(&self, sql: &str) -> Result<u64, Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        Ok(each!(Self, self, pool => sql.execute(pool).await?.rows_affected()))
    }

    /// Reads one number, if there is a row.
    pub(super) async fn number(&self, sql: &str) -> Result<Option<i64>, Error> {
        let sql = AssertSqlSafe(sql);
        each!(Self, self, pool => sqlx::query_scalar(sql).fetch_optional(pool).await)
    }

    /// One connection for oneself.
    pub(super) async fn session(&self) -> Result<Session, Error> {
        Ok(match self {
            Self::Postgres(pool) => Session::Postgres(pool.acquire().await?),
            Self::MySql(pool) => Session::MySql(pool.acquire().await?),
            Self::Sqlite(pool) => Session::Sqlite(pool.acquire().await?),
        })
    }

    /// Creates a table of marks.
    pub(super) async fn migrate(
        &self,
        table: &TableName,
    ) -> Result<migrate::Outcome, migrate::Error> {
        match self {
            Self::Postgres(pool) => migrate::postgres::run_for(pool, table).await,
            Self::MySql(pool) => migrate::mysql::run_for(pool, table).await,
            Self::Sqlite(pool) => migrate::sqlite::run_for(pool, table).await,
        }
    }

    /// Applies a user's own migrations, with sqlx's own means.
    pub(super) async fn run_migrator(&self, migrator: Migrator) -> Result<(), MigrateError> {
        each!(Self, self, pool => migrator.run(pool).await)
    }

    pub(super) async fn close(&self) {
        each!(Self, self, pool => pool.close().await);
    }
}

impl Session {
    /// Runs SQL, perhaps several statements.
    pub(super) async fn run(&mut self, sql: &str) -> Result<u64, Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        Ok(each!(Self, self, conn => sql.execute(&mut **conn).await?.rows_affected()))
    }

    /// Reads one number, if there is a row.
    pub(super) async fn number(&mut self, sql: &str) -> Result<Option<i64>, Error> {
        let sql = AssertSqlSafe(sql);
        each!(Self, self, conn => sqlx::query_scalar(sql).fetch_optional(&mut **conn).await)
    }
}

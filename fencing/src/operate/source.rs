//! The pools and connections of sqlx behind one face: text in, rows of text out.

use ::sqlx::{AssertSqlSafe, Connection as _, Error, Executor as _, Row as _, raw_sql};

use crate::migrate::Dialect;
use crate::sql::Class;
use crate::sqlx::driver::Driver as _;

/// A pool of sqlx.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// PostgreSQL.
    #[cfg(feature = "sqlx-postgres")]
    Postgres(::sqlx::PgPool),
    /// MySQL or MariaDB.
    #[cfg(feature = "sqlx-mysql")]
    MySql(::sqlx::MySqlPool),
    /// SQLite.
    #[cfg(feature = "sqlx-sqlite")]
    Sqlite(::sqlx::SqlitePool),
}

#[cfg(feature = "sqlx-postgres")]
impl From<::sqlx::PgPool> for Source {
    fn from(pool: ::sqlx::PgPool) -> Self {
        Self::Postgres(pool)
    }
}

#[cfg(feature = "sqlx-mysql")]
impl From<::sqlx::MySqlPool> for Source {
    fn from(pool: ::sqlx::MySqlPool) -> Self {
        Self::MySql(pool)
    }
}

#[cfg(feature = "sqlx-sqlite")]
impl From<::sqlx::SqlitePool> for Source {
    fn from(pool: ::sqlx::SqlitePool) -> Self {
        Self::Sqlite(pool)
    }
}

/// A connection that belongs to no pool any more.
#[derive(Debug)]
pub(super) enum Link {
    #[cfg(feature = "sqlx-postgres")]
    Postgres(::sqlx::PgConnection),
    #[cfg(feature = "sqlx-mysql")]
    MySql(::sqlx::MySqlConnection),
    #[cfg(feature = "sqlx-sqlite")]
    Sqlite(::sqlx::SqliteConnection),
}

/// The same words over each kind of connection.
macro_rules! on_each {
    ($kind:ident, $value:expr, $inner:ident => $work:expr) => {
        match $value {
            #[cfg(feature = "sqlx-postgres")]
            $kind::Postgres($inner) => $work,
            #[cfg(feature = "sqlx-mysql")]
            $kind::MySql($inner) => $work,
            #[cfg(feature = "sqlx-sqlite")]
            $kind::Sqlite($inner) => $work,
        }
    };
}

impl Link {
    /// Takes a connection out of the pool.
    pub(super) async fn open(source: &Source) -> Result<Self, Error> {
        Ok(match source {
            #[cfg(feature = "sqlx-postgres")]
            Source::Postgres(pool) => Self::Postgres(pool.acquire().await?.detach()),
            #[cfg(feature = "sqlx-mysql")]
            Source::MySql(pool) => Self::MySql(pool.acquire().await?.detach()),
            #[cfg(feature = "sqlx-sqlite")]
            Source::Sqlite(pool) => Self::Sqlite(pool.acquire().await?.detach()),
        })
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            #[cfg(feature = "sqlx-postgres")]
            Self::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "sqlx-mysql")]
            Self::MySql(_) => Dialect::MySql,
            #[cfg(feature = "sqlx-sqlite")]
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Runs statements that give no rows.
    pub(super) async fn run(&mut self, sql: String) -> Result<(), Error> {
        let sql = raw_sql(AssertSqlSafe(sql));
        on_each!(Self, self, conn => conn.execute(sql).await.map(drop))
    }

    /// Runs a query all of whose columns are text.
    pub(super) async fn rows(&mut self, sql: String) -> Result<Vec<Vec<String>>, Error> {
        let sql = raw_sql(AssertSqlSafe(sql));
        on_each!(Self, self, conn => {
            let rows = conn.fetch_all(sql).await?;
            rows.iter().map(|row| (0..row.len()).map(|column| row.try_get(column)).collect()).collect()
        })
    }

    /// Whether the server goes on living without it is not of interest.
    pub(super) async fn close(self) {
        on_each!(Self, self, conn => conn.close().await).ok();
    }

    /// What an error on a connection of this dialect means.
    pub(super) fn class(dialect: Dialect, error: &Error) -> Class {
        match dialect {
            #[cfg(feature = "sqlx-postgres")]
            Dialect::Postgres => ::sqlx::Postgres::class(error),
            #[cfg(feature = "sqlx-mysql")]
            Dialect::MySql => ::sqlx::MySql::class(error),
            #[cfg(feature = "sqlx-sqlite")]
            Dialect::Sqlite => ::sqlx::Sqlite::class(error),
            #[allow(unreachable_patterns, reason = "not with all features")]
            _ => Class::Other,
        }
    }
}

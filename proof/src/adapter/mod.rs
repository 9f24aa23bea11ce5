//! What the suites ask of an adapter, independent of its driver.
//!
//! An [`Adapter`] opens a [`Source`], a pool or what comes closest; a source begins fenced
//! transactions in every form that the adapter has, and hands them out as a boxed [`Tx`]. SQL goes
//! in as text without binds, and numbers come out. Keys that are not plain text go only through
//! fences.

#[cfg(any(
    feature = "diesel-mysql",
    feature = "diesel-postgres",
    feature = "diesel-sqlite"
))]
mod diesel;
#[cfg(feature = "diesel-async")]
mod diesel_async;
mod error;
#[cfg(feature = "mysql-async")]
mod mysql_async;
#[cfg(feature = "rusqlite")]
mod rusqlite;
#[cfg(feature = "sea-orm")]
mod sea_orm;
#[cfg(any(
    feature = "diesel-async",
    feature = "diesel-mysql",
    feature = "diesel-postgres",
    feature = "diesel-sqlite",
    feature = "mysql-async",
    feature = "rusqlite",
    feature = "sqlx",
    feature = "tokio-postgres"
))]
mod session;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::future::BoxFuture;
use highwater_fencing::{Configured, FenceError, Resolution, TableName};

pub use error::{BoxError, DriverError};

/// The SQL that a database speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

impl std::fmt::Display for Dialect {
    /// The databases that speak it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL and MariaDB",
            Self::Sqlite => "SQLite",
        })
    }
}

/// What differs between adapters by their nature, and why. Everything that is not here is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Statements go through the guard, which sees their errors and refuses what comes after one.
    /// Otherwise the user gets the driver's own connection, and only the commit is guarded.
    pub sees_errors: bool,
    /// A transaction that the user began with the driver can be joined.
    pub joins: bool,
    /// A connection that the user holds can be lent, and is used afterwards.
    pub lends: bool,
    /// The driver counts savepoints, so that a fence inside one is refused.
    pub counts_savepoints: bool,
    /// Dropping a future in the middle stops it; a blocking driver runs to the end of its call.
    pub cancels: bool,
    /// Connections come from a pool, which gets them back when a guard ends.
    pub pools: bool,
    /// On SQLite: a commit hook refuses every commit but the guard's. False elsewhere.
    pub vetoes: bool,
}

/// One adapter on one database dialect, such as diesel on PostgreSQL.
pub trait Adapter: Send + Sync {
    /// The name of the feature without the database: `sqlx`, `tokio-postgres`, `diesel`, …
    fn name(&self) -> &'static str;
    /// The dialect that it speaks.
    fn dialect(&self) -> Dialect;
    /// What it can do.
    fn abilities(&self) -> Abilities;
    /// What can be put behind a URL to change how the driver counts affected rows; one of them is
    /// the default. `client_found_rows=false` stands in those that count changed rows only.
    fn url_variants(&self) -> &'static [&'static str] {
        &[""]
    }
    /// Opens up to `connections` connections to the database of this URL: `postgres://…`,
    /// `mysql://…`, or `sqlite://PATH?mode=rwc`.
    fn open<'a>(
        &'a self,
        url: &'a str,
        connections: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Source>, DriverError>>;
}

/// The body of a fenced transaction; it is called again for each attempt. What a statement failed
/// with can be returned with `?`.
pub type Body = Arc<
    dyn for<'t> Fn(&'t mut dyn Statements) -> BoxFuture<'t, Result<i64, BoxError>> + Send + Sync,
>;

/// Makes a [`Body`] of a closure that gives a boxed future.
pub fn body<F>(closure: F) -> Body
where
    F: for<'t> Fn(&'t mut dyn Statements) -> BoxFuture<'t, Result<i64, BoxError>>
        + Send
        + Sync
        + 'static,
{
    Arc::new(closure)
}

/// A form that gives a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `begin`.
    Begin,
    /// `begin_on`.
    Lend,
    /// `admit`.
    Join,
}

/// How a guard ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With `commit`.
    Commit,
    /// With `rollback`.
    Rollback,
    /// By being dropped.
    Drop,
}

/// The verdict of an adapter, over text instead of its driver's error.
pub type Verdict = FenceError<DriverError>;

/// Connections of one adapter to one database.
pub trait Source: Send + Sync {
    /// The guard form.
    fn begin<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>>;

    /// The join form: begins a transaction with the driver's own means, runs `before` in it, and
    /// joins it.
    fn admit<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>>;

    /// The same inside a nested transaction of the driver, which is a savepoint. It must be refused;
    /// `then` runs in the outer transaction afterwards, which is committed.
    fn admit_nested<'a>(
        &'a self,
        fence: &'a Configured,
        then: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>>;

    /// The lend form: takes a connection, runs `before` on it, fences on it, and keeps it until the
    /// guard ended.
    fn begin_on<'a>(
        &'a self,
        before: &'a str,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>>;

    /// The lend form on a connection that is inside a transaction, one that the driver knows of
    /// where it can. It must be refused, or fence that very transaction.
    fn begin_on_nested<'a>(
        &'a self,
        fence: &'a Configured,
    ) -> BoxFuture<'a, Result<Box<dyn Tx>, Verdict>> {
        self.begin_on("BEGIN", fence)
    }

    /// The closure form. The error is the body's own, or a [`Verdict`].
    fn transaction<'a>(
        &'a self,
        fence: &'a Configured,
        body: Body,
    ) -> BoxFuture<'a, Result<i64, BoxError>>;

    /// One whole transaction with `sql` in it, all of it inside the future that is returned, so that
    /// dropping that abandons it wherever it is. `started` is set when what belongs to the driver
    /// alone is done, such as its own `begin` before a join: only what follows is abandoned.
    fn walk<'a>(
        &'a self,
        form: Form,
        fence: &'a Configured,
        sql: &'a str,
        end: End,
        started: &'a AtomicBool,
    ) -> BoxFuture<'a, Result<(), Verdict>>;

    /// Asks what became of a write.
    fn resolve<'a>(&'a self, fence: &'a Configured) -> BoxFuture<'a, Result<Resolution, Verdict>>;

    /// Runs SQL outside of a fence, perhaps several statements, on any connection.
    fn run<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<(), DriverError>>;

    /// Begins a transaction of the driver without a fence, for controls.
    fn begin_unfenced(&self) -> BoxFuture<'_, Result<Box<dyn Tx>, DriverError>>;

    /// Creates the table of marks with the adapter's own means.
    fn migrate<'a>(&'a self, table: &'a TableName) -> BoxFuture<'a, Result<(), DriverError>>;

    /// Closes all connections, after those in use came back.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Statements in a transaction.
pub trait Statements: Send {
    /// Runs SQL, perhaps several statements, and gives the affected rows of the last one where the
    /// driver tells.
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>>;
    /// Reads one number, if there is a row.
    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>>;
    /// Runs SQL past the guard, on the driver's own connection.
    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>>;
    /// Reads one number past the guard.
    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>>;

    /// Runs SQL in a nested transaction, the driver's own where it has one, and keeps it or not.
    fn nested<'a>(
        &'a mut self,
        sql: &'a str,
        keep: bool,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        Box::pin(async move {
            self.run_past("SAVEPOINT nested").await?;
            self.run_past(sql).await?;
            if !keep {
                self.run_past("ROLLBACK TO SAVEPOINT nested").await?;
            }
            self.run_past("RELEASE SAVEPOINT nested").await.map(drop)
        })
    }
}

/// A guard. Dropped without an end, it is rolled back.
pub trait Tx: Statements {
    /// Commits.
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>>;
    /// Rolls back.
    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>>;
}

/// All adapters of this build.
pub fn all() -> Vec<&'static dyn Adapter> {
    let mut all: Vec<&'static dyn Adapter> = Vec::new();
    #[cfg(feature = "sqlx")]
    all.extend(sqlx::ADAPTERS);
    #[cfg(feature = "tokio-postgres")]
    all.extend(tokio_postgres::ADAPTERS);
    #[cfg(any(
        feature = "diesel-mysql",
        feature = "diesel-postgres",
        feature = "diesel-sqlite"
    ))]
    all.extend(diesel::ADAPTERS);
    #[cfg(feature = "diesel-async")]
    all.extend(diesel_async::ADAPTERS);
    #[cfg(feature = "rusqlite")]
    all.extend(rusqlite::ADAPTERS);
    #[cfg(feature = "mysql-async")]
    all.extend(mysql_async::ADAPTERS);
    #[cfg(feature = "sea-orm")]
    all.extend(sea_orm::ADAPTERS);
    all
}

//! The guard: an open transaction whose fence was admitted.
//!
//! It is the guard of the sqlx adapter on a connection out of the pool that sea-orm keeps, so that
//! beginning, committing and cleaning up are the same to the letter. What is added is sea-orm's face.

use std::fmt;

use ::sea_orm::{DatabaseConnection, DatabaseConnectionType, DbBackend};
use tokio::sync::Mutex;

use super::FenceError;
use super::connection::PastGuard;
use super::error::{query, unsupported};
use crate::sqlx::Fenced as Guard;
use crate::{Fence, FenceOptions};

/// An open transaction whose fence was admitted.
///
/// It is a [`ConnectionTrait`](::sea_orm::ConnectionTrait): write `Entity::find().one(tx)`, as with
/// a plain connection. A function that takes `&Fenced` cannot be called without a fence.
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   it is rolled back; a connection to PostgreSQL or MySQL is closed for that.
/// - The first error of the driver *poisons* it: every later statement is refused (see
///   [`poisoned`](super::poisoned)), and so is the commit. A row that was not found, or a value of
///   another type than expected, is no such error. A statement whose future is dropped before its
///   answer came poisons too.
/// - There is no nested transaction, since it is not a `TransactionTrait`.
/// - On SQLite it replaces a commit hook and a rollback hook that were set on the connection.
#[must_use = "a fenced transaction that is dropped is rolled back"]
pub struct Fenced {
    pub(crate) guard: AnyGuard,
}

/// The guard of the database in question. Statements take turns.
pub(crate) enum AnyGuard {
    #[cfg(feature = "sea-orm-mysql")]
    MySql(Mutex<Guard<'static, ::sqlx::MySql>>),
    #[cfg(feature = "sea-orm-postgres")]
    Postgres(Mutex<Guard<'static, ::sqlx::Postgres>>),
    #[cfg(feature = "sea-orm-sqlite")]
    Sqlite(Mutex<Guard<'static, ::sqlx::Sqlite>>),
}

/// Does the same with whichever guard it is.
macro_rules! each {
    ($guard:expr, $tx:ident => $do:expr) => {
        match $guard {
            #[cfg(feature = "sea-orm-mysql")]
            AnyGuard::MySql($tx) => $do,
            #[cfg(feature = "sea-orm-postgres")]
            AnyGuard::Postgres($tx) => $do,
            #[cfg(feature = "sea-orm-sqlite")]
            AnyGuard::Sqlite($tx) => $do,
        }
    };
}
pub(crate) use each;

impl Fenced {
    /// Begins on a connection of the pool.
    pub(crate) async fn begin(
        db: &DatabaseConnection,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        macro_rules! begin {
            ($variant:ident, $pool:expr) => {{
                let begun = Guard::begin($pool, fence, options).await;
                AnyGuard::$variant(Mutex::new(begun.map_err(verdict)?))
            }};
        }
        let guard = match &db.inner {
            #[cfg(feature = "sea-orm-mysql")]
            DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
                begin!(MySql, db.get_mysql_connection_pool())
            }
            #[cfg(feature = "sea-orm-postgres")]
            DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
                begin!(Postgres, db.get_postgres_connection_pool())
            }
            #[cfg(feature = "sea-orm-sqlite")]
            DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
                begin!(Sqlite, db.get_sqlite_connection_pool())
            }
            _ => return Err(FenceError::Database(unsupported())),
        };
        Ok(Self { guard })
    }

    /// The same transaction without the eyes of the guard, as a
    /// [`ConnectionTrait`](::sea_orm::ConnectionTrait).
    ///
    /// Errors are not seen there and do not poison. What still holds: the commit never succeeds
    /// unless the transaction is the one that took the fence. Do not end it with raw SQL, and do
    /// not drop a statement before its answer came.
    pub fn connection(&self) -> PastGuard<'_> {
        PastGuard(self)
    }

    /// Commits, and reports success only if the transaction was committed under its fence.
    ///
    /// Dropping the future leaves the outcome unknown.
    ///
    /// # Errors
    /// - [`FenceError::Poisoned`]: a statement failed before; rolled back.
    /// - [`FenceError::Database`]: the database refused the commit; rolled back.
    /// - [`FenceError::Ended`]: another statement had ended the transaction.
    /// - [`FenceError::Unknown`]: the connection failed; the transaction may be in.
    pub async fn commit(mut self) -> Result<(), FenceError> {
        self.finish().await
    }

    /// Rolls back. The mark goes back with everything else.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the driver failed. The connection is then not used again, and
    /// nothing of the transaction will be in the database.
    pub async fn rollback(mut self) -> Result<(), FenceError> {
        self.end().await
    }

    /// Commits without consuming the guard.
    pub(crate) async fn finish(&mut self) -> Result<(), FenceError> {
        each!(&mut self.guard, tx => tx.get_mut().finish().await.map_err(verdict))
    }

    /// Rolls back without consuming the guard.
    pub(crate) async fn end(&mut self) -> Result<(), FenceError> {
        let ended = each!(&mut self.guard, tx => tx.get_mut().end().await);
        ended.map_err(|error| FenceError::Database(query(error)))
    }

    /// Whether the whole transaction may succeed if it is run again.
    pub(crate) fn is_transient(&mut self) -> bool {
        each!(&mut self.guard, tx => tx.get_mut().is_transient())
    }

    /// Which database it is.
    pub(crate) fn backend(&self) -> DbBackend {
        match &self.guard {
            #[cfg(feature = "sea-orm-mysql")]
            AnyGuard::MySql(_) => DbBackend::MySql,
            #[cfg(feature = "sea-orm-postgres")]
            AnyGuard::Postgres(_) => DbBackend::Postgres,
            #[cfg(feature = "sea-orm-sqlite")]
            AnyGuard::Sqlite(_) => DbBackend::Sqlite,
        }
    }
}

impl fmt::Debug for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(&self.guard, tx => f.debug_tuple("Fenced").field(tx).finish())
    }
}

/// The verdict over sea-orm's error.
fn verdict(error: crate::sqlx::FenceError) -> FenceError {
    error.map_driver(query)
}

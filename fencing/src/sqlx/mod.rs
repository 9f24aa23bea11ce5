//! Fenced transactions for sqlx 0.9, on PostgreSQL, MySQL, MariaDB and SQLite.
//!
//! [`SqlxFence`] adds the forms to [`Fence`](crate::Fence) and to
//! [`Configured`](crate::Configured); all of them give or pass a [`Fenced`] transaction. What the
//! databases are asked stands in `crate::sql`; here is how sqlx asks it, and how a transaction is
//! ended without ever reporting a commit that did not happen.
//!
//! ```no_run
//! use highwater_fencing::Fence;
//! use highwater_fencing::sqlx::{FenceError, Fenced, SqlxFence as _};
//!
//! // Cannot be called without a fence, whichever form it came from.
//! async fn deduct(tx: &mut Fenced<'_, sqlx::Postgres>, sku: &str) -> Result<(), sqlx::Error> {
//!     sqlx::query("UPDATE stock SET quantity = quantity - 1 WHERE sku = $1")
//!         .bind(sku)
//!         .execute(&mut *tx)
//!         .await?;
//!     Ok(())
//! }
//!
//! # async fn forms(pool: &sqlx::PgPool, fence: Fence) -> Result<(), FenceError> {
//! // Closure: commits, rolls back and retries by itself.
//! fence.transaction(pool, async |tx| Ok::<_, FenceError>(deduct(tx, "apple").await?)).await?;
//!
//! // Guard.
//! let mut tx = fence.begin(pool).await?;
//! deduct(&mut tx, "apple").await?;
//! tx.commit().await?;
//!
//! // A connection of yours, or a transaction that you began.
//! let mut conn = pool.acquire().await?;
//! let mut tx = fence.begin_on(&mut conn).await?;
//! deduct(&mut tx, "apple").await?;
//! tx.commit().await?;
//! let mut tx = fence.admit(pool.begin().await?).await?;
//! deduct(&mut tx, "apple").await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How the commit cannot lie
//! Right after the fence a savepoint is set, the *marker*. It vanishes when anything ends the
//! transaction or rolls the fence back. The commit first releases the marker and goes on only if
//! that worked. On MySQL and MariaDB a transaction from a pool also runs without autocommit, and on
//! SQLite a commit hook refuses every commit but ours for as long as the guard lives, so that
//! statements which run after a silent end are not kept. (A guard that is dropped opens the hook: a
//! statement that was cancelled half-way *behind a raw `ROLLBACK` of yours* may still be kept then.)
//!
//! # Cancelling
//! Every future here may be dropped at any point, and a guard at any time. A transaction from a
//! pool leaves nothing behind: on PostgreSQL and MySQL its connection is closed instead of being
//! reused, on SQLite it is rolled back. For connections that were lent or joined see
//! [`SqlxFence::begin_on`] and [`SqlxFence::admit`].

mod dialect;
pub(crate) mod driver;
mod executor;
mod fenced;
mod form;
mod health;
mod link;
pub(crate) mod migrate;
#[cfg(feature = "sqlx-mysql")]
mod mysql;
#[cfg(feature = "sqlx-postgres")]
mod postgres;
#[cfg(feature = "sqlx-sqlite")]
mod sqlite;
mod write;

pub use crate::Poisoned;
pub use dialect::Dialect;
pub use fenced::Fenced;
pub use form::SqlxFence;
pub use link::Lend;
pub use write::RowWrite;

/// Why a fenced transaction of sqlx was refused or not committed.
pub type FenceError = crate::FenceError<::sqlx::Error>;

impl From<::sqlx::Error> for FenceError {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// What an error means for the transaction, whichever database it came from.
#[cfg(feature = "__sea-orm")]
pub(crate) fn class(error: &::sqlx::Error) -> crate::sql::Class {
    use driver::Driver;

    use crate::sql::Class;

    let classes = [
        #[cfg(feature = "sqlx-mysql")]
        ::sqlx::MySql::class,
        #[cfg(feature = "sqlx-postgres")]
        ::sqlx::Postgres::class,
        #[cfg(feature = "sqlx-sqlite")]
        ::sqlx::Sqlite::class,
    ];
    // Each database knows its own errors only.
    let known = classes.iter().map(|class| class(error));
    known.fold(Class::Other, |found, class| match found {
        Class::Other => class,
        found => found,
    })
}

/// The program of the adapter's page, which has to compile.
#[cfg(all(doctest, feature = "sqlx-postgres"))]
#[doc = include_str!("../../../docs/adapters/sqlx.md")]
struct Page;

//! Fencing adapters: the comparison of a fencing token with the highest one seen, and the business
//! write, in **one** database transaction.
//!
//! A lock orders its holders but cannot stop one that slept past its lease and then writes. The
//! database can. Each protected key has a *mark*, the highest [`FencingToken`] admitted so far, in
//! the table `highwater_fence` of the database that holds the business rows. A fenced transaction
//! raises the mark before anything else, keeps the row locked to its end, and is refused with
//! [`FenceError::Stale`] when a newer holder was there before.
//!
//! ```no_run
//! # #[derive(Debug, thiserror::Error)]
//! # enum AppError {
//! #     #[error(transparent)] Fence(#[from] highwater_fencing::sqlx::FenceError),
//! #     #[error(transparent)] Sql(#[from] sqlx::Error),
//! # }
//! use highwater_fencing::{Fence, sqlx::SqlxFence as _};
//!
//! async fn deduct(pool: &sqlx::PgPool, fence: &Fence, sku: &str) -> Result<(), AppError> {
//!     fence.transaction(pool, async |tx| {
//!         // What the write relies on is read here, behind the fence.
//!         let left: i64 = sqlx::query_scalar("SELECT quantity FROM stock WHERE sku = $1")
//!             .bind(sku).fetch_one(&mut *tx).await?;
//!         sqlx::query("UPDATE stock SET quantity = $2 WHERE sku = $1")
//!             .bind(sku).bind(left - 1).execute(&mut *tx).await?;
//!         Ok(())
//!     }).await
//! }
//! ```
//!
//! # What is where
//! - [`Fence`]: keys, tokens and domain, from a lock client's ticket or built by hand.
//! - [`FenceOptions`]: another table, the retry budget, the isolation level.
//! - [`sqlx`](mod@crate::sqlx): the forms for sqlx 0.9 on PostgreSQL, MySQL/MariaDB and SQLite.
//! - [`tokio_postgres`](mod@crate::tokio_postgres): the same for tokio-postgres 0.7, in three, two or
//!   one round trip.
//! - [`diesel_async`](mod@crate::diesel_async): the same for diesel-async 0.9 on PostgreSQL, MySQL and
//!   MariaDB, over its own connections.
//! - [`mysql_async`](mod@crate::mysql_async): the same for mysql_async 0.36 on MySQL and MariaDB.
//! - [`rusqlite`](mod@crate::rusqlite): the same for rusqlite 0.39, which blocks.
//! - [`sea_orm`](mod@crate::sea_orm): the same for sea-orm 2, so that its entities work inside.
//! - [`operate`]: inspects the marks, moves them to another domain, raises them.
//! - [`migrate`]: creates the table, or prints the SQL for your own migrations.
//!
//! # Rules that hold for every adapter
//! - Token higher than the mark: admitted, the mark is raised. Equal: admitted. Lower: refused.
//! - A mark belongs to one [`Domain`]; tokens of another one are refused until an operator moves
//!   the mark.
//! - A fence covers what happens after it: read what a write relies on inside the transaction.
//! - The mark stays locked to the end of the transaction: a second transaction that fences the same
//!   key from inside the first waits for it, and so for itself.
//! - Two databases have two marks: fence each of them. There is no atomicity across databases.

#[cfg(feature = "__async")]
mod body;
mod error;
#[cfg(feature = "__adapter")]
#[allow(dead_code, reason = "not every adapter sees errors")]
mod health;
#[cfg(any(feature = "rusqlite", feature = "sqlx-sqlite"))]
mod hooks;
pub mod migrate;
#[cfg(feature = "__adapter")]
mod offer;
#[cfg(feature = "__sqlx")]
pub mod operate;
mod options;
pub mod protect;
mod resolution;
#[cfg(feature = "__adapter")]
mod retry;
pub mod row_token;
#[cfg(feature = "__adapter")]
#[allow(dead_code, reason = "not every adapter needs all of it")]
mod sql;
#[cfg(feature = "__adapter")]
mod written;

#[cfg(feature = "__diesel")]
pub mod diesel;
#[cfg(feature = "__diesel-async")]
pub mod diesel_async;
#[cfg(feature = "mysql-async")]
pub mod mysql_async;
#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(feature = "__sea-orm")]
pub mod sea_orm;
#[cfg(any(
    feature = "sqlx-mysql",
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite"
))]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

#[cfg(feature = "__async")]
pub use body::Body;
pub use error::FenceError;
#[cfg(feature = "__adapter")]
pub use health::Poisoned;
pub use highwater_lock::{Domain, Fence, FenceKey, FencingToken, Key, KeySet, Mark, Step};
pub use options::{Configured, DomainPolicy, FenceOptions, Isolation, TableName, TableNameError};
pub use resolution::Resolution;
#[cfg(feature = "__adapter")]
pub use written::Written;

/// The example of the guide to the command line.
#[cfg(doctest)]
#[doc = include_str!("../../docs/command-line.md")]
mod command_line {}

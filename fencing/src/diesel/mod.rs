//! Fenced transactions for diesel 2.3, on PostgreSQL, MySQL, MariaDB and SQLite.
//!
//! [`DieselFence`] adds the forms to [`Fence`](crate::Fence) and to
//! [`Configured`](crate::Configured). They run on a connection of the caller, bare or from a pool of
//! r2d2 (as `&mut *pooled`), and block the thread as diesel does. What the databases are asked
//! stands in `crate::sql`; here is how diesel asks it.
//!
//! ```no_run
//! use diesel::prelude::*;
//! use highwater_fencing::Fence;
//! use highwater_fencing::diesel::{DieselFence as _, FenceError};
//!
//! diesel::table! { stock (sku) { sku -> Text, quantity -> BigInt, } }
//!
//! fn deduct(conn: &mut SqliteConnection, sku: &str) -> QueryResult<usize> {
//!     diesel::update(stock::table.find(sku))
//!         .set(stock::quantity.eq(stock::quantity - 1))
//!         .execute(conn)
//! }
//!
//! # fn forms(conn: &mut SqliteConnection, fence: Fence) -> Result<(), FenceError> {
//! // Closure: commits, rolls back and retries by itself.
//! fence.transaction(conn, |conn| Ok::<_, FenceError>(deduct(conn, "apple")?))?;
//!
//! // Guard.
//! let mut tx = fence.begin(conn)?;
//! deduct(tx.connection(), "apple")?;
//! tx.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! # How the commit cannot lie
//! Right after the fence a savepoint is set, the *marker*. It vanishes when anything ends the
//! transaction or rolls the fence back. The commit first releases the marker and goes on only if
//! that worked. On MySQL and MariaDB the transaction also runs without autocommit, so that
//! statements which run after a silent end are not kept.
//!
//! # What differs from other adapters
//! - The body gets diesel's own connection, because diesel's query builder takes no other. Its errors
//!   are not seen, so nothing is *poisoned*: on MySQL, MariaDB and SQLite a body that swallows the
//!   error of a statement commits the rest, still under its fence.
//! - diesel has no commit hook on SQLite. What runs after a raw `COMMIT` or `ROLLBACK`, or after an
//!   `ON CONFLICT ROLLBACK`, is kept there, although the commit answers
//!   [`FenceError::Ended`](crate::FenceError::Ended).
//! - There is no `admit`: the commit of diesel's own `transaction` reports success for a transaction
//!   that PostgreSQL has aborted, and a fence cannot change that from inside.
//! - diesel hides SQLSTATEs. On PostgreSQL a deadlock, and a lock wait that timed out, are recognised
//!   by their English texts; with another `lc_messages` they are reported but not retried.

mod dialect;
mod driver;
mod fenced;
mod form;
#[cfg(feature = "diesel-mysql")]
mod mysql;
#[cfg(feature = "diesel-postgres")]
mod postgres;
#[cfg(feature = "diesel-sqlite")]
mod sqlite;

pub use dialect::Dialect;
pub use fenced::Fenced;
pub use form::DieselFence;

/// Why a fenced transaction of diesel was refused or not committed.
pub type FenceError = crate::FenceError<::diesel::result::Error>;

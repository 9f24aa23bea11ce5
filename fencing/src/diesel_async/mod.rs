//! Fenced transactions for diesel-async 0.9, on PostgreSQL, MySQL and MariaDB.
//!
//! [`DieselAsyncFence`] adds the forms to [`Fence`](crate::Fence) and to
//! [`Configured`](crate::Configured). The body, and the guard, work with the connection itself,
//! because the query builder of diesel wants it. What the databases are asked stands in
//! `crate::sql`; here is how diesel-async asks it, and how it learns what the answer was although
//! the driver keeps only the text of an error.
//!
//! # How the commit cannot lie
//! Right after the fence a savepoint is set, the *marker*. It vanishes when anything ends the
//! transaction or rolls the fence back, and then the commit is refused. On MySQL and MariaDB the
//! transaction runs without autocommit, so that statements which run after a silent end are not
//! kept. Errors of statements go past the guard, as the connection is the user's: after one that
//! was swallowed PostgreSQL refuses the commit itself, and MySQL and MariaDB commit, under the
//! fence, what did work.
//!
//! # Cancelling
//! Every future here may be dropped at any point, and a guard at any time. Until a fenced
//! transaction has ended well, its connection counts as *broken* for diesel-async, so that the pools
//! of `diesel_async::pooled_connection` close it instead of handing it out again; a rollback is also
//! sent at once where that is possible without waiting. A connection outside of a pool has to be
//! dropped by you: its further transactions are refused with
//! [`BrokenTransactionManager`](::diesel::result::Error::BrokenTransactionManager).
#![doc = ""]
// The program in it is one for PostgreSQL.
#![cfg_attr(
    feature = "diesel-async-postgres",
    doc = include_str!("../../../docs/adapters/diesel-async.md")
)]

mod connection;
mod driver;
mod fenced;
mod form;
pub(crate) mod migrate;
#[cfg(feature = "diesel-async-mysql")]
mod mysql;
#[cfg(feature = "diesel-async-postgres")]
mod postgres;

pub use connection::Connection;
pub use fenced::Fenced;
pub use form::DieselAsyncFence;

/// Why a fenced transaction of diesel-async was refused or not committed.
pub type FenceError = crate::FenceError<::diesel::result::Error>;

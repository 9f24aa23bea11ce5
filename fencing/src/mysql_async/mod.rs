//! Fenced transactions for mysql_async 0.36, on MySQL and MariaDB.
//!
//! [`MysqlAsyncFence`] adds the forms to [`Fence`](crate::Fence) and to
//! [`Configured`](crate::Configured); all of them give or pass a [`Fenced`] transaction, which is a
//! [`Queryable`](::mysql_async::prelude::Queryable). What the server is asked stands in
//! `crate::sql`; here is how mysql_async asks it, and how a transaction is ended without ever
//! reporting a commit that did not happen.
//!
//! # How the commit cannot lie
//! Right after the fence a savepoint is set, the *marker*. It vanishes when anything ends the
//! transaction or rolls the fence back. The commit first releases the marker and goes on only if
//! that worked, and believes only an answer that carries the marker's number. A transaction from a
//! pool also runs without autocommit, so that statements which run after a silent end are not kept.
//!
//! # Cancelling
//! Every future here may be dropped at any point, and a guard at any time. A transaction from a pool
//! leaves nothing behind: its connection is closed instead of being reused. For connections that
//! were lent or joined see [`MysqlAsyncFence::begin_on`] and [`MysqlAsyncFence::admit`].
#![doc = ""]
#![doc = include_str!("../../../docs/adapters/mysql-async.md")]

mod answers;
mod fenced;
mod form;
mod link;
pub(crate) mod migrate;
mod queryable;

pub use fenced::Fenced;
pub use form::MysqlAsyncFence;
pub use link::Unwatched;

/// Why a fenced transaction of mysql_async was refused or not committed.
pub type FenceError = crate::FenceError<::mysql_async::Error>;

impl From<::mysql_async::Error> for FenceError {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::mysql_async::Error) -> Self {
        Self::Database(error)
    }
}

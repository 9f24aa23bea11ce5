#![doc = include_str!("../../../docs/adapters/tokio-postgres.md")]
//!
//! # How the commit cannot lie
//! Right after the fence a savepoint is set, the *marker*. It vanishes when anything ends the
//! transaction or rolls the fence back. The commit first releases the marker, and the server goes
//! on to `COMMIT` only if that worked: both are one message.
//!
//! # Cancelling
//! Every future here may be dropped at any point, and a guard at any time. The driver works off
//! requests in order, and a guard that goes away without an end queues a `ROLLBACK` behind whatever
//! is under way. So the connection may go back to a pool that does not reset it, which is what both
//! pools do by default: the next user's statements come after that rollback. They wait for a
//! statement that is still running; `statement_timeout`, or [`Fenced::cancel_token`] before the
//! guard is dropped, bounds that.
//!
//! [`Fence`]: crate::Fence
//! [`Configured`]: crate::Configured
//! [`begin`]: TokioPostgresFence::begin
//! [`transaction`]: TokioPostgresFence::transaction
//! [`admit`]: TokioPostgresFence::admit
//! [`begin_with`]: TokioPostgresFence::begin_with
//! [`commit_with`]: Fenced::commit_with
//! [`pipeline`]: TokioPostgresFence::pipeline
//! [`CopyInSink`]: ::tokio_postgres::CopyInSink

mod error;
mod fenced;
mod form;
mod literal;
mod message;
pub(crate) mod migrate;
mod query;
mod statements;
mod write;

pub use crate::Poisoned;
pub use fenced::Fenced;
pub use form::TokioPostgresFence;
pub use query::{Answer, Query};
pub use statements::Rows;
pub use write::RowWrite;

/// Why a fenced transaction of tokio-postgres was refused or not committed.
pub type FenceError = crate::FenceError<::tokio_postgres::Error>;

impl From<::tokio_postgres::Error> for FenceError {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

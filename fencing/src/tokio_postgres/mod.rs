//! Fenced transactions for tokio-postgres 0.7, bare or through deadpool-postgres or bb8-postgres.
//!
//! [`TokioPostgresFence`] adds the forms to [`Fence`](crate::Fence) and to
//! [`Configured`](crate::Configured). They take a `&mut tokio_postgres::Client`, which a pooled
//! connection of either pool turns into by itself: `fence.begin(&mut pooled)`. What the server is
//! asked stands in `crate::sql`; here is how the driver asks it, and how a transaction is ended
//! without ever reporting a commit that did not happen.
//!
//! ```no_run
//! use highwater_fencing::Fence;
//! use highwater_fencing::tokio_postgres::{FenceError, Fenced, TokioPostgresFence as _};
//! use tokio_postgres::{Client, Error};
//!
//! // Cannot be called without a fence, whichever form it came from.
//! async fn deduct(tx: &Fenced<'_>, sku: &str) -> Result<u64, Error> {
//!     tx.execute("UPDATE stock SET quantity = quantity - 1 WHERE sku = $1", &[&sku]).await
//! }
//!
//! # async fn forms(client: &mut Client, fence: Fence) -> Result<(), FenceError> {
//! // Closure: commits, rolls back and retries by itself.
//! fence.transaction(client, async |tx| Ok::<_, FenceError>(deduct(tx, "apple").await?)).await?;
//!
//! // Guard.
//! let tx = fence.begin(client).await?;
//! deduct(&tx, "apple").await?;
//! tx.commit().await?;
//!
//! // A transaction that you began.
//! let tx = fence.admit(client.transaction().await?).await?;
//! deduct(&tx, "apple").await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`pipeline`](TokioPostgresFence::pipeline) runs a whole fenced transaction in one round trip;
//! [`begin_with`](TokioPostgresFence::begin_with) and [`Fenced::commit_with`] save one each.
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

mod error;
mod fenced;
mod form;
mod literal;
mod message;
pub(crate) mod migrate;
mod query;
mod statements;

pub use crate::Poisoned;
pub use fenced::Fenced;
pub use form::TokioPostgresFence;
pub use query::{Answer, Query};
pub use statements::Rows;

/// Why a fenced transaction of tokio-postgres was refused or not committed.
pub type FenceError = crate::FenceError<::tokio_postgres::Error>;

impl From<::tokio_postgres::Error> for FenceError {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

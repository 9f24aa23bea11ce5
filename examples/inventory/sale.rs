//! How the sale of one order can end.

use std::io;

use highwater_client::AcquireError;
use highwater_fencing::sqlx::FenceError;
use highwater_lock::FencingToken;

/// The order is in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sale {
    /// Stock deducted and order row inserted, under this token.
    Recorded { token: FencingToken },
    /// An earlier attempt whose end nobody saw had recorded it.
    AlreadyRecorded,
}

/// The order is not in the database, or nobody knows; it can be handed out again either way.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SellError {
    /// No lock, hence nothing written.
    #[error("lock: {0}")]
    Lock(#[from] AcquireError),
    /// The fence refused the transaction, or it did not end cleanly.
    #[error("fenced transaction: {0}")]
    Fence(#[from] FenceError),
    /// A statement was not executed.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    /// The payment service did not answer.
    #[error("payment: {0}")]
    Payment(#[from] io::Error),
}

#![doc = include_str!("../../../docs/adapters/rusqlite.md")]

mod fenced;
mod form;
mod health;
pub(crate) mod migrate;
mod statement;

pub use crate::Poisoned;
pub use fenced::Fenced;
pub use form::RusqliteFence;
pub use health::poisoned;
pub use statement::Statement;

/// Why a fenced transaction of rusqlite was refused or not committed.
pub type FenceError = crate::FenceError<::rusqlite::Error>;

impl From<::rusqlite::Error> for FenceError {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

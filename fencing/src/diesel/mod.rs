#![doc = include_str!("../../../docs/adapters/diesel.md")]

mod dialect;
mod driver;
mod fenced;
mod form;
pub(crate) mod migrate;
#[cfg(feature = "diesel-mysql")]
mod mysql;
#[cfg(feature = "diesel-postgres")]
mod postgres;
#[cfg(feature = "diesel-sqlite")]
mod prepared;
#[cfg(feature = "diesel-sqlite")]
mod sqlite;

pub use dialect::Dialect;
pub use fenced::Fenced;
pub use form::DieselFence;

/// Why a fenced transaction of diesel was refused or not committed.
pub type FenceError = crate::FenceError<::diesel::result::Error>;

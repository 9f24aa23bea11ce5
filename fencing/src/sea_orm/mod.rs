// Its program derives an entity, for which `highwater-proof` has what it takes; it is tested there.
#![cfg_attr(not(doctest), doc = include_str!("../../../docs/adapters/sea-orm.md"))]

mod connection;
mod error;
mod fenced;
mod form;
pub(crate) mod migrate;

pub use crate::Poisoned;
pub use connection::PastGuard;
pub use error::poisoned;
pub use fenced::Fenced;
pub use form::SeaOrmFence;

/// Why a fenced transaction of sea-orm was refused or not committed.
pub type FenceError = crate::FenceError<::sea_orm::DbErr>;

impl From<::sea_orm::DbErr> for FenceError {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::sea_orm::DbErr) -> Self {
        Self::Database(error)
    }
}

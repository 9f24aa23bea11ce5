//! Errors of sqlx in the clothes of sea-orm, and back.

use std::sync::Arc;

use ::sea_orm::{ConnAcquireErr, DbErr, RuntimeErr};
use ::sqlx::Error;

use super::FenceError;
use crate::Poisoned;
use crate::sql::Class;
use crate::sqlx::class;

/// The refusal inside an error of a [`Fenced`](super::Fenced) transaction, if it is one: a
/// statement failed before.
pub fn poisoned(error: &DbErr) -> Option<&Poisoned> {
    of_sqlx(error)?.as_database_error()?.try_downcast_ref()
}

/// The error of sqlx that this one wraps.
pub(crate) fn of_sqlx(error: &DbErr) -> Option<&Error> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => Some(error),
        _ => None,
    }
}

/// An error of a statement that gives no rows.
pub(crate) fn exec(error: Error) -> DbErr {
    DbErr::Exec(RuntimeErr::SqlxError(Arc::new(error)))
}

/// An error of a statement that gives rows, or of the steps of a transaction: as sea-orm does.
pub(crate) fn query(error: Error) -> DbErr {
    match error {
        Error::PoolTimedOut => DbErr::ConnectionAcquire(ConnAcquireErr::Timeout),
        Error::PoolClosed => DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed),
        error => DbErr::Query(RuntimeErr::SqlxError(Arc::new(error))),
    }
}

/// A connection of sea-orm that is not one of sqlx, or whose feature is not on here.
pub(crate) fn unsupported() -> DbErr {
    DbErr::BackendNotSupported {
        db: "this connection",
        ctx: "fenced transactions need a pool of sqlx, and the feature sea-orm-postgres, \
              sea-orm-mysql or sea-orm-sqlite of highwater-fencing",
    }
}

/// What a driver error means for the transaction.
pub(crate) fn class_of(error: &DbErr) -> Class {
    of_sqlx(error).map_or(Class::Other, class)
}

/// Whether the whole transaction may succeed if it is run again after this error.
pub(crate) fn is_transient(error: &DbErr) -> bool {
    class_of(error) == Class::Transient
}

/// The same for a verdict.
pub(crate) fn is_collision(error: &FenceError) -> bool {
    matches!(error, FenceError::Database(error) if is_transient(error))
}

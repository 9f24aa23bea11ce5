//! Which errors of rusqlite poison a fenced transaction, and how a refusal is dressed.

use std::error::Error as _;

use ::rusqlite::{Error, ffi};

use crate::health::{Health, Poisoned};
use crate::sql::{Class, sqlite};

/// The refusal inside an error of a [`Fenced`](super::Fenced) transaction, if it is one: a
/// statement failed before.
///
/// It comes as [`Error::ToSqlConversionFailure`], the only variant in which rusqlite carries the
/// error of somebody else whatever its features.
pub fn poisoned(error: &Error) -> Option<&Poisoned> {
    match error {
        Error::ToSqlConversionFailure(inner) => inner.downcast_ref(),
        _ => None,
    }
}

/// Lets a statement through unless one failed before.
pub(crate) fn check(health: &Health) -> Result<(), Error> {
    match health.refuse() {
        Some(poisoned) => Err(Error::ToSqlConversionFailure(Box::new(poisoned))),
        None => Ok(()),
    }
}

/// Notes an error of a statement, unless the statement itself did what it was asked for: a row
/// that is missing, or a value that is of another type than expected.
pub(crate) fn note(health: &mut Health, error: &Error) {
    match error {
        Error::QueryReturnedNoRows
        | Error::QueryReturnedMoreThanOneRow
        | Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::Utf8Error(..)
        | Error::InvalidColumnIndex(_)
        | Error::InvalidColumnName(_)
        | Error::InvalidColumnType(..) => {}
        error => health.note(error, is_transient(error)),
    }
}

/// What a driver error means for the transaction.
pub(crate) fn class(error: &Error) -> Class {
    code(error).map_or(Class::Other, |(code, message)| {
        sqlite::class(code, &message)
    })
}

/// Whether the whole transaction may succeed if it is run again after this error.
pub(crate) fn is_transient(error: &Error) -> bool {
    class(error) == Class::Transient
}

/// The extended result code and the message, if the error came from the database.
///
/// It is the cause of both variants that have one; the second, which exists with the feature
/// `modern_sqlite` of rusqlite only, could not be named here. The text of both begins with the
/// message.
pub(crate) fn code(error: &Error) -> Option<(i32, String)> {
    let of_sqlite: &ffi::Error = error.source()?.downcast_ref()?;
    Some((of_sqlite.extended_code, error.to_string()))
}

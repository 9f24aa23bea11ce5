//! What the driver's errors mean, and errors of the driver that say something of ours.

use std::error::Error as StdError;
use std::fmt;

use ::tokio_postgres::error::{DbError, Severity, SqlState};
use ::tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use ::tokio_postgres::{Client, Error};
use bytes::BytesMut;

use crate::sql::{Class, Failed, postgres};

/// What a driver error means for the transaction.
pub(crate) fn class(error: &Error) -> Class {
    match error.as_db_error() {
        Some(error) => postgres::class(error.code().code(), error.message()),
        None => Class::Other,
    }
}

/// Whether the whole transaction may succeed if it is run again.
pub(crate) fn is_transient(error: &Error) -> bool {
    class(error) == Class::Transient
}

/// Whether the server refused `BEGIN` because a transaction is open on the connection, or aborted and
/// not ended.
pub(crate) fn says_open(error: &Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::ACTIVE_SQL_TRANSACTION)
        || code == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
}

/// Whether this is the server's answer that it did not do something. With `open` it said
/// afterwards that it is ready for the next request: otherwise nobody knows.
pub(crate) fn refuses(error: &Error, open: bool) -> bool {
    let of_server = error.as_db_error();
    open && of_server.is_some_and(|error| error.parsed_severity() == Some(Severity::Error))
}

/// What an error means that came instead of the answer to `RELEASE marker` (`acknowledged` = 0) or
/// to `COMMIT` (1).
pub(crate) fn failed(error: &Error, acknowledged: u32, open: bool) -> Failed {
    match error.as_db_error() {
        Some(of_server) if refuses(error, open) => {
            postgres::failed(of_server.code().code(), acknowledged)
        }
        _ => Failed::Unknown,
    }
}

/// Whether the error ended the transaction or the connection. What the driver says about values and
/// numbers of rows does neither.
pub(crate) fn is_fatal(error: &Error) -> bool {
    error.as_db_error().is_some() || error.is_closed()
}

/// What happened, without the driver's "db error" before it.
pub(crate) fn text(error: &Error) -> &dyn fmt::Display {
    match error.as_db_error() {
        Some(error) => error as &DbError,
        None => error,
    }
}

/// An error of the driver with `cause` as its source.
///
/// The driver's errors cannot be made outside of it, but it passes on what a parameter says that
/// does not let itself be encoded, before anything is sent.
pub(crate) async fn caused_by<C>(client: &Client, cause: C) -> Error
where
    C: StdError + Clone + Send + Sync + 'static,
{
    let refusing = Refusing(cause);
    let refused = client
        .query_typed("SELECT $1", &[(&refusing, Type::TEXT)])
        .await;
    (refused.map(drop)).expect_err("a parameter that cannot be encoded is not sent")
}

/// A parameter that cannot be encoded.
#[derive(Debug)]
struct Refusing<C>(C);

impl<C: StdError + Clone + Send + Sync + 'static> ToSql for Refusing<C> {
    fn to_sql(
        &self,
        _: &Type,
        _: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        Err(Box::new(self.0.clone()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The mark that refused a fence does not refuse it any more: somebody moved it in between.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the mark that refused the fence has changed meanwhile")]
pub(crate) struct Vanished;

//! What each database has to do for a fenced transaction, and what diesel-async believes about a
//! connection.
//!
//! One implementation per connection, in the files named after the databases. The guard in `fenced`
//! calls these in the right order; nothing here decides when.

use std::num::NonZeroU32;

use ::diesel::connection::TransactionManagerStatus;
use ::diesel::result::{DatabaseErrorKind, Error};
use ::diesel_async::{AnsiTransactionManager, AsyncConnection, TransactionManager};
use futures_core::future::BoxFuture;

use super::FenceError;
use crate::migrate::{MigrateError, Outcome};
use crate::retry::Began;
use crate::sql::{Class, Failed, Marker};
use crate::{Fence, FenceOptions, TableName};

/// The steps of a fenced transaction on one database.
///
/// After an error of any of them the connection is in an unknown state, unless they say otherwise.
#[expect(
    unnameable_types,
    reason = "sealed: implemented for the connections of diesel-async only"
)]
pub trait Driver: AsyncConnection<TransactionManager = AnsiTransactionManager> + 'static {
    /// The message that begins, takes the fence and sets the marker.
    fn begin(order: Order<'_>) -> String;

    /// Says why that message was not answered well, and ends what it left open.
    fn not_opened<'a>(
        conn: &'a mut Self,
        order: Order<'a>,
        error: Error,
    ) -> BoxFuture<'a, (Failure, Cleaned)>;

    /// Releases the marker and commits if that worked.
    fn commit(conn: &mut Self, marker: Marker) -> BoxFuture<'_, Commit>;

    /// Rolls back whatever is open, and restores what `begin` changed.
    fn rollback(conn: &mut Self) -> BoxFuture<'_, Result<(), Error>>;

    /// Sends a rollback, as far as that is possible without waiting.
    fn abandon(conn: &mut Self);

    /// What the error means, by its text, for the transaction that it happened in.
    fn class(error: &Error) -> Class;

    /// The same for the last error of this connection, where the server remembers it.
    fn last_class(conn: &mut Self) -> BoxFuture<'_, Class>;

    /// Creates the table of marks unless it is there.
    fn migrate<'a>(
        conn: &'a mut Self,
        table: &'a TableName,
    ) -> BoxFuture<'a, Result<Outcome, MigrateError<Error>>>;
}

/// What to open.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Order<'a> {
    pub(crate) fence: &'a Fence,
    pub(crate) options: &'a FenceOptions,
    pub(crate) marker: Marker,
    /// When it was given.
    #[allow(dead_code, reason = "asked by PostgreSQL only")]
    pub(crate) since: Began,
}

/// Why something was refused, and what the driver's error in it means, which its text alone may not
/// tell.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Failure {
    pub(crate) error: FenceError,
    pub(crate) class: Class,
}

impl Failure {
    /// Whether the whole transaction may succeed if it is run again.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.error, FenceError::Database(_)) && self.class == Class::Transient
    }
}

impl From<FenceError> for Failure {
    fn from(error: FenceError) -> Self {
        Self {
            error,
            class: Class::Other,
        }
    }
}

/// Whether the connection is outside of a transaction and as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Cleaned(pub(crate) bool);

/// How a commit ended.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub enum Commit {
    /// It is in. The flag says whether the connection is as it was before.
    Done(Cleaned),
    /// It is not in, or nobody knows.
    Failed(Failed, Error, Class),
}

impl Commit {
    /// The verdict for the caller.
    pub(crate) fn failure(failed: Failed, error: Error, class: Class) -> Failure {
        let error = match failed {
            Failed::RolledBack => FenceError::Database(error),
            Failed::Ended => FenceError::Ended(error),
            Failed::Unknown => FenceError::Unknown(error),
        };
        Failure { error, class }
    }
}

/// Outside of a transaction, as far as diesel-async knows.
///
/// The fence must not be taken in a savepoint, and not on a connection whose last transaction was
/// abandoned.
pub(crate) fn check_free<C: Driver>(conn: &mut C) -> Result<(), FenceError> {
    if depth(conn).map_err(FenceError::Database)?.is_some() {
        return Err(FenceError::InSavepoint);
    }
    check_usable(conn).map_err(FenceError::Database)
}

/// Outside of a transaction that was begun by diesel-async, open or abandoned.
pub(crate) fn check_usable<C: Driver>(conn: &mut C) -> Result<(), Error> {
    if <AnsiTransactionManager as TransactionManager<C>>::is_broken_transaction_manager(conn) {
        return Err(Error::BrokenTransactionManager);
    }
    Ok(())
}

/// How many transactions and savepoints diesel-async believes to be open.
pub(crate) fn depth<C: Driver>(conn: &mut C) -> Result<Option<NonZeroU32>, Error> {
    status(conn).transaction_depth()
}

/// From here on a pool closes the connection instead of handing it out.
pub(crate) fn condemn<C: Driver>(conn: &mut C) {
    status(conn).set_in_error();
}

/// The connection is outside of a transaction and as it was: a pool may hand it out again.
pub(crate) fn acquit<C: Driver>(conn: &mut C) {
    *status(conn) = TransactionManagerStatus::default();
}

fn status<C: Driver>(conn: &mut C) -> &mut TransactionManagerStatus {
    <AnsiTransactionManager as TransactionManager<C>>::transaction_manager_status_mut(conn)
}

/// An error of ours, in the only clothes that diesel has for it.
pub(crate) fn said(text: impl Into<String>) -> Error {
    Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(text.into()))
}

/// The text of an error that came from the server, or from the driver in its place.
pub(crate) fn text(error: &Error) -> &str {
    match error {
        Error::DatabaseError(_, information) => information.message(),
        _ => "",
    }
}

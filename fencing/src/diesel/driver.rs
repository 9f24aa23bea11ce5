//! What each connection has to do for a fenced transaction.
//!
//! One implementation per database, in the files named after them. The guard in `fenced` calls
//! these in the right order; nothing here decides when. diesel counts open transactions, and lowers
//! the count by ending one; where that costs a round trip for nothing, [`forget`] sets it. A connection
//! that could not be put right stays counted as being inside of a transaction, which is what makes a
//! pool of r2d2 drop it.

#[cfg(any(feature = "diesel-mysql", feature = "diesel-sqlite"))]
use ::diesel::connection::TransactionManager;
#[cfg(feature = "diesel-mysql")]
use ::diesel::connection::TransactionManagerStatus;
use ::diesel::connection::{AnsiTransactionManager, Connection, SimpleConnection};
use ::diesel::result::{DatabaseErrorKind, Error};
use highwater_lock::Fence;

use super::FenceError;
use crate::migrate::MigrateError;
use crate::retry::Began;
use crate::sql::{Class, Failed, Marker};
use crate::{FenceOptions, TableName};

/// The steps of a fenced transaction on one database.
#[expect(
    unnameable_types,
    reason = "sealed: implemented for the connections below only"
)]
pub trait Driver: Connection<TransactionManager = AnsiTransactionManager> + 'static {
    /// Begins, takes the fence and sets the marker. After an error the connection is outside of the
    /// transaction.
    fn open(conn: &mut Self, order: Order<'_>) -> Result<Opened, Failure>;

    /// Releases the marker and commits if that worked. After an error nothing is open.
    fn commit(conn: &mut Self, opened: &Opened) -> Result<(), Failure>;

    /// Rolls back whatever is open, and restores what `open` changed.
    fn rollback(conn: &mut Self, opened: &Opened) -> Result<(), Error>;

    /// What an error of a statement means for the transaction, as far as diesel tells.
    fn class(error: &Error) -> Class;

    /// Whether the table of marks exists, with the columns it needs.
    fn is_present(conn: &mut Self, table: &TableName) -> Result<bool, MigrateError<Error>>;

    /// Creates the table of marks, if nobody did so since.
    fn create(conn: &mut Self, table: &TableName) -> Result<(), Error>;
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

/// A transaction that was opened.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Opened {
    pub(crate) marker: Marker,
    /// What has to run before the commit, if there are protected tables.
    #[cfg(feature = "diesel-sqlite")]
    pub(crate) close: Option<String>,
}

impl Opened {
    /// One without protected tables that need anything.
    pub(crate) fn new(marker: Marker) -> Self {
        Self {
            marker,
            #[cfg(feature = "diesel-sqlite")]
            close: None,
        }
    }
}

/// A transaction that was not opened or not committed.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Failure {
    pub(crate) error: FenceError,
    /// What the database meant, which diesel's error alone may not tell.
    pub(crate) class: Class,
}

impl Failure {
    /// A verdict that is not about a concurrent transaction.
    pub(crate) fn of(error: FenceError) -> Self {
        let class = Class::Other;
        Self { error, class }
    }

    /// An error in place of the answer to `BEGIN`.
    pub(crate) fn database(error: Error, class: Class) -> Self {
        let error = match error {
            Error::AlreadyInTransaction => FenceError::InSavepoint,
            error => FenceError::Database(error),
        };
        Self { error, class }
    }

    /// An error in place of the answer to the commit.
    pub(crate) fn of_commit(failed: Failed, error: Error, class: Class) -> Self {
        match failed {
            Failed::RolledBack => Self::database(error, class),
            Failed::Ended => Self::of(FenceError::Ended(error)),
            Failed::Unknown => Self::of(FenceError::Unknown(error)),
        }
    }
}

/// The text of an error that the database or its client library gave; `None` if the connection
/// failed, or never got as far.
pub(crate) fn answer(error: &Error) -> Option<(&DatabaseErrorKind, &str)> {
    match error {
        Error::DatabaseError(
            DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand,
            _,
        ) => None,
        Error::DatabaseError(kind, information) => Some((kind, information.message())),
        _ => None,
    }
}

/// Ends everything that diesel counts as open. Says whether there was something, and whether diesel
/// could end all of it.
#[cfg(feature = "diesel-sqlite")]
pub(crate) fn unwind<C: Driver>(conn: &mut C) -> Unwound {
    let mut unwound = Unwound::Nothing;
    loop {
        match AnsiTransactionManager::rollback_transaction(conn) {
            // Nothing is counted any more, or nothing can be done.
            Err(Error::NotInTransaction) => return unwound,
            Err(Error::BrokenTransactionManager) => return Unwound::Unsure,
            // Every call lowers the count or breaks the manager, so this ends.
            Err(_) => unwound = Unwound::Unsure,
            Ok(()) if unwound == Unwound::Nothing => unwound = Unwound::All,
            Ok(()) => {}
        }
    }
}

/// Tells diesel that no transaction is open, after a statement of ours ended it.
///
/// diesel does not list this function in its documentation. Without it every commit would be followed
/// by a `ROLLBACK` of nothing, which on MySQL is three round trips, as diesel sends any batch.
#[cfg(feature = "diesel-mysql")]
pub(crate) fn forget<C: Driver>(conn: &mut C) {
    *AnsiTransactionManager::transaction_manager_status_mut(conn) =
        TransactionManagerStatus::default();
}

/// How [`unwind`] went.
#[cfg(feature = "diesel-sqlite")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwound {
    /// Nothing was counted.
    Nothing,
    /// Everything that was counted was rolled back.
    All,
    /// Something failed on the way: the server may still have a transaction open.
    Unsure,
}

/// Rolls back with a statement of our own, whatever diesel counts.
pub(crate) fn raw_rollback<C: SimpleConnection>(conn: &mut C, text: &str) -> Result<(), Error> {
    conn.batch_execute(text)
}

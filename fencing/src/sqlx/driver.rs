//! What each database has to do for a fenced transaction.
//!
//! One implementation per database, in the files named after them. The guard in `fenced` calls
//! these in the right order; nothing here decides when.

use ::sqlx::{Database, Error};
use futures_core::future::BoxFuture;
use highwater_lock::Fence;
use sqlx_core::transaction::TransactionManager;

use super::FenceError;
use crate::FenceOptions;
use crate::sql::{Class, Failed, Marker};

/// The steps of a fenced transaction on one database.
#[expect(
    unnameable_types,
    reason = "sealed: implemented for the databases below only"
)]
pub trait Driver: Database {
    /// What refuses foreign commits on the client's side, shared with the connection.
    type Veto: Default + Send + Sync + std::fmt::Debug + 'static;

    /// Whether a pooled connection whose guard was dropped must be closed. Otherwise
    /// [`abandon`](Driver::abandon) is enough.
    const CLOSE_ABANDONED: bool;

    /// Waits until the driver's count of open transactions is right. Most keep it on this side.
    fn settle(_conn: &mut Self::Connection) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Begins, takes the fence and sets the marker, on a connection outside of a transaction. With
    /// `hold` the connection is ours until it is back in the pool: its session may be changed.
    fn open<'a>(
        conn: &'a mut Self::Connection,
        order: Order<'a>,
        hold: bool,
        veto: &'a Self::Veto,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Takes the fence and sets the marker in a transaction at depth one. After an error the
    /// transaction is still open, perhaps aborted.
    fn join<'a>(
        conn: &'a mut Self::Connection,
        order: Order<'a>,
        veto: &'a Self::Veto,
    ) -> BoxFuture<'a, Result<(), FenceError>>;

    /// Releases the marker and commits if that worked. After an error nothing is cleaned up.
    fn commit<'a>(
        conn: &'a mut Self::Connection,
        marker: Marker,
        hold: bool,
        veto: &'a Self::Veto,
    ) -> BoxFuture<'a, Commit>;

    /// Rolls back whatever is open, and restores what `open` changed.
    fn rollback<'a>(
        conn: &'a mut Self::Connection,
        hold: bool,
        veto: &'a Self::Veto,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Makes the connection roll back before its next use, as far as that is possible without
    /// waiting.
    fn abandon(conn: &mut Self::Connection, veto: &Self::Veto);

    /// What a driver error means for the transaction.
    fn class(error: &Error) -> Class;
}

/// What to open.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Order<'a> {
    pub(crate) fence: &'a Fence,
    pub(crate) options: &'a FenceOptions,
    pub(crate) marker: Marker,
}

/// A transaction that was not opened.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub struct Failure {
    pub(crate) error: FenceError,
    /// The connection is outside of a transaction and as it was before.
    pub(crate) clean: bool,
}

/// How a commit ended.
#[derive(Debug)]
#[expect(unnameable_types, reason = "part of a sealed trait")]
pub enum Commit {
    /// It is in. The flag says whether the connection is as it was before.
    Done { clean: bool },
    /// It is not in, or nobody knows.
    Failed(Failed, Error),
}

impl Commit {
    /// The verdict for the caller.
    pub(crate) fn error(failed: Failed, error: Error) -> FenceError {
        match failed {
            Failed::RolledBack => FenceError::Database(error),
            Failed::Ended => FenceError::Ended(error),
            Failed::Unknown => FenceError::Unknown(error),
        }
    }
}

/// The driver's own commit, behind a release of the marker that was a message of its own: for a
/// connection of the caller.
#[cfg(any(feature = "sqlx-mysql", feature = "sqlx-postgres"))]
pub(crate) async fn commit_in_turn<Db: Database>(
    conn: &mut Db::Connection,
    released: Result<(), Error>,
    failed: fn(&Error, u32) -> Failed,
) -> Commit {
    if let Err(error) = released {
        // COMMIT was not even sent, so a lost connection is a rollback.
        let failed = match failed(&error, 0) {
            Failed::Unknown => Failed::RolledBack,
            failed => failed,
        };
        return Commit::Failed(failed, error);
    }
    if let Some(nested) = left_open::<Db>(conn) {
        return nested;
    }
    match Db::TransactionManager::commit(conn).await {
        Ok(()) => Commit::Done { clean: true },
        Err(error) => Commit::Failed(failed(&error, 1), error),
    }
}

/// The verdict where a nested transaction was left open: a count above one would make the driver
/// release a savepoint instead of committing.
pub(crate) fn left_open<Db: Database>(conn: &Db::Connection) -> Option<Commit> {
    (depth::<Db>(conn) > 1).then(|| {
        let error = Error::Protocol("a nested transaction was left open".to_owned());
        Commit::Failed(Failed::RolledBack, error)
    })
}

/// How many transactions and savepoints sqlx believes to be open.
pub(crate) fn depth<Db: Database>(conn: &Db::Connection) -> usize {
    Db::TransactionManager::get_transaction_depth(conn)
}

/// Queues a rollback for everything that sqlx believes to be open.
#[cfg(any(feature = "sqlx-mysql", feature = "sqlx-postgres"))]
pub(crate) fn queue_rollback<Db: Database>(conn: &mut Db::Connection) {
    for _ in 0..depth::<Db>(conn) {
        Db::TransactionManager::start_rollback(conn);
    }
}

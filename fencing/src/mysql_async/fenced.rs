//! The guard: an open transaction whose fence was admitted.
//!
//! Holds the connection from before the first request to the end, so that dropping it at any point
//! is safe.

use std::fmt;

use ::mysql_async::prelude::Queryable as _;
use ::mysql_async::{Conn, DriverError, Error, IsolationLevel, Pool, Transaction, TxOpts};
use futures_util::FutureExt as _;

use super::FenceError;
use super::answers::{Answers, class, explain, out_of_step};
use super::link::{Link, Unwatched};
use crate::health::Health;
use crate::sql::{Class, Failed, Marker, mysql};
use crate::{Fence, FenceOptions, Isolation};

/// An open transaction whose fence was admitted.
///
/// It is a [`Queryable`](::mysql_async::prelude::Queryable): write `tx.exec_drop(…)`, as with a
/// connection. A function that takes `&mut Fenced<'_>` cannot be called without a fence.
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   it is rolled back; a connection from a pool is closed for that.
/// - The first error of the driver *poisons* it: every later statement is refused with an
///   [`Error::Other`] that holds a [`Poisoned`](crate::Poisoned), and so is the commit. A statement
///   whose future is dropped before its answer came poisons too. Errors that come later, among the
///   rows of `query_iter`, `exec_iter` and the streams, are not seen.
/// - There is no nested transaction. Savepoints are possible with SQL.
#[must_use = "a fenced transaction that is dropped is rolled back"]
pub struct Fenced<'c> {
    link: Unwatched<'c>,
    marker: Marker,
    health: Health,
    /// Nothing is left to be ended on the connection.
    done: bool,
}

impl<'c> Fenced<'c> {
    /// Begins on a connection of ours.
    pub(crate) async fn begin(
        pool: &Pool,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        let conn = pool.get_conn().await.map_err(FenceError::Database)?;
        // The guard exists before the first request, so that a cancelled one is cleaned up.
        let mut tx = Self::over(Link::Owned(conn));
        let begin = mysql::begin(options, fence, tx.marker, true, &[]);
        let Err(error) = tx.link.query_drop(begin).await else {
            return Ok(tx);
        };
        if !matches!(error, Error::Server(_)) {
            return Err(FenceError::Database(error));
        }
        let error = explain(&mut tx.link, fence, options, error).await;
        tx.end().await.ok();
        Err(error)
    }

    /// Begins on a connection of the caller's. The transaction is one that the driver knows of, so
    /// that the driver ends it if the guard is dropped.
    pub(crate) async fn begin_on(
        conn: &'c mut Conn,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        let mut driver = TxOpts::default();
        driver.with_isolation_level(options.isolation_level().map(level));
        let tx = conn
            .start_transaction(driver)
            .await
            .map_err(|error| match error {
                Error::Driver(DriverError::NestedTransaction) => FenceError::InSavepoint,
                error => FenceError::Database(error),
            });
        Self::join(tx?, fence, options).await
    }

    /// Takes the fence inside a transaction of the driver.
    pub(crate) async fn join(
        tx: Transaction<'c>,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        let mut tx = Self::over(Link::Joined(tx));
        let join = mysql::join(options, fence, tx.marker);
        let Err(error) = tx.link.query_drop(join).await else {
            return Ok(tx);
        };
        let error = explain(&mut tx.link, fence, options, error).await;
        tx.end().await.ok();
        Err(error)
    }

    fn over(link: Link<'c>) -> Self {
        Self {
            link: Unwatched(link),
            marker: Marker::new(),
            health: Health::default(),
            done: false,
        }
    }

    /// Commits, and reports success only if the transaction was committed under its fence.
    ///
    /// Dropping the future leaves the outcome unknown.
    ///
    /// # Errors
    /// - [`FenceError::Poisoned`]: a statement failed before; rolled back.
    /// - [`FenceError::Database`]: the database refused the commit; rolled back.
    /// - [`FenceError::Ended`]: another statement had ended the transaction.
    /// - [`FenceError::Unknown`]: the connection failed; the transaction may be in.
    pub async fn commit(mut self) -> Result<(), FenceError> {
        self.finish().await
    }

    /// Rolls back. The mark goes back with everything else.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the driver failed. The connection is then not used again, and
    /// nothing of the transaction will be in the database.
    pub async fn rollback(mut self) -> Result<(), FenceError> {
        self.end().await.map_err(FenceError::Database)
    }

    /// The connection itself, past the guard, for statements whose errors you want to swallow.
    pub fn connection(&mut self) -> &mut Unwatched<'c> {
        &mut self.link
    }

    /// Commits without consuming the guard.
    pub(crate) async fn finish(&mut self) -> Result<(), FenceError> {
        if let Some(first) = self.health.first_failure() {
            let first = first.to_owned();
            self.end().await.ok();
            return Err(FenceError::Poisoned { first });
        }
        // Whether one message both releases and commits.
        let committing = matches!(self.link.0, Link::Owned(_));
        let failure = if committing {
            self.commit_at_once().await
        } else {
            self.commit_in_turn().await
        };
        let Some((mut failed, error)) = failure else {
            return Ok(());
        };
        if failed != Failed::Unknown {
            self.end().await.ok();
            // An error that belongs to an earlier statement says nothing about the commit behind it.
            if committing && self.health.is_abandoned() {
                failed = Failed::Unknown;
            }
        }
        Err(match failed {
            Failed::RolledBack => FenceError::Database(error),
            Failed::Ended => FenceError::Ended(error),
            Failed::Unknown => FenceError::Unknown(error),
        })
    }

    /// Release, commit and the restored autocommit in one message, for a connection that goes back
    /// to its pool.
    async fn commit_at_once(&mut self) -> Option<(Failed, Error)> {
        let marker = self.marker;
        let message = format!(
            "RELEASE SAVEPOINT {marker}; COMMIT; SELECT {}; SET autocommit = @highwater_autocommit",
            marker.number(),
        );
        let answers = Answers::of(&mut self.link, &message, 4, 3, marker).await;
        if !answers.tied {
            return Some(answers.failure());
        }
        self.done = answers.error.is_none();
        None
    }

    /// The driver's own commit, behind a release of the marker that is a message of its own: for a
    /// transaction that the driver knows of.
    async fn commit_in_turn(&mut self) -> Option<(Failed, Error)> {
        let marker = self.marker;
        let message = format!("RELEASE SAVEPOINT {marker}; SELECT {}", marker.number());
        let answers = Answers::of(&mut self.link, &message, 2, 2, marker).await;
        if !answers.tied {
            // COMMIT was not even sent, so a lost connection is a rollback.
            return Some(match answers.failure() {
                (Failed::Unknown, error) => (Failed::RolledBack, error),
                failure => failure,
            });
        }
        self.done = true;
        let tx = (self.link.take_joined()).expect("what is not ours was joined");
        let error = tx.commit().await.err()?;
        let failed = match &error {
            Error::Server(error) => mysql::failed(error.code, 1),
            _ => Failed::Unknown,
        };
        Some((failed, error))
    }

    /// Rolls back without consuming the guard.
    pub(crate) async fn end(&mut self) -> Result<(), Error> {
        if self.done || self.health.is_abandoned() {
            // Left to `drop`: whose answer comes next on this connection is unsure.
            return Ok(());
        }
        let number = self.marker.number();
        let (message, statements) = match &self.link.0 {
            Link::Owned(_) => (format!("SELECT {number}; {}", mysql::ROLLBACK), 3),
            _ => (format!("SELECT {number}"), 1),
        };
        let answers = Answers::of(&mut self.link, &message, statements, 1, self.marker).await;
        if answers.acknowledged > 0 && !answers.tied {
            self.health.note_abandoned();
            return Err(out_of_step());
        }
        if let Some(error) = answers.error {
            return Err(error);
        }
        self.done = true;
        match self.link.take_joined() {
            Some(tx) => tx.rollback().await,
            None => Ok(()),
        }
    }

    /// Whether the whole transaction may succeed if it is run again.
    pub(crate) fn is_transient(&self) -> bool {
        self.health.is_transient()
    }

    /// The connection and the record of errors, unless there was one.
    pub(crate) fn sound_parts(&mut self) -> Result<(&mut Unwatched<'c>, &mut Health), Error> {
        match self.health.refuse() {
            Some(poisoned) => Err(Error::Other(Box::new(poisoned))),
            None => Ok((&mut self.link, &mut self.health)),
        }
    }
}

/// Whether the whole transaction may succeed if it is run again after this error.
pub(crate) fn is_transient(error: &FenceError) -> bool {
    matches!(error, FenceError::Database(error) if class(error) == Class::Transient)
}

impl Drop for Fenced<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        match std::mem::replace(&mut self.link.0, Link::Gone) {
            Link::Owned(conn) => close(conn),
            // The driver rolls back by itself, unless it has lost count of the answers.
            Link::Joined(tx) if self.health.is_abandoned() => {
                strand(&mut Unwatched(Link::Joined(tx)));
            }
            _ => {}
        }
    }
}

/// Closes a connection, whatever it is in the middle of.
///
/// Only the first poll runs: it marks the connection as closed, and no pool of the driver takes that
/// back. If there are more answers on the way, it may read one and lose that mark again; then the
/// pool reads the rest, and has to reset the session, also if it was told not to.
fn close(mut conn: Conn) {
    conn.reset_connection(true);
    let _ = tokio::task::unconstrained(conn.disconnect()).now_or_never();
}

/// Leaves a statement without its answer: such a connection is not taken back by a pool of the
/// driver, but closed.
///
/// Only the first poll runs, which sends the statement; unless it gives the answer, or the unread
/// error, of an earlier one.
fn strand(conn: &mut Unwatched<'_>) {
    loop {
        let rollback = tokio::task::unconstrained(conn.query_drop("ROLLBACK"));
        if !matches!(
            rollback.now_or_never(),
            Some(Ok(()) | Err(Error::Server(_)))
        ) {
            return;
        }
    }
}

fn level(level: Isolation) -> IsolationLevel {
    match level {
        Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
        Isolation::RepeatableRead => IsolationLevel::RepeatableRead,
        Isolation::Serializable => IsolationLevel::Serializable,
    }
}

impl fmt::Debug for Fenced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("marker", &self.marker)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

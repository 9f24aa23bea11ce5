//! The guard: an open transaction whose fence was admitted.
//!
//! Holds the connection from before the first request to the end, so that dropping it at any point
//! is safe. Statements are in `statements`; here is how it begins and ends.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::tokio_postgres::{CancelToken, Client, Error, SimpleQueryRow, Transaction};
use futures_util::FutureExt as _;

use super::FenceError;
use super::error::{self, Vanished, caused_by};
use super::message::{self, Reply};
use crate::health::Health;
use crate::sql::{Class, Failed, Marker, StoredMark, postgres, refusal};
use crate::{Fence, FenceOptions};

/// An open transaction whose fence was admitted.
///
/// It has the driver's methods for statements, on `&self` as there, so that statements which are
/// polled together are pipelined. A function that takes `&Fenced<'_>` cannot be called without a
/// fence.
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   it is rolled back before the connection's next use.
/// - The first error of the server *poisons* it: every later statement is refused with an error
///   whose source is a [`Poisoned`](crate::Poisoned), and so is the commit. A row that was not
///   found, or a value of another type than expected, is no such error. A statement whose future is
///   dropped before its answer came poisons too.
/// - There is no nested transaction: the driver needs `&mut Client` for one. Savepoints are possible
///   with raw SQL through [`connection`](Self::connection).
#[must_use = "a fenced transaction that is dropped is rolled back"]
pub struct Fenced<'c> {
    link: Link<'c>,
    marker: Marker,
    health: Mutex<Health>,
    /// Nothing is left to be ended on the connection.
    done: bool,
}

/// The connection, by the form that the transaction was begun with.
enum Link<'c> {
    /// A connection of the caller, which nobody else can use meanwhile.
    Lent(&'c Client),
    /// Inside a transaction that the caller began; gone when that was ended.
    Joined(Option<Transaction<'c>>),
}

impl<'c> Fenced<'c> {
    /// Begins on this connection, with `first` at the end of the same message.
    pub(crate) async fn begin(
        client: &'c Client,
        fence: &Fence,
        options: &FenceOptions,
        first: &str,
    ) -> Result<(Self, Reply), FenceError> {
        // The guard exists before the first request, so that a cancelled one is cleaned up.
        let mut tx = Self::over(Link::Lent(client));
        let begin = postgres::begin(options, fence, tx.marker);
        let mut reply = message::send(client, &format!("{begin}{first}")).await;
        match reply.error.take() {
            None => Ok((tx, reply)),
            Some(error) => Err(tx.not_begun(error, fence, options).await),
        }
    }

    /// Takes the fence inside a transaction of the caller.
    pub(crate) async fn join(
        tx: Transaction<'c>,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        let mut tx = Self::over(Link::Joined(Some(tx)));
        let join = postgres::join(options, fence, tx.marker);
        let refused = match message::send(tx.client(), &join).await.rows() {
            Ok(rows) if rows.iter().any(|row| row.get(0) != Some("1")) => FenceError::InSavepoint,
            Ok(rows) if rows.len() == fence.marks().len() => return Ok(tx),
            Ok(_) => {
                let read = postgres::read(options.table_ref(), fence);
                match message::send(tx.client(), &read).await.rows() {
                    Ok(rows) => match reason(&rows, fence, options) {
                        Some(refusal) => refusal,
                        None => FenceError::Database(caused_by(tx.client(), Vanished).await),
                    },
                    Err(error) => FenceError::Database(error),
                }
            }
            Err(error) => explain(error, options),
        };
        tx.end().await.ok();
        Err(refused)
    }

    fn over(link: Link<'c>) -> Self {
        Self {
            link,
            marker: Marker::new(),
            health: Mutex::default(),
            done: false,
        }
    }

    /// Ends what the message with `BEGIN` left open, and says why the fence was not taken.
    pub(crate) async fn not_begun(
        &mut self,
        error: Error,
        fence: &Fence,
        options: &FenceOptions,
    ) -> FenceError {
        if error::class(&error) != Class::Refused {
            self.end().await.ok();
            return explain(error, options);
        }
        // The aborted transaction cannot read any more. Afterwards the mark may have moved on, but
        // never back, so the reason still holds.
        let read = postgres::read(options.table_ref(), fence);
        let reply = message::send(self.client(), &format!("ROLLBACK; {read}")).await;
        self.done = !reply.completed.is_empty();
        match reply.rows() {
            Ok(rows) => reason(&rows, fence, options).unwrap_or(FenceError::Database(error)),
            Err(error) => explain(error, options),
        }
    }

    /// Commits, and reports success only if the transaction was committed under its fence.
    ///
    /// One round trip. Dropping the future leaves the outcome unknown.
    ///
    /// # Errors
    /// - [`FenceError::Poisoned`]: a statement failed before; rolled back.
    /// - [`FenceError::Database`]: the database refused the commit; rolled back.
    /// - [`FenceError::Ended`]: another statement had ended the transaction.
    /// - [`FenceError::Unknown`]: the connection failed; the transaction may be in.
    pub async fn commit(mut self) -> Result<(), FenceError> {
        self.finish("", 0).await.map(drop)
    }

    /// Rolls back. The mark goes back with everything else.
    ///
    /// It waits for statements that are still running, such as one whose future was dropped.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the driver failed. The connection is then closed, and nothing of
    /// the transaction will be in the database.
    pub async fn rollback(mut self) -> Result<(), FenceError> {
        self.end().await.map_err(FenceError::Database)
    }

    /// The connection itself, for what is not possible through the guard: savepoints, statement
    /// caches and libraries that want a `&Client`.
    ///
    /// Errors are not seen here and do not poison. What still holds: the commit never succeeds
    /// unless the transaction is the one that took the fence. Do not end it with raw SQL.
    pub fn connection(&self) -> &Client {
        self.client()
    }

    /// A token with which the statement that runs on this connection can be cancelled, as with the
    /// driver's method of the same name.
    pub fn cancel_token(&self) -> CancelToken {
        self.client().cancel_token()
    }

    /// Commits without consuming the guard, in one message behind `last`, which has so many
    /// statements.
    pub(crate) async fn finish(
        &mut self,
        last: &str,
        statements: usize,
    ) -> Result<Reply, FenceError> {
        let first = self.health().first_failure().map(str::to_owned);
        if let Some(first) = first {
            self.end().await.ok();
            return Err(FenceError::Poisoned { first });
        }
        let message = format!("{last}RELEASE SAVEPOINT {}; COMMIT", self.marker);
        let was_closed = self.client().is_closed();
        let reply = message::send(self.client(), &message).await;
        self.verdict(reply, was_closed, statements).await
    }

    /// Reads the answer to a message that ends with `RELEASE marker; COMMIT`, behind so many other
    /// statements. On a connection that was closed before, it was not even sent.
    pub(crate) async fn verdict(
        &mut self,
        mut reply: Reply,
        was_closed: bool,
        before: usize,
    ) -> Result<Reply, FenceError> {
        let released = reply.completed.len().checked_sub(before);
        if released >= Some(2) {
            self.done = true;
            return Ok(reply);
        }
        let Some(error) = reply.error.take() else {
            // A server that is ready again, but did not answer for all statements, is none that
            // this code knows.
            let error = caused_by(self.client(), Unanswered).await;
            return Err(FenceError::Unknown(error));
        };
        let failed = match released {
            _ if was_closed => Failed::RolledBack,
            Some(released) => {
                error::failed(&error, u32::try_from(released).unwrap_or(1), reply.open)
            }
            // A statement of the user's: the transaction is open and aborted.
            None => match error::failed(&error, 1, reply.open) {
                Failed::Ended => Failed::RolledBack,
                failed => failed,
            },
        };
        if failed != Failed::Unknown {
            self.end().await.ok();
        }
        Err(match failed {
            Failed::RolledBack => FenceError::Database(error),
            Failed::Ended => FenceError::Ended(error),
            Failed::Unknown => FenceError::Unknown(error),
        })
    }

    /// Rolls back without consuming the guard.
    pub(crate) async fn end(&mut self) -> Result<(), Error> {
        if let Link::Joined(tx) = &mut self.link {
            // The driver's own way, because it knows whether it is a savepoint.
            return match tx.take() {
                Some(tx) => tx.rollback().await,
                None => Ok(()),
            };
        }
        self.client().batch_execute("ROLLBACK").await?;
        self.done = true;
        Ok(())
    }

    /// Whether the whole transaction may succeed if it is run again.
    pub(crate) fn is_transient(&self) -> bool {
        self.health().is_transient()
    }

    pub(crate) fn client(&self) -> &Client {
        match &self.link {
            Link::Lent(client) => client,
            Link::Joined(tx) => {
                let tx = tx.as_ref();
                tx.expect("it is taken when the guard ends, and then nothing is asked any more")
                    .client()
            }
        }
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        // Nothing that holds it panics half-way through a change.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error of the fence statement, other than a refusal.
fn explain(error: Error, options: &FenceOptions) -> FenceError {
    match error::class(&error) {
        Class::NoTable => FenceError::NotMigrated {
            table: options.table_ref().clone(),
        },
        _ => FenceError::Database(error),
    }
}

/// Why these marks, read after a refusal, do not admit the fence.
fn reason(rows: &[SimpleQueryRow], fence: &Fence, options: &FenceOptions) -> Option<FenceError> {
    let marks: Vec<StoredMark> = rows.iter().filter_map(stored_mark).collect();
    refusal(options, fence, &marks)
}

fn stored_mark(row: &SimpleQueryRow) -> Option<StoredMark> {
    let number = |column: usize| row.get(column)?.parse().ok();
    StoredMark::from_columns(row.get(0)?, row.get(1)?, number(2)?, number(3)?)
}

/// Whether the whole transaction may succeed if it is run again after this error.
pub(crate) fn is_transient(error: &FenceError) -> bool {
    matches!(error, FenceError::Database(error) if error::is_transient(error))
}

impl Drop for Fenced<'_> {
    fn drop(&mut self) {
        match &mut self.link {
            // The driver's transaction rolls back when it is dropped, by the same means as below.
            Link::Joined(tx) => {
                if self.done {
                    // It has been ended behind its back, and owns nothing but a reference.
                    std::mem::forget(tx.take());
                }
            }
            Link::Lent(client) => {
                if !self.done {
                    // One poll hands the request to the connection; nobody waits for the answer.
                    let _ = client.batch_execute("ROLLBACK").now_or_never();
                }
            }
        }
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

#[derive(Clone, Debug, thiserror::Error)]
#[error("no answer to COMMIT")]
struct Unanswered;

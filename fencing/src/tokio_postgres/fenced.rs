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
use super::query::{Answer, Query, Rendered, STATEMENTS};
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
    /// What removes from the session what queries in a message leave there until its end.
    cleanup: Option<String>,
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
    /// Begins on this connection, with these queries behind the fence in the same message.
    pub(crate) async fn begin(
        client: &'c Client,
        fence: &Fence,
        options: &FenceOptions,
        first: &[Query<'_>],
    ) -> Result<(Self, Vec<Answer>), FenceError> {
        // The guard exists before the first request, so that a cancelled one is cleaned up.
        let mut tx = Self::over(Link::Lent(client));
        let text = tx.rendered(first).await?;
        let begin = tx.beginning(fence, options);
        let mut reply = message::send(client, &format!("{begin}{text}")).await;
        let Some(error) = reply.error.take() else {
            tx.cleanup = None;
            let answers = answers(reply, first.len(), begin_statements(options));
            return Ok((tx, answers));
        };
        if reply.completed.len() >= begin_statements(options) {
            tx.end().await.ok();
            return Err(FenceError::Database(error));
        }
        Err(tx.not_begun(error, fence, options).await)
    }

    /// Runs a whole transaction in one message.
    pub(crate) async fn pipeline(
        client: &'c Client,
        fence: &Fence,
        options: &FenceOptions,
        queries: &[Query<'_>],
    ) -> Result<Vec<Answer>, FenceError> {
        let mut tx = Self::over(Link::Lent(client));
        let text = tx.rendered(queries).await?;
        let message = format!("{}{text}{}", tx.beginning(fence, options), tx.ending());
        let was_closed = client.is_closed();
        let mut reply = message::send(client, &message).await;
        // Without an answer of the server, all of it may have been worked off.
        if reply.completed.len() < begin_statements(options)
            && let Some(error) = reply
                .error
                .take_if(|error| error::refuses(error, reply.open))
        {
            return Err(tx.not_begun(error, fence, options).await);
        }
        let reply = tx.verdict(reply, was_closed, Behind::Queries).await?;
        Ok(answers(reply, queries.len(), begin_statements(options)))
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
        if let Link::Joined(tx) = &mut tx.link
            && let Some(tx) = tx.take()
        {
            // The driver's own way, because a nested one must not end the outer one.
            tx.rollback().await.ok();
        }
        Err(refused)
    }

    fn over(link: Link<'c>) -> Self {
        Self {
            link,
            marker: Marker::new(),
            health: Mutex::default(),
            cleanup: None,
            done: false,
        }
    }

    /// The queries as a part of a message of this transaction.
    async fn rendered(&mut self, queries: &[Query<'_>]) -> Result<String, FenceError> {
        if queries.is_empty() {
            return Ok(String::new());
        }
        match Rendered::new(queries, self.marker) {
            Ok(rendered) => {
                self.cleanup = Some(rendered.cleanup);
                Ok(rendered.text)
            }
            Err(error) => Err(FenceError::Database(caused_by(self.client(), error).await)),
        }
    }

    /// How every message begins that takes the fence in a transaction of its own.
    fn beginning(&self, fence: &Fence, options: &FenceOptions) -> String {
        let begin = postgres::begin_first(options, fence, self.marker);
        format!("{begin}; ")
    }

    /// How every message ends that commits.
    fn ending(&self) -> String {
        format!("RELEASE SAVEPOINT {}; COMMIT", self.marker)
    }

    /// Ends what the message with `BEGIN` left open, and says why the fence was not taken.
    async fn not_begun(
        &mut self,
        error: Error,
        fence: &Fence,
        options: &FenceOptions,
    ) -> FenceError {
        // It stopped before the queries.
        self.cleanup = None;
        if error::says_open(&error) {
            self.end().await.ok();
            return FenceError::InSavepoint;
        }
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
        self.finish().await
    }

    /// Runs these queries and commits, all in one round trip and by one message: if one of them
    /// fails, nothing is committed.
    ///
    /// What they write is decided before their answers are known. A number of affected rows that
    /// must not be zero has to be made an error by the database, for example by a `CHECK`.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit); [`FenceError::Database`] also if a query failed, or a
    /// parameter cannot be sent in this form.
    pub async fn commit_with(mut self, last: &[Query<'_>]) -> Result<Vec<Answer>, FenceError> {
        self.refuse_poisoned().await?;
        let message = match self.rendered(last).await {
            Ok(text) => format!("{text}{}", self.ending()),
            Err(error) => {
                self.end().await.ok();
                return Err(error);
            }
        };
        let was_closed = self.client().is_closed();
        let reply = message::send(self.client(), &message).await;
        let reply = self.verdict(reply, was_closed, Behind::Queries).await?;
        Ok(answers(reply, last.len(), 0))
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

    /// Commits without consuming the guard.
    pub(crate) async fn finish(&mut self) -> Result<(), FenceError> {
        self.refuse_poisoned().await?;
        let was_closed = self.client().is_closed();
        let reply = message::send(self.client(), &self.ending()).await;
        let reply = self.verdict(reply, was_closed, Behind::Nothing).await;
        reply.map(drop)
    }

    /// Rolls back after a failure, and says so.
    async fn refuse_poisoned(&mut self) -> Result<(), FenceError> {
        let first = self.health().first_failure().map(str::to_owned);
        match first {
            None => Ok(()),
            Some(first) => {
                self.end().await.ok();
                Err(FenceError::Poisoned { first })
            }
        }
    }

    /// Reads the answer to a message that ends with `RELEASE marker; COMMIT`. On a connection that
    /// was closed before, it was not even sent.
    async fn verdict(
        &mut self,
        mut reply: Reply,
        was_closed: bool,
        behind: Behind,
    ) -> Result<Reply, FenceError> {
        let committed = match behind {
            Behind::Nothing => reply.completed.len() >= 2,
            // What a query contains may answer more often than it should, so only that there was no
            // error up to the end shows that the end was reached.
            Behind::Queries => reply.error.is_none() && reply.open,
        };
        if committed {
            self.done = true;
            self.cleanup = None;
            return Ok(reply);
        }
        let Some(error) = reply.error.take() else {
            let error = caused_by(self.client(), Unanswered).await;
            return Err(FenceError::Unknown(error));
        };
        let released = behind == Behind::Nothing && !reply.completed.is_empty();
        let failed = match error::failed(&error, u32::from(released), reply.open) {
            Failed::Unknown if was_closed => Failed::RolledBack,
            failed => failed,
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
        let reply = message::send(self.client(), &self.rollback_text()).await;
        self.done = !reply.completed.is_empty();
        match reply.error {
            Some(error) if !self.done => Err(error),
            _ => Ok(()),
        }
    }

    fn rollback_text(&self) -> String {
        match &self.cleanup {
            Some(cleanup) => format!("ROLLBACK; {cleanup}"),
            None => "ROLLBACK".to_owned(),
        }
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

/// What stands before `RELEASE marker; COMMIT` in a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    Nothing,
    Queries,
}

/// How many statements take the fence.
fn begin_statements(options: &FenceOptions) -> usize {
    // BEGIN, the fence, the marker; and the bound of the wait for the mark.
    3 + usize::from(options.lock_wait().is_some())
}

/// The answers to so many queries behind so many other statements.
fn answers(reply: Reply, queries: usize, before: usize) -> Vec<Answer> {
    // The middle one of each query's statements executes it.
    let executed = reply.completed.into_iter().skip(before + 1);
    let executed = executed.step_by(STATEMENTS).take(queries);
    let answer = |(rows_affected, rows)| Answer {
        rows_affected,
        rows,
    };
    executed.map(answer).collect()
}

/// An error of the fence statement, other than a refusal.
fn explain(error: Error, options: &FenceOptions) -> FenceError {
    let message = error.as_db_error().map_or("", |error| error.message());
    match error::class(&error) {
        _ if message.contains(postgres::OPEN_BEFORE) => FenceError::InSavepoint,
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
        let message = self.rollback_text();
        match &mut self.link {
            Link::Joined(tx) => {
                // Otherwise the driver's transaction rolls back by being dropped.
                if let Some(tx) = tx.take_if(|_| self.done || self.cleanup.is_some()) {
                    if !self.done {
                        let _ = tx.client().batch_execute(&message).now_or_never();
                    }
                    // It was ended behind its back, and owns nothing but a reference.
                    std::mem::forget(tx);
                }
            }
            // One poll hands the request to the connection; nobody waits for the answer.
            Link::Lent(client) if !self.done => {
                let _ = client.batch_execute(&message).now_or_never();
            }
            Link::Lent(_) => {}
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

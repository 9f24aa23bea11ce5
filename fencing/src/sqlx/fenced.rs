//! The guard: an open transaction whose fence was admitted.
//!
//! Holds the connection from before the first request to the end, so that dropping it at any point
//! is safe. How to begin and commit on each database stands in `driver` and its implementations.

use std::fmt;

use ::sqlx::pool::PoolConnection;
use ::sqlx::{Error, Pool, Transaction};

use super::FenceError;
use super::dialect::Dialect;
use super::driver::{self, Commit, Order};
use super::health;
use super::link::Link;
use crate::health::Health;
use crate::sql::{self, Class, Marker};
use crate::{Fence, FenceOptions};

/// An open transaction whose fence was admitted.
///
/// `&mut Fenced` is a [`sqlx::Executor`](::sqlx::Executor): write `.execute(&mut *tx)`, as in a
/// plain transaction. A function that takes `&mut Fenced<'_, Db>` cannot be called without a fence.
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   it is rolled back; a connection from a pool of PostgreSQL or MySQL is closed for that.
/// - The first error of the driver *poisons* it: every later statement is refused with
///   [`Poisoned`](crate::Poisoned), and so is the commit. A row that was not found, or a value of
///   another type than expected, is no such error. A statement whose future is dropped before its
///   answer came poisons too.
/// - There is no nested transaction, since `Acquire` is not implemented. Savepoints are possible
///   through [`connection`](Self::connection).
/// - On SQLite it replaces a commit hook and a rollback hook that were set on the connection.
#[must_use = "a fenced transaction that is dropped is rolled back"]
pub struct Fenced<'c, Db: Dialect> {
    link: Link<'c, Db>,
    veto: Db::Veto,
    marker: Marker,
    health: Health,
    /// Nothing is left to be ended on the connection.
    done: bool,
}

impl<'c, Db: Dialect> Fenced<'c, Db> {
    /// Begins on a connection of ours.
    pub(crate) async fn begin(
        pool: &Pool<Db>,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        let conn: PoolConnection<Db> = pool.acquire().await.map_err(FenceError::Database)?;
        Self::open(Link::Owned(conn), fence, options).await
    }

    /// Begins on the connection of this link, which must be outside of a transaction.
    pub(crate) async fn open(
        mut link: Link<'c, Db>,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        if !link.is_ours() {
            Db::settle(&mut link).await.map_err(FenceError::Database)?;
        }
        let left_open = driver::depth::<Db>(&link) > 0;
        if left_open && !link.is_ours() {
            return Err(FenceError::InSavepoint);
        }
        // The guard exists before the first request, so that a cancelled one is cleaned up.
        let mut tx = Self::over(link);
        if left_open {
            // The pool hands out what an earlier user left behind. On SQLite that happens by
            // itself: sqlx goes on counting a transaction that `ON CONFLICT ROLLBACK` ended.
            tx.end().await.map_err(FenceError::Database)?;
            tx.done = false;
        }
        let order = Order {
            fence,
            options,
            marker: tx.marker,
        };
        let hold = tx.link.is_ours();
        match Db::open(&mut tx.link, order, hold, &tx.veto).await {
            Ok(()) => Ok(tx),
            Err(failure) => {
                tx.done = failure.clean;
                Err(failure.error)
            }
        }
    }

    /// Takes the fence inside a transaction of the caller.
    pub(crate) async fn join(
        mut tx: Transaction<'c, Db>,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Self, FenceError> {
        Db::settle(&mut tx).await.map_err(FenceError::Database)?;
        if driver::depth::<Db>(&tx) != 1 {
            return Err(FenceError::InSavepoint);
        }
        let mut tx = Self::over(Link::Joined(tx));
        let order = Order {
            fence,
            options,
            marker: tx.marker,
        };
        match Db::join(&mut tx.link, order, &tx.veto).await {
            Ok(()) => Ok(tx),
            Err(error) => {
                tx.end().await.ok();
                Err(error)
            }
        }
    }

    fn over(link: Link<'c, Db>) -> Self {
        Self {
            link,
            veto: Db::Veto::default(),
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

    /// The connection itself, for what is not possible through `&mut Fenced`: `COPY`, savepoints
    /// with `begin()`, libraries that want a connection.
    ///
    /// Errors are not seen here and do not poison. What still holds: the commit never succeeds
    /// unless the transaction is the one that took the fence. Do not end it with raw SQL, and do
    /// not drop a statement before its answer came.
    pub fn connection(&mut self) -> &mut Db::Connection {
        &mut self.link
    }

    /// Commits without consuming the guard.
    pub(crate) async fn finish(&mut self) -> Result<(), FenceError> {
        if let Some(first) = self.health.first_failure() {
            let first = first.to_owned();
            self.end().await.ok();
            return Err(FenceError::Poisoned { first });
        }
        let hold = self.link.is_ours();
        match Db::commit(&mut self.link, self.marker, hold, &self.veto).await {
            Commit::Done { clean } => {
                self.done = clean;
                Ok(())
            }
            Commit::Failed(failed, error) => {
                if failed != sql::Failed::Unknown {
                    self.end().await.ok();
                }
                Err(Commit::error(failed, error))
            }
        }
    }

    /// Rolls back without consuming the guard.
    pub(crate) async fn end(&mut self) -> Result<(), Error> {
        if self.health.is_abandoned() && Db::CLOSE_ABANDONED {
            // Left to `drop`: whose answer comes next on this connection is unsure.
            return Ok(());
        }
        let hold = self.link.is_ours();
        let ended = Db::rollback(&mut self.link, hold, &self.veto).await;
        match &mut self.link {
            Link::Owned(conn) if ended.is_err() => conn.close_on_drop(),
            _ => self.done = ended.is_ok(),
        }
        ended
    }

    /// Whether the whole transaction may succeed if it is run again.
    pub(crate) fn is_transient(&self) -> bool {
        self.health.is_transient()
    }

    /// The connection and the record of errors, unless there was one.
    pub(crate) fn sound_parts(&mut self) -> Result<(&mut Db::Connection, &mut Health), Error> {
        match health::refuse(&self.health) {
            Some(error) => Err(error),
            None => Ok((&mut self.link, &mut self.health)),
        }
    }
}

/// Whether the whole transaction may succeed if it is run again after this error.
pub(crate) fn is_transient<Db: Dialect>(error: &FenceError) -> bool {
    matches!(error, FenceError::Database(error) if Db::class(error) == Class::Transient)
}

impl<Db: Dialect> Drop for Fenced<'_, Db> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        match &mut self.link {
            Link::Owned(conn) if Db::CLOSE_ABANDONED => conn.close_on_drop(),
            Link::Pooled(conn) => {
                Db::abandon(conn, &self.veto);
                if Db::CLOSE_ABANDONED {
                    conn.close_on_drop();
                }
            }
            link => Db::abandon(link, &self.veto),
        }
    }
}

impl<Db: Dialect> fmt::Debug for Fenced<'_, Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("marker", &self.marker)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

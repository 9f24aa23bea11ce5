//! The guard: an open transaction whose fence was admitted.
//!
//! Holds the connection from before the first request to the end, so that dropping it at any point
//! is safe. How to begin and commit on each database stands in `driver` and its implementations.

use std::fmt;

use ::diesel::result::Error;
use ::diesel_async::AnsiTransactionManager;

use super::FenceError;
use super::connection::Connection;
use super::driver::{self, Cleaned, Commit, Failure, Order, said};
use crate::retry::Began;
use crate::sql::{Class, Failed, Marker};
use crate::{Fence, FenceOptions};

/// An open transaction whose fence was admitted, on a connection that was lent to it.
///
/// A function that takes `&mut Fenced<'_, C>` cannot be called without a fence; its statements run
/// on [`connection`](Self::connection).
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   its connection is broken: a pool closes it. A rollback is sent at once, but `drop` cannot wait
///   for it; where it could not be sent, the mark stays locked until the pool looks at the
///   connection, or you drop it.
/// - Nested transactions of diesel-async are savepoints. One that is still open at the commit, since
///   its future was dropped, refuses it.
#[must_use = "a fenced transaction that is dropped leaves its connection broken"]
pub struct Fenced<'c, C: Connection> {
    conn: &'c mut C,
    marker: Marker,
    /// Nothing is left to be ended on the connection.
    done: bool,
}

impl<'c, C: Connection> Fenced<'c, C> {
    /// Begins on a connection that must be outside of a transaction, and leaves the transaction to
    /// [`over`](Self::over), which has to follow at once. In two steps, so that it can be repeated on
    /// a connection that is only borrowed.
    pub(crate) async fn open(
        conn: &'c mut C,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Marker, Failure> {
        driver::check_free(conn)?;
        // The guard exists before the first request, so that a cancelled one is cleaned up.
        let mut tx = Self::over(conn, Marker::new());
        let order = Order {
            fence,
            options,
            marker: tx.marker,
            since: Began::now(),
        };
        let begin = C::begin(order);
        let begun = AnsiTransactionManager::begin_transaction_sql(&mut *tx.conn, &begin).await;
        let Err(error) = begun else {
            tx.done = true;
            return Ok(tx.marker);
        };
        driver::condemn(tx.conn);
        let (failure, Cleaned(clean)) = C::not_opened(tx.conn, order, error).await;
        if clean {
            tx.let_go();
        }
        Err(failure)
    }

    /// The guard of the transaction that has this marker.
    pub(crate) fn over(conn: &'c mut C, marker: Marker) -> Self {
        Self {
            conn,
            marker,
            done: false,
        }
    }

    /// Commits, and reports success only if the transaction was committed under its fence.
    ///
    /// Dropping the future leaves the outcome unknown.
    ///
    /// # Errors
    /// - [`FenceError::Database`]: the database refused the commit, or a nested transaction was left
    ///   open; rolled back.
    /// - [`FenceError::Ended`]: another statement had ended the transaction.
    /// - [`FenceError::Unknown`]: the connection failed; the transaction may be in.
    pub async fn commit(mut self) -> Result<(), FenceError> {
        self.finish().await.map_err(|failure| failure.error)
    }

    /// Rolls back. The mark goes back with everything else.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the driver failed. The connection is then broken, and nothing of
    /// the transaction will be in the database.
    pub async fn rollback(mut self) -> Result<(), FenceError> {
        self.end().await.map_err(FenceError::Database)
    }

    /// The connection, inside the transaction.
    ///
    /// The commit never succeeds unless the transaction is the one that took the fence. Do not end it
    /// with raw SQL or with the transaction manager, and drop no statement before its answer came.
    pub fn connection(&mut self) -> &mut C {
        self.conn
    }

    /// Commits without consuming the guard.
    pub(crate) async fn finish(&mut self) -> Result<(), Failure> {
        let trouble = match driver::depth(self.conn) {
            Ok(depth) if depth.is_some_and(|depth| depth.get() > 1) => {
                Some(said("a nested transaction was left open"))
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = trouble {
            self.end().await.ok();
            return Err(FenceError::Database(error).into());
        }
        driver::condemn(self.conn);
        match C::commit(self.conn, self.marker).await {
            Commit::Done(Cleaned(clean)) => {
                if clean {
                    self.let_go();
                }
                Ok(())
            }
            Commit::Failed(failed, error, class) => {
                if failed != Failed::Unknown {
                    self.end().await.ok();
                }
                Err(Commit::failure(failed, error, class))
            }
        }
    }

    /// Rolls back without consuming the guard.
    pub(crate) async fn end(&mut self) -> Result<(), Error> {
        driver::condemn(self.conn);
        C::rollback(self.conn).await?;
        self.let_go();
        Ok(())
    }

    /// What the last error of the connection means, where the server remembers it.
    pub(crate) async fn last_class(&mut self) -> Class {
        C::last_class(self.conn).await
    }

    fn let_go(&mut self) {
        driver::acquit(self.conn);
        self.done = true;
    }
}

impl<C: Connection> Drop for Fenced<'_, C> {
    fn drop(&mut self) {
        if !self.done {
            driver::condemn(self.conn);
            C::abandon(self.conn);
        }
    }
}

impl<C: Connection> fmt::Debug for Fenced<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("marker", &self.marker)
            .finish_non_exhaustive()
    }
}

//! The guard: an open transaction whose fence was admitted.
//!
//! Borrows the connection until the end, and rolls back when it is dropped: the driver blocks, so
//! that can be waited for.

use std::fmt;

use ::diesel::result::Error;

use super::FenceError;
use super::dialect::Dialect;
use super::driver::{Failure, Opened, Order};
use crate::retry::Began;
use crate::sql::Marker;
use crate::{Fence, FenceOptions};

/// An open transaction whose fence was admitted.
///
/// Statements run on [`connection`](Self::connection): write `.execute(tx.connection())`. A function
/// that takes `&mut Fenced<'_, C>` cannot be called without a fence. It is no connection itself,
/// since diesel does not let other crates have one; and it does not dereference to one, because
/// diesel's methods would then be looked up on the guard.
///
/// - It ends with [`commit`](Self::commit) or [`rollback`](Self::rollback). Dropped without either,
///   also by a panic, it is rolled back before `drop` returns.
/// - diesel's `transaction` inside of it is a savepoint.
/// - A connection that could not be put right afterwards is one that diesel takes for broken: r2d2
///   drops it instead of taking it back.
#[must_use = "a fenced transaction that is dropped is rolled back"]
pub struct Fenced<'c, C: Dialect> {
    conn: &'c mut C,
    opened: Opened,
    /// Nothing is left to be ended on the connection.
    done: bool,
}

impl<'c, C: Dialect> Fenced<'c, C> {
    /// Begins on a connection outside of a transaction. After an error it is so again.
    pub(crate) fn open(
        conn: &mut C,
        fence: &Fence,
        options: &FenceOptions,
    ) -> Result<Opened, Failure> {
        let marker = Marker::new();
        let order = Order {
            fence,
            options,
            marker,
            since: Began::now(),
        };
        C::open(conn, order)
    }

    /// The guard for what [`open`](Self::open) opened.
    pub(crate) fn over(conn: &'c mut C, opened: Opened) -> Self {
        Self {
            conn,
            opened,
            done: false,
        }
    }

    /// Commits, and reports success only if the transaction was committed under its fence.
    ///
    /// # Errors
    /// - [`FenceError::Database`]: the database refused the commit; rolled back. On PostgreSQL also
    ///   after any statement that failed before.
    /// - [`FenceError::Ended`]: another statement had ended the transaction.
    /// - [`FenceError::Unknown`]: the connection failed; the transaction may be in.
    pub fn commit(mut self) -> Result<(), FenceError> {
        self.finish().map_err(|failure| failure.error)
    }

    /// Rolls back. The mark goes back with everything else.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the driver failed. diesel then takes the connection for broken,
    /// and nothing of the transaction will be in the database.
    pub fn rollback(mut self) -> Result<(), FenceError> {
        self.end().map_err(FenceError::Database)
    }

    /// The connection, for everything that diesel can do.
    ///
    /// Errors are not seen here. What holds: the commit never succeeds unless the transaction is the
    /// one that took the fence. Do not end it with raw SQL.
    pub fn connection(&mut self) -> &mut C {
        self.conn
    }

    /// Commits without consuming the guard.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        self.done = true;
        C::commit(self.conn, &self.opened)
    }

    /// Rolls back without consuming the guard.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.done = true;
        C::rollback(self.conn, &self.opened)
    }
}

impl<C: Dialect> Drop for Fenced<'_, C> {
    fn drop(&mut self) {
        if !self.done {
            // There is nobody to tell; a connection that could not be put right is marked.
            self.end().ok();
        }
    }
}

impl<C: Dialect> fmt::Debug for Fenced<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced")
            .field("marker", &self.opened.marker)
            .finish_non_exhaustive()
    }
}

//! The connection under a fenced transaction, and whose it is.
//!
//! Ownership decides what may be done with a connection in an unknown state: ours is closed, on
//! another one the driver rolls back before the next statement.

use ::mysql_async::prelude::{AsQuery, Queryable, StatementLike};
use ::mysql_async::{
    BinaryProtocol, Conn, Error, Params, QueryResult, Statement, TextProtocol, Transaction,
};
use futures_core::future::BoxFuture;

/// The connection of a fenced transaction, without the guard's eye on it.
///
/// It is a [`Queryable`]. Errors are not seen here and do not poison. What still holds: the commit
/// never succeeds unless the transaction is the one that took the fence. Do not end it with raw SQL,
/// and do not drop a statement before its answer came.
#[derive(Debug)]
pub struct Unwatched<'c>(pub(crate) Link<'c>);

/// The connection, by the form that the transaction was begun with.
#[derive(Debug)]
pub(crate) enum Link<'c> {
    /// Taken from a pool for this transaction.
    Owned(Conn),
    /// Inside a transaction of the driver: of the caller's, or on a connection of the caller's.
    Joined(Transaction<'c>),
    /// Given back by the end of the guard.
    Gone,
}

impl<'c> Unwatched<'c> {
    /// Takes the driver's transaction out, to end it. Nothing may be run afterwards.
    pub(crate) fn take_joined(&mut self) -> Option<Transaction<'c>> {
        match std::mem::replace(&mut self.0, Link::Gone) {
            Link::Joined(tx) => Some(tx),
            link => {
                self.0 = link;
                None
            }
        }
    }
}

macro_rules! delegate {
    ($self:ident, $conn:ident => $call:expr) => {
        match &mut $self.0 {
            Link::Owned($conn) => $call,
            Link::Joined($conn) => $call,
            Link::Gone => unreachable!("only the end of the guard gives it away"),
        }
    };
}

impl Queryable for Unwatched<'_> {
    fn ping(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        delegate!(self, conn => conn.ping())
    }

    fn query_iter<'a, Q>(
        &'a mut self,
        query: Q,
    ) -> BoxFuture<'a, Result<QueryResult<'a, 'static, TextProtocol>, Error>>
    where
        Q: AsQuery + 'a,
    {
        delegate!(self, conn => conn.query_iter(query))
    }

    fn prep<'a, Q>(&'a mut self, query: Q) -> BoxFuture<'a, Result<Statement, Error>>
    where
        Q: AsQuery + 'a,
    {
        delegate!(self, conn => conn.prep(query))
    }

    fn close(&mut self, stmt: Statement) -> BoxFuture<'_, Result<(), Error>> {
        delegate!(self, conn => conn.close(stmt))
    }

    fn exec_iter<'a: 's, 's, Q, P>(
        &'a mut self,
        stmt: Q,
        params: P,
    ) -> BoxFuture<'s, Result<QueryResult<'a, 'static, BinaryProtocol>, Error>>
    where
        Q: StatementLike + 'a,
        P: Into<Params>,
    {
        delegate!(self, conn => conn.exec_iter(stmt, params))
    }

    fn exec_batch<'a: 'b, 'b, S, P, I>(
        &'a mut self,
        stmt: S,
        params_iter: I,
    ) -> BoxFuture<'b, Result<(), Error>>
    where
        S: StatementLike + 'b,
        I: IntoIterator<Item = P> + Send + 'b,
        I::IntoIter: Send,
        P: Into<Params> + Send,
    {
        delegate!(self, conn => conn.exec_batch(stmt, params_iter))
    }
}

//! `Queryable` for the guard, so that `tx.exec_drop(…)` stays the habit it is.
//!
//! Each method refuses if a statement failed before, and notes the outcome otherwise. The provided
//! ones are overridden, because they read the rows too: what fails there is seen that way. (Those
//! that map rows use the ones that fold them.)

use ::mysql_async::prelude::{AsQuery, FromRow, Queryable, StatementLike};
use ::mysql_async::{
    BinaryProtocol, Error, Params, QueryResult, ResultSetStream, Statement, TextProtocol,
};
use futures_core::future::BoxFuture;

use super::answers::class;
use super::fenced::Fenced;
use crate::health::Health;
use crate::sql::Class;

/// Between the first poll of a statement and its answer. Dropped in between, it poisons.
struct Watch<'e> {
    health: &'e mut Health,
    waiting: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.health.note_abandoned();
        }
    }
}

/// Runs a statement and notes its error.
fn tap<'e, T: Send + 'e>(
    statement: BoxFuture<'e, Result<T, Error>>,
    health: &'e mut Health,
) -> BoxFuture<'e, Result<T, Error>> {
    Box::pin(async move {
        let mut watch = Watch {
            health,
            waiting: true,
        };
        let result = statement.await;
        watch.waiting = false;
        if let Err(error) = &result {
            let transient = class(error) == Class::Transient;
            watch.health.note(error, transient);
        }
        result
    })
}

macro_rules! watched {
    ($self:ident, $conn:ident => $statement:expr) => {
        match $self.sound_parts() {
            Ok(($conn, health)) => tap($statement, health),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    };
}

impl Queryable for Fenced<'_> {
    fn ping(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        watched!(self, conn => conn.ping())
    }

    fn query_iter<'a, Q>(
        &'a mut self,
        query: Q,
    ) -> BoxFuture<'a, Result<QueryResult<'a, 'static, TextProtocol>, Error>>
    where
        Q: AsQuery + 'a,
    {
        watched!(self, conn => conn.query_iter(query))
    }

    fn prep<'a, Q>(&'a mut self, query: Q) -> BoxFuture<'a, Result<Statement, Error>>
    where
        Q: AsQuery + 'a,
    {
        watched!(self, conn => conn.prep(query))
    }

    fn close(&mut self, stmt: Statement) -> BoxFuture<'_, Result<(), Error>> {
        watched!(self, conn => conn.close(stmt))
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
        watched!(self, conn => conn.exec_iter(stmt, params))
    }

    fn query<'a, T, Q>(&'a mut self, query: Q) -> BoxFuture<'a, Result<Vec<T>, Error>>
    where
        Q: AsQuery + 'a,
        T: FromRow + Send + 'static,
    {
        watched!(self, conn => conn.query(query))
    }

    fn query_first<'a, T, Q>(&'a mut self, query: Q) -> BoxFuture<'a, Result<Option<T>, Error>>
    where
        Q: AsQuery + 'a,
        T: FromRow + Send + 'static,
    {
        watched!(self, conn => conn.query_first(query))
    }

    fn query_fold<'a, T, F, Q, U>(
        &'a mut self,
        query: Q,
        init: U,
        f: F,
    ) -> BoxFuture<'a, Result<U, Error>>
    where
        Q: AsQuery + 'a,
        T: FromRow + Send + 'static,
        F: FnMut(U, T) -> U + Send + 'a,
        U: Send + 'a,
    {
        watched!(self, conn => conn.query_fold(query, init, f))
    }

    fn query_drop<'a, Q>(&'a mut self, query: Q) -> BoxFuture<'a, Result<(), Error>>
    where
        Q: AsQuery + 'a,
    {
        watched!(self, conn => conn.query_drop(query))
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
        watched!(self, conn => conn.exec_batch(stmt, params_iter))
    }

    fn exec<'a: 'b, 'b, T, S, P>(
        &'a mut self,
        stmt: S,
        params: P,
    ) -> BoxFuture<'b, Result<Vec<T>, Error>>
    where
        S: StatementLike + 'b,
        P: Into<Params> + Send + 'b,
        T: FromRow + Send + 'static,
    {
        watched!(self, conn => conn.exec(stmt, params))
    }

    fn exec_first<'a: 'b, 'b, T, S, P>(
        &'a mut self,
        stmt: S,
        params: P,
    ) -> BoxFuture<'b, Result<Option<T>, Error>>
    where
        S: StatementLike + 'b,
        P: Into<Params> + Send + 'b,
        T: FromRow + Send + 'static,
    {
        watched!(self, conn => conn.exec_first(stmt, params))
    }

    fn exec_fold<'a: 'b, 'b, T, S, P, U, F>(
        &'a mut self,
        stmt: S,
        params: P,
        init: U,
        f: F,
    ) -> BoxFuture<'b, Result<U, Error>>
    where
        S: StatementLike + 'b,
        P: Into<Params> + Send + 'b,
        T: FromRow + Send + 'static,
        F: FnMut(U, T) -> U + Send + 'a,
        U: Send + 'a,
    {
        watched!(self, conn => conn.exec_fold(stmt, params, init, f))
    }

    fn exec_drop<'a: 'b, 'b, S, P>(
        &'a mut self,
        stmt: S,
        params: P,
    ) -> BoxFuture<'b, Result<(), Error>>
    where
        S: StatementLike + 'b,
        P: Into<Params> + Send + 'b,
    {
        watched!(self, conn => conn.exec_drop(stmt, params))
    }

    fn query_stream<'a, T, Q>(
        &'a mut self,
        query: Q,
    ) -> BoxFuture<'a, Result<ResultSetStream<'a, 'a, 'static, T, TextProtocol>, Error>>
    where
        T: Unpin + FromRow + Send + 'static,
        Q: AsQuery + 'a,
    {
        watched!(self, conn => conn.query_stream(query))
    }

    fn exec_stream<'a: 's, 's, T, Q, P>(
        &'a mut self,
        stmt: Q,
        params: P,
    ) -> BoxFuture<'s, Result<ResultSetStream<'a, 'a, 'static, T, BinaryProtocol>, Error>>
    where
        T: Unpin + FromRow + Send + 'static,
        Q: StatementLike + 'a,
        P: Into<Params> + Send + 's,
    {
        watched!(self, conn => conn.exec_stream(stmt, params))
    }
}

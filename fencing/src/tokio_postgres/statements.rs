//! The driver's methods for statements, on the guard.
//!
//! Each refuses if a statement failed before, and notes the error otherwise. Signatures and errors
//! are the driver's, so that what works in a plain transaction works here.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio_postgres::types::{BorrowToSql, ToSql, Type};
use ::tokio_postgres::{
    CopyInSink, CopyOutStream, Error, Row, RowStream, SimpleQueryMessage, Statement, ToStatement,
};
use bytes::Buf;
use futures_core::Stream;

use super::error::{self, caused_by};
use super::fenced::Fenced;

impl Fenced<'_> {
    /// See [`Client::execute`](::tokio_postgres::Client::execute).
    ///
    /// A statement given as text is prepared first, which is a round trip more: give a [`Statement`]
    /// or use [`execute_typed`](Self::execute_typed) where that counts.
    ///
    /// # Errors
    /// The driver's, and one with [`Poisoned`](crate::Poisoned) as its source after a failure. The
    /// same goes for all methods below.
    pub async fn execute<T>(
        &self,
        statement: &T,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error>
    where
        T: ?Sized + ToStatement,
    {
        self.watched(self.client().execute(statement, params)).await
    }

    /// See [`Client::execute_typed`](::tokio_postgres::Client::execute_typed): one round trip, and
    /// no prepared statement.
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn execute_typed(
        &self,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<u64, Error> {
        self.watched(self.client().execute_typed(statement, params))
            .await
    }

    /// See [`Client::query`](::tokio_postgres::Client::query).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn query<T>(
        &self,
        statement: &T,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error>
    where
        T: ?Sized + ToStatement,
    {
        self.watched(self.client().query(statement, params)).await
    }

    /// See [`Client::query_one`](::tokio_postgres::Client::query_one).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn query_one<T>(
        &self,
        statement: &T,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error>
    where
        T: ?Sized + ToStatement,
    {
        self.watched(self.client().query_one(statement, params))
            .await
    }

    /// See [`Client::query_opt`](::tokio_postgres::Client::query_opt).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn query_opt<T>(
        &self,
        statement: &T,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error>
    where
        T: ?Sized + ToStatement,
    {
        self.watched(self.client().query_opt(statement, params))
            .await
    }

    /// See [`Client::query_typed`](::tokio_postgres::Client::query_typed): one round trip, and no
    /// prepared statement.
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn query_typed(
        &self,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.watched(self.client().query_typed(statement, params))
            .await
    }

    /// See [`Client::query_raw`](::tokio_postgres::Client::query_raw). Dropping the stream early is
    /// harmless: the driver skips the rest.
    ///
    /// # Errors
    /// See [`execute`](Self::execute). Errors in between the rows poison as well.
    pub async fn query_raw<T, P, I>(&self, statement: &T, params: I) -> Result<Rows<'_>, Error>
    where
        T: ?Sized + ToStatement,
        P: BorrowToSql,
        I: IntoIterator<Item = P>,
        I::IntoIter: ExactSizeIterator,
    {
        let rows = self
            .watched(self.client().query_raw(statement, params))
            .await?;
        Ok(Rows {
            rows: Box::pin(rows),
            tx: self,
        })
    }

    /// See [`Client::prepare`](::tokio_postgres::Client::prepare).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn prepare(&self, query: &str) -> Result<Statement, Error> {
        self.watched(self.client().prepare(query)).await
    }

    /// See [`Client::prepare_typed`](::tokio_postgres::Client::prepare_typed).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn prepare_typed(&self, query: &str, types: &[Type]) -> Result<Statement, Error> {
        self.watched(self.client().prepare_typed(query, types))
            .await
    }

    /// See [`Client::batch_execute`](::tokio_postgres::Client::batch_execute).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn batch_execute(&self, query: &str) -> Result<(), Error> {
        self.watched(self.client().batch_execute(query)).await
    }

    /// See [`Client::simple_query`](::tokio_postgres::Client::simple_query).
    ///
    /// # Errors
    /// See [`execute`](Self::execute).
    pub async fn simple_query(&self, query: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.watched(self.client().simple_query(query)).await
    }

    /// See [`Client::copy_in`](::tokio_postgres::Client::copy_in).
    ///
    /// Finish or drop the sink before anything else is sent, the commit included: the connection
    /// waits for that. A copy that was not finished is aborted, and with it the transaction.
    ///
    /// # Errors
    /// See [`execute`](Self::execute). Errors of the sink itself are not seen here, but the server
    /// does not commit after one.
    pub async fn copy_in<T, U>(&self, statement: &T) -> Result<CopyInSink<U>, Error>
    where
        T: ?Sized + ToStatement,
        U: Buf + 'static + Send,
    {
        self.watched(self.client().copy_in(statement)).await
    }

    /// See [`Client::copy_out`](::tokio_postgres::Client::copy_out).
    ///
    /// # Errors
    /// See [`copy_in`](Self::copy_in).
    pub async fn copy_out<T>(&self, statement: &T) -> Result<CopyOutStream, Error>
    where
        T: ?Sized + ToStatement,
    {
        self.watched(self.client().copy_out(statement)).await
    }

    /// Runs a statement, unless one failed before.
    async fn watched<R>(
        &self,
        statement: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let refused = self.health().refuse();
        if let Some(poisoned) = refused {
            return Err(caused_by(self.client(), poisoned).await);
        }
        let mut watch = Watch {
            tx: self,
            waiting: true,
        };
        let result = statement.await;
        watch.waiting = false;
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }

    fn note(&self, error: &Error) {
        if error::is_fatal(error) {
            (self.health()).note(error::text(error), error::is_transient(error));
        }
    }
}

/// Between the first poll of a statement and its answer. Dropped in between, it poisons.
struct Watch<'t, 'c> {
    tx: &'t Fenced<'c>,
    waiting: bool,
}

impl Drop for Watch<'_, '_> {
    fn drop(&mut self) {
        if self.waiting {
            self.tx.health().note_abandoned();
        }
    }
}

/// The rows of [`Fenced::query_raw`], one by one.
#[must_use = "streams do nothing unless polled"]
pub struct Rows<'t> {
    rows: Pin<Box<RowStream>>,
    tx: &'t Fenced<'t>,
}

impl Rows<'_> {
    /// See [`RowStream::rows_affected`]: known after the last row.
    pub fn rows_affected(&self) -> Option<u64> {
        self.rows.rows_affected()
    }
}

impl Stream for Rows<'_> {
    type Item = Result<Row, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let row = std::task::ready!(this.rows.as_mut().poll_next(cx));
        if let Some(Err(error)) = &row {
            this.tx.note(error);
        }
        Poll::Ready(row)
    }
}

impl std::fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

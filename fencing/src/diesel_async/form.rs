//! The forms in which a fence meets a connection of diesel-async, and the retry of whole
//! transactions.

use std::any::Any;

use ::diesel::result::Error;
use futures_core::future::BoxFuture;
use highwater_lock::Fence;

use super::FenceError;
use super::connection::Connection;
use super::driver::Failure;
use super::fenced::Fenced;
use crate::Resolution;
use crate::body::Body;
use crate::offer::Offer;
use crate::options::FenceOptions;
use crate::retry::{Retry, carries};
use crate::sql::{self, Class, Marker};

/// Fenced transactions of diesel-async, as methods of a fence.
///
/// Import it as `use highwater_fencing::diesel_async::DieselAsyncFence as _;`. It is implemented for
/// [`Fence`] and [`Configured`](crate::Configured) and sealed. There is no `admit`, since
/// diesel-async has no transaction object that could be joined.
pub trait DieselAsyncFence: Offer {
    /// Runs `body` in a fenced transaction and commits it: the form for nearly everything.
    ///
    /// `body` is an `async |conn| { … }` over the connection, as in `conn.transaction(…)` of
    /// diesel-async. Lend a pooled connection as `&mut *pooled`. If the body returns an error,
    /// everything is rolled back and the error is returned. If the database reports a serialization
    /// failure or a deadlock, then the **whole** body is run again in a new transaction with the same
    /// fence, as long as the budget of the [`FenceOptions`] allows; so the body must have no lasting
    /// effect besides the transaction. It is cloned for each attempt. To count in it, share an
    /// atomic.
    ///
    /// On PostgreSQL the error has to be seen to be retried: the driver's own, a [`FenceError`] or
    /// one of them boxed, but not inside an enum of yours. On MySQL and MariaDB the server is asked
    /// what its last error was. A lock wait that timed out is not retried, nor is a commit whose
    /// outcome is unknown.
    ///
    /// Where the compiler cannot tell the error type, name it at the end of the body:
    /// `Ok::<_, AppError>(())`. Dropping the future leaves the connection broken (see the
    /// [module](crate::diesel_async)), and nothing of the transaction in the database, unless the
    /// commit was under way.
    ///
    /// # Errors
    /// The body's own, and every [`FenceError`], converted into its type.
    fn transaction<'a, C, F, R, E>(
        &'a self,
        conn: &'a mut C,
        body: F,
    ) -> impl Future<Output = Result<R, E>> + Send + 'a
    where
        C: Connection,
        F: for<'r> AsyncFnOnce(&'r mut C) -> Result<R, E>
            + for<'r> Body<&'r mut C, Result<R, E>, Fut: Send>
            + Clone
            + Send
            + 'a,
        R: Send + 'a,
        E: From<FenceError> + Send + 'static,
    {
        run(conn, self.offered(), body)
    }

    /// Begins a fenced transaction on this connection, which is outside of one, and gives its guard.
    ///
    /// Collisions while the fence is taken are retried within the budget. A dropped future leaves
    /// the connection broken (see the [module](crate::diesel_async)).
    ///
    /// # Errors
    /// Why the fence was refused; [`FenceError::InSavepoint`] if a transaction of diesel-async is
    /// open (one of raw SQL is not seen: MySQL and MariaDB commit it, and on PostgreSQL it becomes the
    /// fenced one); or [`FenceError::Database`] if the driver failed.
    fn begin<'a, 'c: 'a, C: Connection>(
        &'a self,
        conn: &'c mut C,
    ) -> impl Future<Output = Result<Fenced<'c, C>, FenceError>> + Send + 'a {
        begin(conn, self.offered())
    }

    /// Finds out what became of a write of this token and step whose commit ended as
    /// [`FenceError::Unknown`]. Use another connection than the one it was lost on.
    ///
    /// It offers the fence again and rolls back. While the old transaction is still open on the
    /// server that waits, up to [`FenceOptions::resolve_for`]. Nothing is changed either way; a
    /// dropped future leaves the connection broken.
    ///
    /// # Errors
    /// [`FenceError::NoStep`] for a fence without a step, and those of [`begin`](Self::begin) that
    /// say nothing about the write.
    fn resolve<'a, C: Connection>(
        &'a self,
        conn: &'a mut C,
    ) -> impl Future<Output = Result<Resolution, FenceError>> + Send + 'a {
        resolve(conn, self.offered())
    }
}

impl<F: Offer> DieselAsyncFence for F {}

async fn begin<'c, C: Connection>(
    conn: &'c mut C,
    offered: (&Fence, &FenceOptions),
) -> Result<Fenced<'c, C>, FenceError> {
    let opened = open(conn, offered).await;
    let marker = opened.map_err(|failure| failure.error)?;
    Ok(Fenced::over(conn, marker))
}

/// Opens the transaction, within the budget, and leaves it to the caller at once.
async fn open<C: Connection>(
    conn: &mut C,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Marker, Failure> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::open(&mut *conn, fence, options).await {
            Err(failure) if failure.is_transient() && retry.again().await => {}
            result => return result,
        }
    }
}

async fn resolve<C: Connection>(
    conn: &mut C,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Resolution, FenceError> {
    if fence.step().is_none() {
        return Err(FenceError::NoStep);
    }
    let options = options.for_resolving();
    match open(conn, (fence, &options)).await {
        Ok(marker) => {
            // Whatever becomes of it: it was admitted, and it is not committed.
            Fenced::over(conn, marker).end().await.ok();
            Ok(Resolution::NotApplied)
        }
        Err(Failure { error, class }) => Resolution::of_refusal(error, |_| class),
    }
}

async fn run<C, F, R, E>(
    conn: &mut C,
    (fence, options): (&Fence, &FenceOptions),
    body: F,
) -> Result<R, E>
where
    C: Connection,
    F: for<'r> AsyncFnOnce(&'r mut C) -> Result<R, E>
        + for<'r> Body<&'r mut C, Result<R, E>, Fut: Send>
        + Clone
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        let (error, transient) = match attempt(&mut *conn, fence, options, body.clone()).await {
            Ok(value) => return Ok(value),
            Err(failed) => failed,
        };
        if !transient || !retry.again().await {
            return Err(error);
        }
    }
}

/// One attempt; with an error it says whether another one makes sense.
async fn attempt<C, F, R, E>(
    conn: &mut C,
    fence: &Fence,
    options: &FenceOptions,
    body: F,
) -> Result<R, (E, bool)>
where
    C: Connection,
    F: for<'r> AsyncFnOnce(&'r mut C) -> Result<R, E>
        + for<'r> Body<&'r mut C, Result<R, E>, Fut: Send>
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    let failed = |failure: Failure| {
        let transient = failure.is_transient();
        (E::from(failure.error), transient)
    };
    let opened = Fenced::open(&mut *conn, fence, options).await;
    let mut tx = Fenced::over(conn, opened.map_err(failed)?);
    match call(body, tx.connection()).await {
        Ok(value) => match tx.finish().await {
            Ok(()) => Ok(value),
            Err(failure) => Err(failed(failure)),
        },
        Err(error) => {
            let last = tx.last_class().await;
            tx.end().await.ok();
            let transient = last == Class::Transient || carries_transient::<C>(&error);
            Err((error, transient))
        }
    }
}

/// Calls the body through a box: without it, awaiting a body that is generic over the lifetime of
/// the connection is not accepted inside a future that has to be `Send`.
fn call<'r, C, F, R, E>(body: F, conn: &'r mut C) -> BoxFuture<'r, Result<R, E>>
where
    C: Connection,
    F: AsyncFnOnce(&'r mut C) -> Result<R, E> + Body<&'r mut C, Result<R, E>, Fut: Send>,
    <F as Body<&'r mut C, Result<R, E>>>::Fut: 'r,
{
    Box::pin(body(conn))
}

/// Looks for a driver error in the body's own error.
fn carries_transient<C: Connection>(error: &dyn Any) -> bool {
    carries(error, |error: &Error| C::class(error) == Class::Transient)
}

//! The forms in which a fence meets a transaction of mysql_async, and the retry of whole
//! transactions.

use std::any::Any;

use ::mysql_async::{Conn, Error, Pool, Transaction};
use futures_core::future::BoxFuture;
use highwater_lock::Fence;

use super::FenceError;
use super::answers::class;
use super::fenced::{Fenced, is_transient};
use crate::Resolution;
use crate::body::Body;
use crate::offer::Offer;
use crate::options::FenceOptions;
use crate::retry::{Retry, carries, repeat};
use crate::sql::{self, Class};

/// Fenced transactions of mysql_async, as methods of a fence.
///
/// Import it as `use highwater_fencing::mysql_async::MysqlAsyncFence as _;`. It is implemented for
/// [`Fence`] and [`Configured`](crate::Configured) and sealed.
pub trait MysqlAsyncFence: Offer {
    /// Runs `body` in a fenced transaction and commits it: the form for nearly everything.
    ///
    /// `body` is an `async |tx| { … }`. If it returns an error, everything is rolled back and the
    /// error is returned. If the database reports a deadlock, then the **whole** body is run again
    /// in a new transaction with the same fence, as long as the budget of the [`FenceOptions`]
    /// allows; so the body must have no lasting effect besides the transaction. It is cloned for each
    /// attempt. To count in it, share an atomic.
    ///
    /// A lock wait that timed out is not retried, nor is a commit whose outcome is unknown, nor an
    /// error that went past the guard (see [`Fenced::connection`]) and is inside an enum of yours.
    ///
    /// Where the compiler cannot tell the error type, name it at the end of the body:
    /// `Ok::<_, AppError>(())`. Dropping the future rolls back, unless the commit was under way.
    ///
    /// # Errors
    /// The body's own, and every [`FenceError`], converted into its type.
    fn transaction<'a, F, R, E>(
        &'a self,
        pool: &'a Pool,
        body: F,
    ) -> impl Future<Output = Result<R, E>> + Send + 'a
    where
        F: for<'r> AsyncFnOnce(&'r mut Fenced<'static>) -> Result<R, E>
            + for<'r> Body<&'r mut Fenced<'static>, Result<R, E>, Fut: Send>
            + Clone
            + Send
            + 'a,
        R: Send + 'a,
        E: From<FenceError> + Send + 'static,
    {
        run(pool, self.offered(), body)
    }

    /// Begins a fenced transaction on a connection of the pool and gives its guard.
    ///
    /// Collisions while the fence is taken are retried within the budget. Dropping the future
    /// leaves no open transaction in the pool; it may be wrapped in a timeout.
    ///
    /// # Errors
    /// Why the fence was refused, or [`FenceError::Database`] if the driver failed.
    fn begin<'a>(
        &'a self,
        pool: &'a Pool,
    ) -> impl Future<Output = Result<Fenced<'static>, FenceError>> + Send + 'a {
        begin(pool, self.offered())
    }

    /// Begins a fenced transaction on a connection of the caller, outside of a transaction. Nothing
    /// is retried.
    ///
    /// It takes two round trips more than [`begin`](Self::begin), one to begin and one to commit,
    /// because the driver has to know of the transaction and the session of the connection is left
    /// as it is. So what is written after a statement that ended the transaction silently (DDL above
    /// all) stays, although the commit then answers [`FenceError::Ended`].
    ///
    /// # Cancelling
    /// A guard that is dropped is rolled back by the driver, before the next use of the connection
    /// or its return to its pool. A future that is dropped in the middle of a statement, this method
    /// included, leaves an answer on the way, for which the driver does not look: drop the
    /// connection then. A pool closes it.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin), and [`FenceError::InSavepoint`] if a transaction of the driver
    /// is open. One that was opened with raw SQL is not seen: the server commits it.
    fn begin_on<'a, 'c: 'a>(
        &'a self,
        conn: &'c mut Conn,
    ) -> impl Future<Output = Result<Fenced<'c>, FenceError>> + Send + 'a {
        begin_on(conn, self.offered())
    }

    /// Finds out what became of a write of this token and step whose commit ended as
    /// [`FenceError::Unknown`].
    ///
    /// It offers the fence again and rolls back. While the old transaction is still open on the
    /// server that waits, up to [`FenceOptions::resolve_for`]. Nothing is changed either way, and
    /// dropping the future is harmless.
    ///
    /// # Errors
    /// [`FenceError::NoStep`] for a fence without a step, and those of [`begin`](Self::begin) that
    /// say nothing about the write.
    fn resolve<'a>(
        &'a self,
        pool: &'a Pool,
    ) -> impl Future<Output = Result<Resolution, FenceError>> + Send + 'a {
        resolve(pool, self.offered())
    }

    /// Takes the fence in a transaction that the caller has just begun, and gives the guard for it.
    ///
    /// It has to be the first statement of the transaction, outside of any savepoint: what was
    /// read before is not covered by the fence. The transaction is consumed, so that its commit is
    /// the guard's. After an error it was rolled back. Nothing is retried.
    ///
    /// The notes of [`begin_on`](Self::begin_on) about DDL and about cancelling apply.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin). A savepoint of raw SQL is not seen; if the fence is rolled back
    /// with it, the commit answers [`FenceError::Ended`].
    fn admit<'a, 'c: 'a>(
        &'a self,
        tx: Transaction<'c>,
    ) -> impl Future<Output = Result<Fenced<'c>, FenceError>> + Send + 'a {
        admit(tx, self.offered())
    }
}

impl<F: Offer> MysqlAsyncFence for F {}

async fn begin(
    pool: &Pool,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'static>, FenceError> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::begin(pool, fence, options).await {
            Err(error) if is_transient(&error) && retry.again().await => {}
            result => return result,
        }
    }
}

async fn resolve(
    pool: &Pool,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Resolution, FenceError> {
    if fence.step().is_none() {
        return Err(FenceError::NoStep);
    }
    let options = options.for_resolving();
    match begin(pool, (fence, &options)).await {
        Ok(mut tx) => {
            // Whatever becomes of it: it was admitted, and it is not committed.
            tx.end().await.ok();
            Ok(Resolution::NotApplied)
        }
        Err(refusal) => Resolution::of_refusal(refusal, class),
    }
}

async fn begin_on<'c>(
    conn: &'c mut Conn,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'c>, FenceError> {
    sql::check_range(fence)?;
    Fenced::begin_on(conn, fence, options).await
}

async fn admit<'c>(
    tx: Transaction<'c>,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'c>, FenceError> {
    sql::check_range(fence)?;
    Fenced::join(tx, fence, options).await
}

async fn run<F, R, E>(
    pool: &Pool,
    (fence, options): (&Fence, &FenceOptions),
    body: F,
) -> Result<R, E>
where
    F: for<'r> AsyncFnOnce(&'r mut Fenced<'static>) -> Result<R, E>
        + for<'r> Body<&'r mut Fenced<'static>, Result<R, E>, Fut: Send>
        + Clone
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    sql::check_range(fence)?;
    // The body is moved in: it need not be shared between threads.
    repeat(options.budget(), move || {
        attempt(pool, fence, options, body.clone())
    })
    .await
}

/// One attempt; with an error it says whether another one makes sense.
async fn attempt<F, R, E>(
    pool: &Pool,
    fence: &Fence,
    options: &FenceOptions,
    body: F,
) -> Result<R, (E, bool)>
where
    F: for<'r> AsyncFnOnce(&'r mut Fenced<'static>) -> Result<R, E>
        + for<'r> Body<&'r mut Fenced<'static>, Result<R, E>, Fut: Send>
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    let failed = |error: FenceError| {
        let transient = is_transient(&error);
        (E::from(error), transient)
    };
    let mut tx = Fenced::begin(pool, fence, options).await.map_err(failed)?;
    match call(body, &mut tx).await {
        Ok(value) => match tx.finish().await {
            Ok(()) => Ok(value),
            // The body swallowed an error: it may have been one of those that deserve a retry.
            Err(error @ FenceError::Poisoned { .. }) => Err((error.into(), tx.is_transient())),
            Err(error) => Err(failed(error)),
        },
        Err(error) => {
            tx.end().await.ok();
            let transient = tx.is_transient() || carries_transient(&error);
            Err((error, transient))
        }
    }
}

/// Calls the body through a box: without it, awaiting a body that is generic over the lifetime of
/// the transaction is not accepted inside a future that has to be `Send`.
fn call<'r, F, R, E>(body: F, tx: &'r mut Fenced<'static>) -> BoxFuture<'r, Result<R, E>>
where
    F: AsyncFnOnce(&'r mut Fenced<'static>) -> Result<R, E>
        + Body<&'r mut Fenced<'static>, Result<R, E>, Fut: Send>,
    <F as Body<&'r mut Fenced<'static>, Result<R, E>>>::Fut: 'r,
{
    Box::pin(body(tx))
}

/// Looks for a driver error in the body's own error, for statements that went past the guard.
fn carries_transient(error: &dyn Any) -> bool {
    carries(error, |error: &Error| class(error) == Class::Transient)
}

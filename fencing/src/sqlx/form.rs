//! The forms in which a fence meets a transaction of sqlx, and the retry of whole transactions.

use std::any::Any;

use ::sqlx::{Error, Pool, Transaction};
use futures_core::future::BoxFuture;
use highwater_lock::Fence;

use super::FenceError;
use super::dialect::Dialect;
use super::fenced::{Fenced, is_transient};
use super::link::{Lend, sealed};
use super::write::RowWrite;
use crate::body::Body;
use crate::offer::Offer;
use crate::options::FenceOptions;
use crate::retry::{Retry, carries, repeat};
use crate::sql::{self, Class};
use crate::{Resolution, Written};

/// Fenced transactions of sqlx, as methods of a fence.
///
/// Import it as `use highwater_fencing::sqlx::SqlxFence as _;`. It is implemented for
/// [`Fence`] and [`Configured`](crate::Configured) and sealed.
pub trait SqlxFence: Offer {
    /// Runs `body` in a fenced transaction and commits it: the form for nearly everything.
    ///
    /// `body` is an `async |tx| { … }`. If it returns an error, everything is rolled back and the
    /// error is returned. If the database reports a serialization failure, a deadlock, or that it
    /// is busy, then the **whole** body is run again in a new transaction with the same fence, as
    /// long as the budget of the [`FenceOptions`] allows; so the body must have no lasting effect
    /// besides the transaction. It is cloned for each attempt. To count in it, share an atomic.
    ///
    /// A lock wait that timed out is not retried, nor is a commit whose outcome is unknown, nor an
    /// error that went past the guard (see [`Fenced::connection`]) and is inside an enum of yours.
    ///
    /// Where the compiler cannot tell the error type, name it at the end of the body:
    /// `Ok::<_, AppError>(())`. Dropping the future rolls back, unless the commit was under way.
    ///
    /// # Errors
    /// The body's own, and every [`FenceError`], converted into its type.
    fn transaction<'a, Db, F, R, E>(
        &'a self,
        pool: &'a Pool<Db>,
        body: F,
    ) -> impl Future<Output = Result<R, E>> + Send + 'a
    where
        Db: Dialect,
        F: for<'r> AsyncFnOnce(&'r mut Fenced<'static, Db>) -> Result<R, E>
            + for<'r> Body<&'r mut Fenced<'static, Db>, Result<R, E>, Fut: Send>
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
    fn begin<'a, Db: Dialect>(
        &'a self,
        pool: &'a Pool<Db>,
    ) -> impl Future<Output = Result<Fenced<'static, Db>, FenceError>> + Send + 'a {
        begin(pool, self.offered())
    }

    /// Begins a fenced transaction on a connection of the caller: `&mut conn` of a
    /// `PoolConnection` or of a bare connection, outside of a transaction. Nothing is retried.
    ///
    /// The commit takes one round trip more than in [`begin`](Self::begin), because the session of
    /// the connection is left as it is. On MySQL and MariaDB that means: what is written after a
    /// statement that ended the transaction silently (DDL above all) stays, although the commit
    /// then answers [`FenceError::Ended`].
    ///
    /// # Cancelling
    /// A guard that is dropped queues a rollback, which runs before the next use of the connection.
    /// A *future of this method* that is dropped may leave the connection inside an open
    /// transaction, as sqlx's own `begin` does. A `PoolConnection` is therefore closed when it is
    /// dropped; do not use it, or a bare connection, for anything else after that.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin), and [`FenceError::InSavepoint`] if a transaction of sqlx is
    /// open. One that was opened with raw SQL is not seen: MySQL and MariaDB commit it, and on
    /// PostgreSQL it becomes the fenced one.
    fn begin_on<'a, 'c: 'a, L: Lend<'c> + 'a>(
        &'a self,
        connection: L,
    ) -> impl Future<Output = Result<Fenced<'c, L::Database>, FenceError>> + Send + 'a {
        begin_on(connection.link(), self.offered())
    }

    /// Writes one row, fence and write in **one** round trip where that is right: on PostgreSQL in one
    /// statement; on MySQL and MariaDB in one for an update under a single key that has a mark
    /// already and whose table is not protected, with autocommit; otherwise, and on SQLite, in a
    /// transaction.
    ///
    /// What can be said with [`RowWrite`] is what is right in one statement. Collisions are retried
    /// within the budget. Dropping the future before its end leaves nothing open, but the row may have
    /// been written.
    ///
    /// # Errors
    /// Those of a commit: [`FenceError::Unknown`] if the connection failed before the answer came.
    fn write<'a, Db: Dialect>(
        &'a self,
        pool: &'a Pool<Db>,
        write: &'a RowWrite<'_, Db>,
    ) -> impl Future<Output = Result<Written, FenceError>> + Send + 'a {
        super::write::write(pool, self.offered(), write)
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
    fn resolve<'a, Db: Dialect>(
        &'a self,
        pool: &'a Pool<Db>,
    ) -> impl Future<Output = Result<Resolution, FenceError>> + Send + 'a {
        resolve(pool, self.offered())
    }

    /// Takes the fence in a transaction that the caller has just begun, and gives the guard for it.
    ///
    /// It has to be the first statement of the transaction, outside of any savepoint: what was
    /// read before is not covered by the fence. The transaction is consumed, so that its commit is
    /// the guard's. After an error it was rolled back. Nothing is retried.
    ///
    /// A guard, or a future of this method, that is dropped queues a rollback, as sqlx does. On
    /// MySQL and MariaDB the note about DDL of [`begin_on`](Self::begin_on) applies.
    /// There, too, sqlx loses count of the answers if a statement is dropped while it is being
    /// prepared: such a connection goes back to its pool out of step. Where futures are dropped in
    /// the middle of statements, prefer [`transaction`](Self::transaction) or
    /// [`begin`](Self::begin), which close it.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin), and [`FenceError::InSavepoint`] for a nested transaction; on
    /// PostgreSQL also after a `SAVEPOINT` of raw SQL.
    fn admit<'a, 'c: 'a, Db: Dialect>(
        &'a self,
        tx: Transaction<'c, Db>,
    ) -> impl Future<Output = Result<Fenced<'c, Db>, FenceError>> + Send + 'a {
        admit(tx, self.offered())
    }
}

impl<F: Offer> SqlxFence for F {}

async fn begin<Db: Dialect>(
    pool: &Pool<Db>,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'static, Db>, FenceError> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::begin(pool, fence, options).await {
            Err(error) if is_transient::<Db>(&error) && retry.again().await => {}
            result => return result,
        }
    }
}

async fn resolve<Db: Dialect>(
    pool: &Pool<Db>,
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
        Err(refusal) => Resolution::of_refusal(refusal, Db::class),
    }
}

async fn begin_on<'c, Db: Dialect>(
    lent: sealed::Lent<'c, Db>,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'c, Db>, FenceError> {
    sql::check_range(fence)?;
    Fenced::open(lent.0, fence, options).await
}

async fn admit<'c, Db: Dialect>(
    tx: Transaction<'c, Db>,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'c, Db>, FenceError> {
    sql::check_range(fence)?;
    Fenced::join(tx, fence, options).await
}

async fn run<Db, F, R, E>(
    pool: &Pool<Db>,
    (fence, options): (&Fence, &FenceOptions),
    body: F,
) -> Result<R, E>
where
    Db: Dialect,
    F: for<'r> AsyncFnOnce(&'r mut Fenced<'static, Db>) -> Result<R, E>
        + for<'r> Body<&'r mut Fenced<'static, Db>, Result<R, E>, Fut: Send>
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
async fn attempt<Db, F, R, E>(
    pool: &Pool<Db>,
    fence: &Fence,
    options: &FenceOptions,
    body: F,
) -> Result<R, (E, bool)>
where
    Db: Dialect,
    F: for<'r> AsyncFnOnce(&'r mut Fenced<'static, Db>) -> Result<R, E>
        + for<'r> Body<&'r mut Fenced<'static, Db>, Result<R, E>, Fut: Send>
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    let failed = |error: FenceError| {
        let transient = is_transient::<Db>(&error);
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
            let transient = tx.is_transient() || carries_transient::<Db>(&error);
            Err((error, transient))
        }
    }
}

/// Calls the body through a box: without it, awaiting a body that is generic over the lifetime of
/// the transaction is not accepted inside a future that has to be `Send`.
fn call<'r, Db, F, R, E>(body: F, tx: &'r mut Fenced<'static, Db>) -> BoxFuture<'r, Result<R, E>>
where
    Db: Dialect,
    F: AsyncFnOnce(&'r mut Fenced<'static, Db>) -> Result<R, E>
        + Body<&'r mut Fenced<'static, Db>, Result<R, E>, Fut: Send>,
    <F as Body<&'r mut Fenced<'static, Db>, Result<R, E>>>::Fut: 'r,
{
    Box::pin(body(tx))
}

/// Looks for a driver error in the body's own error, for statements that went past the guard.
fn carries_transient<Db: Dialect>(error: &dyn Any) -> bool {
    carries(error, |error: &Error| Db::class(error) == Class::Transient)
}

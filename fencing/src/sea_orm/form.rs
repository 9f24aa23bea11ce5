//! The forms in which a fence meets a transaction of sea-orm, and the retry of whole transactions.

use ::sea_orm::DatabaseConnection;
use futures_core::future::BoxFuture;
use highwater_lock::Fence;

use super::FenceError;
use super::error::{class_of, is_collision, is_transient};
use super::fenced::Fenced;
use crate::body::Body;
use crate::offer::Offer;
use crate::retry::{Retry, carries};
use crate::{FenceOptions, Resolution, sql};

/// Fenced transactions of sea-orm, as methods of a fence.
///
/// Import it as `use highwater_fencing::sea_orm::SeaOrmFence as _;`. It is implemented for
/// [`Fence`] and [`Configured`](crate::Configured) and sealed.
pub trait SeaOrmFence: Offer {
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
    fn transaction<'a, F, R, E>(
        &'a self,
        db: &'a DatabaseConnection,
        body: F,
    ) -> impl Future<Output = Result<R, E>> + Send + 'a
    where
        F: for<'r> AsyncFnOnce(&'r Fenced) -> Result<R, E>
            + for<'r> Body<&'r Fenced, Result<R, E>, Fut: Send>
            + Clone
            + Send
            + 'a,
        R: Send + 'a,
        E: From<FenceError> + Send + 'static,
    {
        run(db, self.offered(), body)
    }

    /// Begins a fenced transaction on a connection of the pool and gives its guard.
    ///
    /// Collisions while the fence is taken are retried within the budget. Dropping the future
    /// leaves no open transaction in the pool; it may be wrapped in a timeout.
    ///
    /// # Errors
    /// Why the fence was refused, or [`FenceError::Database`] if the driver failed; also for a
    /// connection that is not a pool of sqlx.
    fn begin<'a>(
        &'a self,
        db: &'a DatabaseConnection,
    ) -> impl Future<Output = Result<Fenced, FenceError>> + Send + 'a {
        begin(db, self.offered())
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
        db: &'a DatabaseConnection,
    ) -> impl Future<Output = Result<Resolution, FenceError>> + Send + 'a {
        resolve(db, self.offered())
    }
}

impl<F: Offer> SeaOrmFence for F {}

async fn begin(
    db: &DatabaseConnection,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced, FenceError> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::begin(db, fence, options).await {
            Err(error) if is_collision(&error) && retry.again().await => {}
            result => return result,
        }
    }
}

async fn resolve(
    db: &DatabaseConnection,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Resolution, FenceError> {
    if fence.step().is_none() {
        return Err(FenceError::NoStep);
    }
    match begin(db, (fence, &options.for_resolving())).await {
        Ok(mut tx) => {
            // Whatever becomes of it: it was admitted, and it is not committed.
            tx.end().await.ok();
            Ok(Resolution::NotApplied)
        }
        Err(refusal) => Resolution::of_refusal(refusal, class_of),
    }
}

async fn run<F, R, E>(
    db: &DatabaseConnection,
    (fence, options): (&Fence, &FenceOptions),
    body: F,
) -> Result<R, E>
where
    F: for<'r> AsyncFnOnce(&'r Fenced) -> Result<R, E>
        + for<'r> Body<&'r Fenced, Result<R, E>, Fut: Send>
        + Clone
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        let begun = Fenced::begin(db, fence, options).await;
        let attempted = match begun {
            Ok(tx) => attempt(tx, body.clone()).await,
            Err(error) => Err(failed(error)),
        };
        match attempted {
            Ok(value) => return Ok(value),
            Err((_, transient)) if transient && retry.again().await => {}
            Err((error, _)) => return Err(error),
        }
    }
}

/// One attempt; with an error it says whether another one makes sense.
async fn attempt<F, R, E>(mut tx: Fenced, body: F) -> Result<R, (E, bool)>
where
    F: for<'r> AsyncFnOnce(&'r Fenced) -> Result<R, E>
        + for<'r> Body<&'r Fenced, Result<R, E>, Fut: Send>
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    match call(body, &tx).await {
        Ok(value) => match tx.finish().await {
            Ok(()) => Ok(value),
            // The body swallowed an error: it may have been one of those that deserve a retry.
            Err(error @ FenceError::Poisoned { .. }) => Err((error.into(), tx.is_transient())),
            Err(error) => Err(failed(error)),
        },
        Err(error) => {
            tx.end().await.ok();
            let transient = tx.is_transient() || carries(&error, is_transient);
            Err((error, transient))
        }
    }
}

/// Calls the body through a box, as the sqlx adapter does.
fn call<'r, F, R, E>(body: F, tx: &'r Fenced) -> BoxFuture<'r, Result<R, E>>
where
    F: AsyncFnOnce(&'r Fenced) -> Result<R, E> + Body<&'r Fenced, Result<R, E>, Fut: Send>,
    <F as Body<&'r Fenced, Result<R, E>>>::Fut: 'r,
{
    Box::pin(body(tx))
}

fn failed<E: From<FenceError>>(error: FenceError) -> (E, bool) {
    let transient = is_collision(&error);
    (error.into(), transient)
}

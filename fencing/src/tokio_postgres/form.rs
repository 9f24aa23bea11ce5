//! The forms in which a fence meets a transaction of tokio-postgres, and the retry of whole
//! transactions.

use std::any::Any;

use ::tokio_postgres::{Client, Transaction};
use futures_core::future::BoxFuture;
use highwater_lock::Fence;

use super::FenceError;
use super::error;
use super::fenced::{Fenced, is_transient};
use super::query::{Answer, Query};
use super::write::{RowWrite, is_no_row};
use crate::body::Body;
use crate::offer::Offer;
use crate::options::FenceOptions;
use crate::retry::{Retry, carries, repeat};
use crate::sql;
use crate::{Resolution, Written};

/// Fenced transactions of tokio-postgres, as methods of a fence.
///
/// Import it as `use highwater_fencing::tokio_postgres::TokioPostgresFence as _;`. It is implemented
/// for [`Fence`] and [`Configured`](crate::Configured) and sealed.
///
/// Every method takes the connection as `&mut Client`, so that nothing else can use it meanwhile. A
/// pooled connection of deadpool-postgres or bb8-postgres is passed as `&mut pooled`.
pub trait TokioPostgresFence: Offer {
    /// Runs `body` in a fenced transaction and commits it: the form for nearly everything.
    ///
    /// `body` is an `async |tx| { … }`. If it returns an error, everything is rolled back and the
    /// error is returned. If the database reports a serialization failure or a deadlock, then the
    /// **whole** body is run again in a new transaction with the same fence, as long as the budget
    /// of the [`FenceOptions`] allows; so the body must have no lasting effect besides the
    /// transaction. It is cloned for each attempt. To count in it, share an atomic.
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
        client: &'a mut Client,
        body: F,
    ) -> impl Future<Output = Result<R, E>> + Send + 'a
    where
        F: for<'r> AsyncFnOnce(&'r Fenced<'r>) -> Result<R, E>
            + for<'r> Body<&'r Fenced<'r>, Result<R, E>, Fut: Send>
            + Clone
            + Send
            + 'a,
        R: Send + 'a,
        E: From<FenceError> + Send + 'static,
    {
        run(client, self.offered(), body)
    }

    /// Begins a fenced transaction and gives its guard, in one round trip.
    ///
    /// Collisions while the fence is taken are retried within the budget. Dropping the future
    /// leaves no open transaction; it may be wrapped in a timeout.
    ///
    /// # Errors
    /// Why the fence was refused, or [`FenceError::Database`] if the driver failed.
    /// [`FenceError::InSavepoint`] if a transaction was open on this connection: of raw SQL, or left
    /// behind by an earlier user of the pool. It is rolled back.
    fn begin<'a, 'c: 'a>(
        &'a self,
        client: &'c mut Client,
    ) -> impl Future<Output = Result<Fenced<'c>, FenceError>> + Send + 'a {
        begin(client, self.offered())
    }

    /// The same with the first statement in the same round trip: typically the `SELECT` of what is
    /// decided on. Gives its answer beside the guard.
    ///
    /// Together with [`Fenced::commit_with`] a transaction that reads, decides and writes takes two
    /// round trips instead of four. The server runs the statement only after it admitted the fence,
    /// and takes its snapshot then. (From `RepeatableRead` on there is one snapshot, that of the
    /// fence, and a collision is a serialization failure.)
    ///
    /// # Errors
    /// As for [`begin`](Self::begin); [`FenceError::Database`] also if the statement failed, or a
    /// parameter cannot be sent in this form.
    fn begin_with<'a, 'c: 'a>(
        &'a self,
        client: &'c mut Client,
        first: Query<'a>,
    ) -> impl Future<Output = Result<(Fenced<'c>, Answer), FenceError>> + Send + 'a {
        begin_with(client, self.offered(), first)
    }

    /// Runs a whole fenced transaction in one round trip: begins, takes the fence, runs these
    /// statements and commits, all by one message.
    ///
    /// The server works the message off in order and skips the rest at the first error. So nothing
    /// is written if the fence is not admitted or one of the statements fails. Each statement takes
    /// its snapshot when its turn comes, behind the fence. What it cannot do is decide in between:
    /// statements see what earlier ones wrote, the program does not. For a write that depends on
    /// what it finds, let SQL say so (`UPDATE … WHERE quantity >= $2`) and look at
    /// [`Answer::rows_affected`] afterwards; or use [`begin_with`](Self::begin_with).
    ///
    /// Collisions are retried within the budget, the whole message each time. Dropping the future
    /// leaves nothing open, and the outcome unknown. [`resolve`](Self::resolve) on this same connection
    /// comes behind the message; on another one it may overtake it, see
    /// [`Resolution::NotApplied`].
    ///
    /// # Errors
    /// Those of [`begin_with`](Self::begin_with) and of [`Fenced::commit`]. A connection that fails
    /// meanwhile leaves the outcome [unknown](FenceError::Unknown), whatever was being waited for.
    fn pipeline<'a>(
        &'a self,
        client: &'a mut Client,
        statements: &'a [Query<'a>],
    ) -> impl Future<Output = Result<Vec<Answer>, FenceError>> + Send + 'a {
        pipeline(client, self.offered(), statements)
    }

    /// Writes one row in one round trip, and tells whether there was one.
    ///
    /// It is a [`pipeline`](Self::pipeline) whose statement fails unless it wrote exactly one row: then
    /// everything is rolled back, also the mark and the step.
    ///
    /// # Errors
    /// Those of [`pipeline`](Self::pipeline).
    fn write<'a>(
        &'a self,
        client: &'a mut Client,
        write: &'a RowWrite<'_>,
    ) -> impl Future<Output = Result<Written, FenceError>> + Send + 'a {
        write_row(client, self.offered(), write)
    }

    /// Takes the fence in a transaction that the caller has just begun, and gives the guard for it.
    ///
    /// It has to be the first statement of the transaction, outside of any savepoint: what was
    /// read before is not covered by the fence. The transaction is consumed, so that its commit is
    /// the guard's. After an error it was rolled back. Nothing is retried.
    ///
    /// It takes the driver's own `Transaction`. deadpool-postgres has a type of that name which does
    /// not give it away: begin with `tokio_postgres::Client::transaction(&mut pooled)` instead.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin), and [`FenceError::InSavepoint`] for a nested transaction or
    /// after a `SAVEPOINT` of raw SQL. (A fence that would not be admitted anyway is refused for that
    /// reason.) In a nested transaction only that is rolled back.
    fn admit<'a, 'c: 'a>(
        &'a self,
        tx: Transaction<'c>,
    ) -> impl Future<Output = Result<Fenced<'c>, FenceError>> + Send + 'a {
        admit(tx, self.offered())
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
        client: &'a mut Client,
    ) -> impl Future<Output = Result<Resolution, FenceError>> + Send + 'a {
        resolve(client, self.offered())
    }
}

impl<F: Offer> TokioPostgresFence for F {}

async fn begin<'c>(
    client: &'c Client,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'c>, FenceError> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::begin(client, fence, options, &[]).await {
            Err(error) if is_transient(&error) && retry.again().await => {}
            result => return result.map(|(tx, _)| tx),
        }
    }
}

async fn begin_with<'c>(
    client: &'c Client,
    (fence, options): (&Fence, &FenceOptions),
    first: Query<'_>,
) -> Result<(Fenced<'c>, Answer), FenceError> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::begin(client, fence, options, &[first]).await {
            Err(error) if is_transient(&error) && retry.again().await => {}
            result => {
                let (tx, mut answers) = result?;
                let answer = answers.pop();
                return Ok((tx, answer.expect("the server answered without an error")));
            }
        }
    }
}

async fn write_row(
    client: &Client,
    offered: (&Fence, &FenceOptions),
    write: &RowWrite<'_>,
) -> Result<Written, FenceError> {
    let (text, params) = write.statement();
    let statements = [Query::new(&text, &params)];
    match pipeline(client, offered, &statements).await {
        Ok(_) => Ok(Written::Applied),
        Err(FenceError::Database(error)) if is_no_row(&error) => Ok(Written::NoRow),
        Err(error) => Err(error),
    }
}

async fn pipeline(
    client: &Client,
    (fence, options): (&Fence, &FenceOptions),
    statements: &[Query<'_>],
) -> Result<Vec<Answer>, FenceError> {
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::pipeline(client, fence, options, statements).await {
            Err(error) if is_transient(&error) && retry.again().await => {}
            result => return result,
        }
    }
}

async fn admit<'c>(
    tx: Transaction<'c>,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Fenced<'c>, FenceError> {
    sql::check_range(fence)?;
    Fenced::join(tx, fence, options).await
}

async fn resolve(
    client: &Client,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Resolution, FenceError> {
    if fence.step().is_none() {
        return Err(FenceError::NoStep);
    }
    let options = options.for_resolving();
    match begin(client, (fence, &options)).await {
        Ok(mut tx) => {
            // Whatever becomes of it: it was admitted, and it is not committed.
            tx.end().await.ok();
            Ok(Resolution::NotApplied)
        }
        Err(refusal) => Resolution::of_refusal(refusal, error::class),
    }
}

async fn run<F, R, E>(
    client: &Client,
    (fence, options): (&Fence, &FenceOptions),
    body: F,
) -> Result<R, E>
where
    F: for<'r> AsyncFnOnce(&'r Fenced<'r>) -> Result<R, E>
        + for<'r> Body<&'r Fenced<'r>, Result<R, E>, Fut: Send>
        + Clone
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    sql::check_range(fence)?;
    // The body is moved in: it need not be shared between threads.
    repeat(options.budget(), move || {
        attempt(client, fence, options, body.clone())
    })
    .await
}

/// One attempt; with an error it says whether another one makes sense.
async fn attempt<F, R, E>(
    client: &Client,
    fence: &Fence,
    options: &FenceOptions,
    body: F,
) -> Result<R, (E, bool)>
where
    F: for<'r> AsyncFnOnce(&'r Fenced<'r>) -> Result<R, E>
        + for<'r> Body<&'r Fenced<'r>, Result<R, E>, Fut: Send>
        + Send,
    R: Send,
    E: From<FenceError> + Send + 'static,
{
    let failed = |error: FenceError| {
        let transient = is_transient(&error);
        (E::from(error), transient)
    };
    let begun = Fenced::begin(client, fence, options, &[]).await;
    let (mut tx, _) = begun.map_err(failed)?;
    match call(body, &tx).await {
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
fn call<'r, F, R, E>(body: F, tx: &'r Fenced<'r>) -> BoxFuture<'r, Result<R, E>>
where
    F: AsyncFnOnce(&'r Fenced<'r>) -> Result<R, E> + Body<&'r Fenced<'r>, Result<R, E>, Fut: Send>,
    <F as Body<&'r Fenced<'r>, Result<R, E>>>::Fut: 'r,
{
    Box::pin(body(tx))
}

/// Looks for a driver error in the body's own error, for statements that went past the guard.
fn carries_transient(error: &dyn Any) -> bool {
    carries(error, error::is_transient)
}

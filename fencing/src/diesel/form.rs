//! The forms in which a fence meets a connection of diesel, and the retry of whole transactions.

use ::diesel::result::Error;
use highwater_lock::Fence;

use super::FenceError;
use super::dialect::Dialect;
use super::driver::{Failure, Opened};
use super::fenced::Fenced;
use crate::Resolution;
use crate::offer::Offer;
use crate::options::FenceOptions;
use crate::retry::{Retry, carries};
use crate::sql::{self, Class};

/// Fenced transactions of diesel, as methods of a fence.
///
/// Import it as `use highwater_fencing::diesel::DieselFence as _;`. It is implemented for
/// [`Fence`] and [`Configured`](crate::Configured) and sealed.
///
/// All methods take a connection outside of a transaction: a bare one, or `&mut *pooled` of one from
/// r2d2. `begin_test_transaction` is a transaction.
pub trait DieselFence: Offer {
    /// Runs `body` in a fenced transaction and commits it: the form for nearly everything.
    ///
    /// `body` is a `|conn| { … }`. If it returns an error, everything is rolled back and the error is
    /// returned. If the database reported a serialization failure, a deadlock, or that it is busy,
    /// then the **whole** body is run again in a new transaction with the same fence, as long as the
    /// budget of the [`FenceOptions`] allows; so the body must have no lasting effect besides the
    /// transaction. The thread sleeps in between.
    ///
    /// A lock wait that timed out is not retried, nor is a commit whose outcome is unknown, nor an
    /// error of diesel that is inside an enum of yours, nor one that the body swallowed.
    ///
    /// Where the compiler cannot tell the error type, name it at the end of the body:
    /// `Ok::<_, AppError>(())`. A panic of the body rolls back.
    ///
    /// # Errors
    /// The body's own, and every [`FenceError`], converted into its type.
    fn transaction<C, F, R, E>(&self, connection: &mut C, mut body: F) -> Result<R, E>
    where
        C: Dialect,
        F: FnMut(&mut C) -> Result<R, E>,
        E: From<FenceError> + 'static,
        Self: Sized,
    {
        run(connection, self.offered(), &mut body)
    }

    /// Begins a fenced transaction and gives its guard.
    ///
    /// Collisions while the fence is taken are retried within the budget.
    ///
    /// # Errors
    /// Why the fence was refused, [`FenceError::InSavepoint`] if diesel has a transaction open on the
    /// connection, or [`FenceError::Database`] if the driver failed. A transaction that was opened
    /// with raw SQL is not seen: MySQL and MariaDB commit it, on PostgreSQL it becomes the fenced one,
    /// and SQLite refuses.
    fn begin<'c, C: Dialect>(&self, connection: &'c mut C) -> Result<Fenced<'c, C>, FenceError> {
        match open(connection, self.offered()) {
            Ok(opened) => Ok(Fenced::over(connection, opened)),
            Err(failure) => Err(failure.error),
        }
    }

    /// Finds out what became of a write of this token and step whose commit ended as
    /// [`FenceError::Unknown`].
    ///
    /// It offers the fence again and rolls back. While the old transaction is still open on the
    /// server that waits, up to [`FenceOptions::resolve_for`]. Nothing is changed either way. Use
    /// another connection than the one that failed.
    ///
    /// # Errors
    /// [`FenceError::NoStep`] for a fence without a step, and those of [`begin`](Self::begin) that
    /// say nothing about the write.
    fn resolve<C: Dialect>(&self, connection: &mut C) -> Result<Resolution, FenceError> {
        resolve(connection, self.offered())
    }
}

impl<F: Offer> DieselFence for F {}

fn open<C: Dialect>(
    conn: &mut C,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Opened, Failure> {
    sql::check_range(fence).map_err(Failure::of)?;
    let mut retry = Retry::new(options.budget());
    loop {
        match Fenced::open(conn, fence, options) {
            Err(failure) if failure.class == Class::Transient && retry.again_blocking() => {}
            result => return result,
        }
    }
}

fn resolve<C: Dialect>(
    conn: &mut C,
    (fence, options): (&Fence, &FenceOptions),
) -> Result<Resolution, FenceError> {
    if fence.step().is_none() {
        return Err(FenceError::NoStep);
    }
    let options = options.for_resolving();
    match open(conn, (fence, &options)) {
        Ok(opened) => {
            // Whatever becomes of it: it was admitted, and it is not committed.
            Fenced::over(conn, opened).end().ok();
            Ok(Resolution::NotApplied)
        }
        Err(refusal) => Resolution::of_refusal(refusal.error, |_| refusal.class),
    }
}

fn run<C, R, E>(
    conn: &mut C,
    (fence, options): (&Fence, &FenceOptions),
    body: &mut dyn FnMut(&mut C) -> Result<R, E>,
) -> Result<R, E>
where
    C: Dialect,
    E: From<FenceError> + 'static,
{
    sql::check_range(fence)?;
    let mut retry = Retry::new(options.budget());
    loop {
        let (error, transient) = match attempt(conn, fence, options, body) {
            Ok(value) => return Ok(value),
            Err(failed) => failed,
        };
        if !transient || !retry.again_blocking() {
            return Err(error);
        }
    }
}

/// One attempt; with an error it says whether another one makes sense.
fn attempt<C, R, E>(
    conn: &mut C,
    fence: &Fence,
    options: &FenceOptions,
    body: &mut dyn FnMut(&mut C) -> Result<R, E>,
) -> Result<R, (E, bool)>
where
    C: Dialect,
    E: From<FenceError> + 'static,
{
    let failed = |failure: Failure| {
        let transient = failure.class == Class::Transient;
        (E::from(failure.error), transient)
    };
    let opened = Fenced::open(conn, fence, options).map_err(failed)?;
    let mut tx = Fenced::over(conn, opened);
    match body(tx.connection()) {
        Ok(value) => match tx.finish() {
            Ok(()) => Ok(value),
            Err(failure) => Err(failed(failure)),
        },
        Err(error) => {
            tx.end().ok();
            let transient = carries(&error, is_transient::<C>);
            Err((error, transient))
        }
    }
}

fn is_transient<C: Dialect>(error: &Error) -> bool {
    C::class(error) == Class::Transient
}

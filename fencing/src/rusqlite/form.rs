//! The forms in which a fence meets a transaction of rusqlite, and the retry of whole transactions.

use ::rusqlite::{Connection, Transaction};

use super::FenceError;
use super::fenced::{Fenced, is_collision};
use super::health::{class, is_transient};
use crate::offer::Offer;
use crate::retry::{Retry, carries};
use crate::{Resolution, sql};

/// Fenced transactions of rusqlite, as methods of a fence.
///
/// Import it as `use highwater_fencing::rusqlite::RusqliteFence as _;`. It is implemented for
/// [`Fence`](crate::Fence) and [`Configured`](crate::Configured) and sealed. All methods block the
/// thread; the waits are those for other writers.
pub trait RusqliteFence: Offer {
    /// Runs `body` in a fenced transaction and commits it: the form for nearly everything.
    ///
    /// If `body` returns an error, everything is rolled back and the error is returned. If the
    /// database reports that it is busy, then the **whole** body is run again in a new transaction
    /// with the same fence, as long as the budget of the [`FenceOptions`](crate::FenceOptions)
    /// allows; so the body must have no lasting effect besides the transaction.
    ///
    /// A commit whose outcome is unknown is not retried, nor an error that went past the guard (see
    /// [`Fenced::connection`]) and is inside an enum of yours. A body that panics is rolled back.
    ///
    /// # Errors
    /// The body's own, and every [`FenceError`], converted into its type.
    fn transaction<F, R, E>(&self, conn: &mut Connection, mut body: F) -> Result<R, E>
    where
        F: FnMut(&Fenced<'_>) -> Result<R, E>,
        E: From<FenceError> + 'static,
    {
        let (fence, options) = self.offered();
        sql::check_range(fence)?;
        let mut retry = Retry::new(options.budget());
        loop {
            let begun = Fenced::begin(conn, fence, options).map_err(failed);
            match begun.and_then(|tx| attempt(tx, &mut body)) {
                Ok(value) => return Ok(value),
                Err((_, transient)) if transient && retry.again_blocking() => {}
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Begins a fenced transaction and gives its guard. The connection must be outside of a
    /// transaction.
    ///
    /// Collisions while the fence is taken are retried within the budget, each of them after the
    /// connection's `busy_timeout`.
    ///
    /// # Errors
    /// Why the fence was refused, or [`FenceError::Database`] if the driver failed.
    /// [`FenceError::InSavepoint`] if a transaction is open, by whatever means.
    fn begin<'c>(&self, conn: &'c mut Connection) -> Result<Fenced<'c>, FenceError> {
        let (fence, options) = self.offered();
        sql::check_range(fence)?;
        let mut retry = Retry::new(options.budget());
        loop {
            match Fenced::begin(conn, fence, options) {
                Err(error) if is_collision(&error) && retry.again_blocking() => {}
                result => return result,
            }
        }
    }

    /// Takes the fence in a transaction that the caller has just begun, and gives the guard for it.
    ///
    /// It has to be the first statement of the transaction, outside of any savepoint of raw SQL,
    /// which is not seen: what was read before is not covered by the fence. The transaction is
    /// consumed, so that its commit is the guard's. After an error it was rolled back. Nothing is
    /// retried.
    ///
    /// Begin it with `TransactionBehavior::Immediate`. A deferred one works as long as it can still
    /// become a writer; if it has read, and somebody else has written since, it never can, and the
    /// answer is `SQLITE_BUSY_SNAPSHOT` at once.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin), and [`FenceError::Ended`] if the transaction was ended with
    /// raw SQL.
    fn admit<'c>(&self, tx: Transaction<'c>) -> Result<Fenced<'c>, FenceError> {
        let (fence, options) = self.offered();
        sql::check_range(fence)?;
        Fenced::join(tx, fence, options)
    }

    /// Finds out what became of a write of this token and step whose commit ended as
    /// [`FenceError::Unknown`].
    ///
    /// It offers the fence again and rolls back. While the old transaction is still open that waits
    /// for it, as [`begin`](Self::begin) does. Nothing is changed either way.
    ///
    /// # Errors
    /// [`FenceError::NoStep`] for a fence without a step, and those of [`begin`](Self::begin) that
    /// say nothing about the write.
    fn resolve(&self, conn: &mut Connection) -> Result<Resolution, FenceError> {
        if self.offered().0.step().is_none() {
            return Err(FenceError::NoStep);
        }
        match self.begin(conn) {
            Ok(mut tx) => {
                // Whatever becomes of it: it was admitted, and it is not committed.
                tx.end().ok();
                Ok(Resolution::NotApplied)
            }
            Err(refusal) => Resolution::of_refusal(refusal, class),
        }
    }
}

impl<F: Offer> RusqliteFence for F {}

/// One attempt; with an error it says whether another one makes sense.
fn attempt<F, R, E>(mut tx: Fenced<'_>, body: &mut F) -> Result<R, (E, bool)>
where
    F: FnMut(&Fenced<'_>) -> Result<R, E>,
    E: From<FenceError> + 'static,
{
    match body(&tx) {
        Ok(value) => match tx.finish() {
            Ok(()) => Ok(value),
            // The body swallowed an error: it may have been one of those that deserve a retry.
            Err(error @ FenceError::Poisoned { .. }) => Err((error.into(), tx.is_transient())),
            Err(error) => Err(failed(error)),
        },
        Err(error) => {
            tx.end().ok();
            let transient = tx.is_transient() || carries(&error, is_transient);
            Err((error, transient))
        }
    }
}

fn failed<E: From<FenceError>>(error: FenceError) -> (E, bool) {
    let transient = is_collision(&error);
    (error.into(), transient)
}

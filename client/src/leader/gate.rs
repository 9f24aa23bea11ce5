//! Where the extensions of one lease are, so that its release can end them.
//!
//! Each is polled by whoever waits for it, but lies here. An extension that nobody polls any more
//! holds up neither the release nor another extension: the release takes it away from its owner.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::{BackendError, BoxFuture, Cause, RenewError};

type Outcome = Result<(), RenewError>;

/// The extensions of one lease that are under way; none any more once it is closed.
#[derive(Default)]
pub(super) struct Gate(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    closed: bool,
    next: u64,
    under_way: BTreeMap<u64, BoxFuture<Outcome>>,
}

impl Gate {
    /// One more extension. It begins when it is polled, and is given up when it is dropped.
    pub(super) fn extension(&self) -> Extension<'_> {
        Extension {
            gate: self,
            number: None,
        }
    }

    /// Ends all extensions. When this returns, none of them is being polled, and none will be.
    pub(super) fn close(&self) {
        let under_way = {
            let mut inside = self.inside();
            inside.closed = true;
            std::mem::take(&mut inside.under_way)
        };
        for extension in under_way.into_values() {
            let _ = caught(|| drop(extension));
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // A panic inside leaves at worst an extension that has an owner.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One extension, for as long as somebody waits for it.
pub(super) struct Extension<'a> {
    gate: &'a Gate,
    number: Option<u64>,
}

impl Extension<'_> {
    /// Begins it if it has not begun, and goes on with it. What came of it is told before the gate
    /// can be closed. `None`: it was closed, or there was nothing to begin.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        begin: impl FnOnce() -> Option<BoxFuture<Outcome>>,
        tell: impl FnOnce(&Outcome),
    ) -> Poll<Option<Outcome>> {
        let mut inside = self.gate.inside();
        if inside.closed {
            return Poll::Ready(None);
        }
        let mut extension = match self.number {
            Some(number) => inside.under_way.remove(&number),
            None => match caught(begin) {
                Ok(extension) => extension,
                Err(error) => return Poll::Ready(Some(told(Err(error.into()), tell))),
            },
        };
        let Some(future) = extension.as_mut() else {
            return Poll::Ready(None);
        };
        let outcome = match caught(|| future.as_mut().poll(context)) {
            Ok(Poll::Pending) => {
                let number = *self.number.get_or_insert(inside.next);
                inside.next = inside.next.max(number + 1);
                inside.under_way.extend(extension.map(|it| (number, it)));
                return Poll::Pending;
            }
            Ok(Poll::Ready(outcome)) => outcome,
            Err(error) => Err(error.into()),
        };
        let _ = caught(|| drop(extension));
        Poll::Ready(Some(told(outcome, tell)))
    }
}

impl Drop for Extension<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let extension = self.gate.inside().under_way.remove(&number);
        let _ = caught(|| drop(extension));
    }
}

fn told(outcome: Outcome, tell: impl FnOnce(&Outcome)) -> Outcome {
    tell(&outcome);
    outcome
}

/// Calls into a backend, which is the code of others.
///
/// # Errors
/// It panicked: nobody knows what it did before.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        // What was thrown can panic too when it is dropped. Then it is not.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(another);
        }
        BackendError::Indeterminate(Cause::new("the backend panicked"))
    })
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn nothing_begins_or_goes_on_behind_a_closed_gate() {
        let gate = Gate::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = |extension: &mut Extension<'_>| {
            let begin = || Some(Box::pin(std::future::pending()) as BoxFuture<Outcome>);
            extension.poll(&mut context, begin, |_| {})
        };
        let (mut begun, mut late) = (gate.extension(), gate.extension());
        assert!(poll(&mut begun).is_pending());
        gate.close();
        assert!(matches!(poll(&mut begun), Poll::Ready(None)));
        assert!(matches!(poll(&mut late), Poll::Ready(None)));
    }
}

//! What a blocking action sees of its leadership, and what owns it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Fence, FencingToken, Key};

use super::SLACK;
use crate::blocking::runtime::Runtime;
use crate::leader::run::{Ran, Value};
use crate::leader::term::RELEASE_TIME;
use crate::leader::{
    self, BackendError, Cause, LeaseEnd, LossPolicy, NotLeader, RenewError, TermOutcome, TermReport,
};

/// What an action sees of its leadership; see [`leader::LeaderContext`].
#[derive(Debug)]
pub struct LeaderContext {
    inner: leader::LeaderContext,
    runtime: Arc<Runtime>,
}

impl LeaderContext {
    pub(super) fn new(inner: leader::LeaderContext, runtime: Arc<Runtime>) -> Self {
        Self { inner, runtime }
    }

    /// What is led, with its tenant.
    pub fn name(&self) -> &Key {
        self.inner.name()
    }

    /// See [`leader::LeaderContext::fence`]: `None` only without a lock.
    pub fn fence(&self) -> Option<Fence> {
        self.inner.fence()
    }

    /// The fencing token; `None` only without a lock.
    pub fn token(&self) -> Option<FencingToken> {
        self.inner.token()
    }

    /// See [`leader::LeaderContext::slot`].
    pub fn slot(&self) -> Option<u32> {
        self.inner.slot()
    }

    /// See [`leader::LeaderContext::remaining`].
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// See [`leader::LeaderContext::check`].
    ///
    /// # Errors
    /// Why it is not the leader any more.
    pub fn check(&self) -> Result<(), NotLeader> {
        self.inner.check()
    }

    /// Waits until this is not the leader any more, for so long at most; `None` when it still is.
    pub fn lost(&self, within: Duration) -> Option<NotLeader> {
        self.runtime.call(within, self.inner.lost())
    }

    /// See [`leader::LeaderContext::extend`]. It takes 10 s at most.
    ///
    /// # Errors
    /// See [`RenewError`].
    pub fn extend(&self, lease: Duration) -> Result<(), RenewError> {
        let context = self.inner.clone();
        let extend = async move { context.extend(lease).await };
        let outcome = self.runtime.call(RELEASE_TIME, extend);
        let silent = || BackendError::Indeterminate(Cause::new("no answer to the extension"));
        outcome.unwrap_or_else(|| Err(RenewError::Backend(silent())))
    }
}

/// Leads a name until it is released, dropped or lost; see [`leader::LeaderGuard`].
#[derive(Debug)]
#[must_use = "the leadership ends when the guard is dropped"]
pub struct LeaderGuard {
    // In this order: nobody is at work any more, the release is under way, and the runtime may end.
    context: LeaderContext,
    guard: leader::LeaderGuard,
    runtime: Arc<Runtime>,
}

impl std::ops::Deref for LeaderGuard {
    type Target = LeaderContext;

    fn deref(&self) -> &LeaderContext {
        &self.context
    }
}

impl LeaderGuard {
    pub(super) fn new(guard: leader::LeaderGuard, runtime: Arc<Runtime>) -> Self {
        Self {
            context: LeaderContext::new(guard.context(), Arc::clone(&runtime)),
            guard,
            runtime,
        }
    }

    /// The fencing token.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// See [`leader::LeaderGuard::fence`].
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// See [`leader::LeaderGuard::release`].
    pub fn release(self) -> TermReport {
        self.finish(TermOutcome::Completed).1
    }

    /// Runs the action, which may be told of a loss and is not cut off; but it does not begin when its
    /// lease is over.
    pub(super) fn run<T>(
        self,
        policy: LossPolicy,
        judge: impl FnOnce(&T) -> TermOutcome,
        action: impl FnOnce(&LeaderContext) -> T,
    ) -> Ran<T> {
        if policy == LossPolicy::Cancel && self.guard.check().is_err() {
            let (lost, term) = self.finish(TermOutcome::Lost);
            let value = Value::Cut;
            return Ran { value, lost, term };
        }
        match catch_unwind(AssertUnwindSafe(|| action(&self.context))) {
            Ok(value) => {
                let (lost, term) = self.finish(judge(&value));
                Ran {
                    value: Value::Returned(value),
                    lost,
                    term,
                }
            }
            Err(panic) => {
                self.finish(TermOutcome::Panicked);
                resume_unwind(panic)
            }
        }
    }

    fn finish(self, outcome: TermOutcome) -> (Option<crate::Lost>, TermReport) {
        let Self {
            context,
            guard,
            runtime,
        } = self;
        drop(context);
        let (term, token, slot) = (Arc::clone(guard.term()), guard.token(), guard.slot());
        let report = runtime.call(RELEASE_TIME + SLACK, guard.finish(outcome));
        let report = report.unwrap_or_else(|| TermReport {
            token,
            slot,
            held: Duration::ZERO,
            extensions: 0,
            end: LeaseEnd::Unknown {
                error: Cause::new("the elector's thread did not answer"),
            },
        });
        (term.was_lost(), report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::blocking::LeaderElector;
    use crate::leader::{InProcess, LeaderOptions};

    /// As after a process was stopped between the grant and the action.
    #[test]
    fn an_action_whose_lease_is_over_does_not_even_begin() {
        for (policy, begins) in [(LossPolicy::Cancel, false), (LossPolicy::Notify, true)] {
            let options = LeaderOptions::builder().lease(Duration::from_millis(50));
            let options = options.on_loss(policy).build().unwrap();
            let elector = LeaderElector::new(InProcess::new(), options).unwrap();
            let guard = elector.try_acquire("job").unwrap().unwrap();
            assert!(guard.lost(Duration::from_secs(60)).is_some());
            let mut begun = false;
            let ran = guard.run(policy, |_| TermOutcome::Completed, |_| begun = true);
            assert_eq!(begun, begins);
            assert_eq!(matches!(ran.value, Value::Cut), !begins);
            assert_eq!(ran.lost, Some(crate::Lost::Expired));
            assert_eq!(elector.stats().revoked, 1);
        }
    }
}

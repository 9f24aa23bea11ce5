//! Runs one action in one term: once, and cut off when the lease is lost.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use super::context::LeaderContext;
use super::guard::LeaderGuard;
use super::term::Term;
use super::{LossPolicy, TermOutcome, TermReport};
use crate::Lost;

/// What an action came to, when it was elected.
pub(super) struct Ran<T> {
    pub(super) value: Value<T>,
    /// Whether the lease was lost before the action was over, or the release said so.
    pub(super) lost: Option<Lost>,
    pub(super) term: TermReport,
}

pub(super) enum Value<T> {
    Returned(T),
    /// The action was cut off because the lease was lost.
    Cut,
}

/// A panic of an action, on its way to whoever polls it.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Runs the action under the guard and gives the lease back. Dropping the future drops the action,
/// then the guard.
pub(super) async fn run<T, F, Fut>(
    guard: LeaderGuard,
    policy: LossPolicy,
    judge: impl FnOnce(&T) -> TermOutcome,
    action: F,
) -> Result<Ran<T>, Panic>
where
    F: FnOnce(LeaderContext) -> Fut,
    Fut: Future<Output = T>,
{
    let context = guard.context();
    let value = match perform(guard.term(), policy, context, action).await {
        Ok(value) => value,
        Err(panic) => {
            given_back(guard).await;
            return Err(panic);
        }
    };
    let outcome = match &value {
        Value::Returned(value) => judge(value),
        Value::Cut => TermOutcome::Lost,
    };
    let term = std::sync::Arc::clone(guard.term());
    let report = guard.finish(outcome).await;
    Ok(Ran {
        value,
        lost: term.was_lost(),
        term: report,
    })
}

/// Gives the lease back after a panic.
pub(super) async fn given_back(guard: LeaderGuard) {
    if guard.has_contexts() {
        // Parts of the work are alive: the lease is kept for them.
        guard.abandon(TermOutcome::Panicked);
    } else {
        guard.finish(TermOutcome::Panicked).await;
    }
}

async fn perform<T, F, Fut>(
    term: &Term,
    policy: LossPolicy,
    context: LeaderContext,
    action: F,
) -> Result<Value<T>, Panic>
where
    F: FnOnce(LeaderContext) -> Fut,
    Fut: Future<Output = T>,
{
    if policy == LossPolicy::Cancel && term.check().is_err() {
        // The process was paused between the grant and here: not even the beginning of it runs.
        return Ok(Value::Cut);
    }
    let action = catch_unwind(AssertUnwindSafe(|| action(context)))?;
    let (mut action, mut lost) = (pin!(action), pin!(term.not_leader()));
    poll_fn(|context| {
        if policy == LossPolicy::Cancel {
            // Looks at the clock itself: after a pause the action must not go on for one step.
            let told = lost.as_mut().poll(context).is_ready();
            if told || term.check().is_err() {
                return Poll::Ready(Ok(Value::Cut));
            }
        }
        match catch_unwind(AssertUnwindSafe(|| action.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(Value::Returned(value))),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Goes on with the panic of an action, after its lease was given back.
pub(super) fn or_unwind<T>(outcome: Result<Ran<T>, Panic>) -> Ran<T> {
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::leader::{InProcess, LeaderElector, LeaderOptions};

    /// As after a process was stopped between the grant and the action.
    #[tokio::test(start_paused = true)]
    async fn an_action_whose_lease_is_over_does_not_even_begin() {
        let lease = Duration::from_secs(10);
        let options = LeaderOptions::builder().lease(lease).node("a").build();
        let elector = LeaderElector::new(InProcess::new(), options.unwrap());
        let guard = elector.try_acquire("job").await.unwrap().unwrap();
        sleep(lease * 2).await;
        let judge = |_: &()| TermOutcome::Completed;
        let begun = std::cell::Cell::new(false);
        let action = |_| {
            begun.set(true);
            async {}
        };
        let ran = run(guard, LossPolicy::Cancel, judge, action).await;
        let ran = ran.unwrap_or_else(|_| panic!("nothing that could panic was run"));
        assert!(matches!(ran.value, Value::Cut));
        assert!(ran.lost.is_some() && !begun.get());
    }
}

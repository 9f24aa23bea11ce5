//! What to do when nobody can be elected because the lock service fails.

use highwater_lock::Key;

use super::context::LeaderContext;
use super::elector::{Elector, Kind, judge, result};
use super::run;
use super::{BackendError, LeaderError, LeaderResult};

/// What to do when the lock service cannot be used ([`BackendError::is_outage`]): it was not reached,
/// or gave no answer.
///
/// It has no say in anything else. Contention skips. A queue that is full ([`BackendError::Busy`]), a
/// grant that came too late and a wrong configuration are errors: the service works, and somebody may
/// lead. A lease that is lost while the action runs is [`LeaderResult::LeaseLost`]. In no case does the
/// action run twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Tell the caller, at once.
    #[default]
    Error,
    /// Leave the action out, as if somebody else led. It asks again before, for the rest of the wait.
    Skip,
    /// Run the action without a lock: **others may run it at the same time.** Its context has no
    /// fence. For actions that are harmless twice and must not be left out.
    ///
    /// It asks again before, for the rest of the wait: a connection or a node that is lost while this candidate
    /// stands in the queue is no reason, as long as another one answers in time. If an attempt had no answer, its
    /// lease may be held by nobody, and others that have been refused since prove nothing. Then, and when the last
    /// attempt failed, the action is run, unless those who led before the first attempt without an answer still lead.
    ///
    /// To know that, it asks who leads before its candidacies, for half of the wait and 5 s at most each time, until
    /// it is told or one of them had no answer; and once more after the wait, for 2 s at most. **Without an answer to
    /// either question nobody counts as a leader**, and the action runs. Without a wait nothing is asked.
    FailOpen,
}

/// What came of an action under a [`FailurePolicy`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a lost lease is one of the outcomes"]
#[non_exhaustive]
pub enum PolicyResult<T, E> {
    /// The lock service could be used.
    Held(LeaderResult<T, E>),
    /// The lock service failed, and the policy is to skip. The action did not run.
    SkippedByFailure {
        /// How it failed.
        failure: BackendError,
    },
    /// The lock service failed, and the policy is to fail open: the action ran without a lock.
    Unprotected {
        /// What the action gave.
        outcome: Result<T, E>,
        /// How the lock service failed.
        failure: BackendError,
    },
}

impl<K: Kind> Elector<K> {
    /// Like [`run_if_leader_result`](Elector::run_if_leader_result), with a say in what happens when
    /// the lock service cannot be used. The action runs at most once, whatever happens.
    ///
    /// # Errors
    /// The name is none, the lock service works and does not elect (it is at a limit, too late, or
    /// refuses this for good), or it cannot be used and the policy is [`FailurePolicy::Error`]. The
    /// action did not run. An attempt before that one may have had no answer: under
    /// [`FailurePolicy::Skip`] and [`FailurePolicy::FailOpen`] the lease of that may be held by nobody until it ends,
    /// whatever the error says.
    pub async fn run_with_policy<T, E, F, Fut>(
        &self,
        name: impl AsRef<str>,
        policy: FailurePolicy,
        action: F,
    ) -> Result<PolicyResult<T, E>, LeaderError>
    where
        F: FnOnce(LeaderContext) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let (key, core) = (self.key(name)?, self.core());
        match core.acquire_under(&key, policy).await {
            Ok(Some(guard)) => {
                let ran = run::run(guard, core.options.on_loss, judge, action).await;
                Ok(PolicyResult::Held(result(run::or_unwind(ran))))
            }
            Ok(None) => Ok(PolicyResult::Held(LeaderResult::Skipped)),
            Err(error) => match self.without_a_lock(key, policy, error)? {
                Instead::Nothing { failure } => Ok(PolicyResult::SkippedByFailure { failure }),
                Instead::Open { context, failure } => {
                    let outcome = action(context).await;
                    Ok(PolicyResult::Unprotected { outcome, failure })
                }
            },
        }
    }

    /// What the policy makes of an election that failed.
    pub(super) fn without_a_lock(
        &self,
        key: Key,
        policy: FailurePolicy,
        error: LeaderError,
    ) -> Result<Instead, LeaderError> {
        let failure = match error {
            LeaderError::Backend(failure) if failure.is_outage() => failure,
            error => return Err(error),
        };
        match policy {
            FailurePolicy::Error => Err(LeaderError::Backend(failure)),
            FailurePolicy::Skip => Ok(Instead::Nothing { failure }),
            FailurePolicy::FailOpen => {
                let core = self.core();
                core.hub.unprotected(&key, &core.node);
                let context = LeaderContext::unprotected(key, core.node.clone());
                Ok(Instead::Open { context, failure })
            }
        }
    }
}

/// What is done in place of a run under a lock.
pub(super) enum Instead {
    Nothing {
        failure: BackendError,
    },
    Open {
        context: LeaderContext,
        failure: BackendError,
    },
}

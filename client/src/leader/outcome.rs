//! What can come of an election and of a term: honest outcomes, one small type each.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{FencingToken, KeyError};

use super::{BackendError, OptionsError};
use crate::Lost;

/// Why the leader election itself failed. Contention is not among them: that is
/// [`LeaderResult::Skipped`], or `None`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// The name breaks the rule for keys. Correct it; the action did not run.
    #[error("the name cannot be that of a lock")]
    Name(#[source] KeyError),
    /// The options do not allow this call. Correct them; the action did not run.
    #[error("the options do not allow this")]
    Options(#[source] OptionsError),
    /// The lock service failed. The action did not run.
    #[error("the lock service failed")]
    Backend(#[source] BackendError),
    /// The action began, and the lease was lost before it was over. What it has written may
    /// overlap with a successor, except where a fence was checked.
    /// [`run_if_leader_result`](super::Elector::run_if_leader_result) tells more.
    #[error("the leadership was lost while the action ran: {reason}")]
    LeaseLost {
        /// Why.
        reason: Lost,
        /// The term that was lost.
        term: TermReport,
    },
}

impl LeaderError {
    /// Whether the lock service, and not the program, is at fault: the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Backend(error) if error.is_transient())
    }
}

/// What came of an action whose result is a [`Result`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a lost lease is one of the outcomes"]
#[non_exhaustive]
pub enum LeaderResult<T, E> {
    /// Elected, and the action succeeded under a lease that was good until its end.
    Elected {
        /// What the action gave. `None` and `()` are values like any other.
        value: T,
        /// The term, with what came of the release.
        term: TermReport,
    },
    /// Somebody else led for the whole wait. The action did not run.
    Skipped,
    /// Elected, and the action failed, under a lease that was good until its end.
    ActionFailed {
        /// What the action gave.
        cause: E,
        /// The term, with what came of the release.
        term: TermReport,
    },
    /// Elected, and the lease was lost before the action was over.
    LeaseLost {
        /// Why.
        reason: Lost,
        /// What the action gave, if it was not cut off: it may overlap with a successor.
        outcome: Option<Result<T, E>>,
        /// The term that was lost.
        term: TermReport,
    },
}

impl<T, E> LeaderResult<T, E> {
    /// The value of an action that succeeded under a good lease.
    pub fn elected(self) -> Option<T> {
        match self {
            Self::Elected { value, .. } => Some(value),
            _ => None,
        }
    }

    /// Whether the action did not run because somebody else led.
    pub fn is_skipped(&self) -> bool {
        matches!(self, Self::Skipped)
    }

    /// The term, if there was one.
    pub fn term(&self) -> Option<&TermReport> {
        match self {
            Self::Elected { term, .. }
            | Self::ActionFailed { term, .. }
            | Self::LeaseLost { term, .. } => Some(term),
            Self::Skipped => None,
        }
    }
}

/// One time of leadership, from the election to the release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermReport {
    /// Its fencing token.
    pub token: FencingToken,
    /// Which slot, for a group.
    pub slot: Option<u32>,
    /// How long it lasted here.
    pub held: Duration,
    /// How often its lease was extended.
    pub extensions: u64,
    /// What came of the release.
    pub end: LeaseEnd,
}

/// What came of the release of a lease. In each case the leadership is over here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// Others can be elected from now on.
    Released,
    /// Nobody can be elected until the rest of the minimum lease has passed.
    Retained {
        /// That is at most so long from the release on.
        at_most: Duration,
    },
    /// The lease was not ours any more.
    NotHeld,
    /// Nobody knows; others can be elected when the lease ends, at the latest.
    Unknown {
        /// Why.
        error: Cause,
    },
}

/// Something that went wrong elsewhere, as a value that can be kept and sent around.
///
/// Two of them are equal if they read the same.
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Keeps an error, or a text.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

/// Why a context is not that of a leader (any more). It stays so: a new election is a new context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NotLeader {
    /// The lease was lost. Stop; a successor may be at work.
    #[error("the leadership was lost: {0}")]
    Lost(Lost),
    /// The action was dropped. Stop; the lease is kept while contexts of it are alive, for one
    /// lease time at most.
    #[error("the action was cancelled")]
    Cancelled,
    /// The action is over and the lease is given back.
    #[error("the leadership is over")]
    Ended,
}

/// Why a lease was not extended by hand.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// It is not ours any more. Stop.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The lock service failed; what was valid before still is. Try again.
    #[error("the lease was not extended")]
    Backend(#[from] BackendError),
    /// There is no lease: the action runs without a lock
    /// ([`FailurePolicy::FailOpen`](super::FailurePolicy::FailOpen)).
    #[error("the action runs without a lock")]
    Unprotected,
}

/// How an action ended, for events and the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TermOutcome {
    /// It gave a value; or a guard was released.
    Completed,
    /// It gave an error.
    Failed,
    /// It panicked.
    Panicked,
    /// Its future, or its guard, was dropped.
    Cancelled,
    /// It was cut off, or ended later, because the lease was lost.
    Lost,
}

//! The answer to "is that write in?", after a commit whose outcome nobody heard.

use highwater_lock::FencingToken;

#[cfg(feature = "__adapter")]
use crate::{FenceError, sql::Class};

/// What became of a fenced write whose commit ended as
/// [`FenceError::Unknown`](crate::FenceError::Unknown).
///
/// Given by `resolve`, which every adapter has. It offers the same token and step again: a plain
/// look at the mark would not do, because the old transaction may still be open on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// It was committed, and everything it wrote is there.
    Applied,
    /// It was rolled back, and nothing of it is there. It can be done again with the same step.
    ///
    /// A form that both begins and commits in one message has nothing open on the server until that
    /// message arrives: `pipeline` of tokio-postgres, and the write of one row with sqlx. As long as
    /// it may be on its way (the connection broke down, or the future was dropped, but the message
    /// was handed over) this means *not yet*. Doing it again with the same step makes it final:
    /// whichever of the two comes second is refused.
    NotApplied,
    /// A newer holder, or a later step of the same one, was admitted since, and the mark no longer
    /// tells. Look for traces of the write itself, such as its own row.
    Superseded {
        /// The mark in the database.
        highest: FencingToken,
    },
    /// The old transaction still holds the mark, and the wait for it was given up. Ask again: the
    /// server ends it when it notices that its client is gone.
    StillUnknown,
}

#[cfg(feature = "__adapter")]
impl Resolution {
    /// Reads the refusal of the same token and step. That it was admitted means
    /// [`NotApplied`](Self::NotApplied).
    pub(crate) fn of_refusal<D>(
        refusal: FenceError<D>,
        class: impl FnOnce(&D) -> Class,
    ) -> Result<Self, FenceError<D>> {
        match refusal {
            FenceError::AlreadyApplied { step, latest, .. } if step == latest => Ok(Self::Applied),
            FenceError::AlreadyApplied { token, .. } => Ok(Self::Superseded { highest: token }),
            FenceError::Stale { highest, .. } => Ok(Self::Superseded { highest }),
            FenceError::Database(error) => match class(&error) {
                Class::LockTimeout | Class::Transient => Ok(Self::StillUnknown),
                _ => Err(FenceError::Database(error)),
            },
            other => Err(other),
        }
    }
}

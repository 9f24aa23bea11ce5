//! Whether a server is of use to a client now.

use std::fmt;
use std::time::Duration;

/// Whether a server grants locks now, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// It grants locks.
    Ready,
    /// It grants when leases that were given out before its start are over; see
    /// [`AfterRestart`](crate::AfterRestart).
    OldLeases {
        /// How long that takes at most.
        remaining: Duration,
    },
    /// It could not store its state: it serves releases and grants nothing any more. Restart it
    /// when the disk is well again.
    StorageFailed,
    /// A node of a cluster that knows of no leader: an election is under way, or there is no
    /// majority.
    NoLeader,
    /// It is about to end: it serves releases and grants nothing any more.
    Draining,
    /// It has found one of its own invariants broken, and ends. See its log.
    Failed,
}

impl Readiness {
    /// Whether it grants locks.
    pub fn is_ready(self) -> bool {
        self == Self::Ready
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::OldLeases { .. } => "waiting for old leases",
            Self::StorageFailed => "storage failed",
            Self::NoLeader => "no leader",
            Self::Draining => "draining",
            Self::Failed => "failed",
        })
    }
}

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
    /// A node of a volatile cluster of which a majority of the nodes has lost its memory: nothing is
    /// granted any more. Make a new cluster, with a new identity.
    MajorityLost,
    /// Another process has taken the slot of this node over: it ends. Leave the other one in its place.
    Displaced,
    /// An operator has removed this node from its cluster: it ends. A durable one does not start again with this
    /// data directory; a volatile one may, and then waits until its slot is part of the cluster again.
    Removed,
    /// A node of a cluster that leads, and whose clock cannot be relied on: it serves releases and grants
    /// nothing until another node leads or the clock is right again.
    Clock,
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
            Self::MajorityLost => "majority lost",
            Self::Displaced => "displaced",
            Self::Removed => "removed",
            Self::Clock => "clock",
            Self::Draining => "draining",
            Self::Failed => "failed",
        })
    }
}

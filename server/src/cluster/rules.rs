//! What all nodes of a cluster have to have in common, in one place.
//!
//! The limits decide what a command does, so they are part of what the log means: they are the
//! same on every node and for the whole life of a cluster, and no option changes them.

use std::num::NonZeroU8;
use std::time::Duration;

use highwater_lock::Limits;

/// The limits of every machine. Changing one changes what old logs mean: that needs a new version
/// of the batch format, by which nodes can tell under which limits a command was proposed.
pub(super) fn limits() -> Limits {
    Limits {
        keys: 4_000_000,
        waiters: 100_000,
        waiters_per_key: 10_000,
        waiters_per_connection: 10_000,
        slots: 1_024,
        lease: Duration::from_secs(3_600),
        wait: Duration::from_secs(3_600),
        minimum_hold: Duration::from_secs(3_600),
        expiries_per_apply: 256,
    }
}

/// The number of these rules; nodes with other ones refuse each other.
pub(super) const RULES: u32 = 1;

/// How long the nodes of a cluster wait for each other: as many times longer than usual as this says, which is
/// one outside of tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(NonZeroU8);

impl Pace {
    pub(crate) const USUAL: Self = Self(NonZeroU8::MIN);

    pub(crate) fn slower(times: NonZeroU8) -> Self {
        Self(times)
    }

    fn stretch(self, usual: Duration) -> Duration {
        usual * self.0.get().into()
    }

    /// How often a leader is heard from.
    pub(super) fn heartbeat(self) -> Duration {
        self.stretch(HEARTBEAT)
    }

    /// How long a follower waits for a leader before it asks for votes: at least and at most. The
    /// engine keeps the old leader's lease for the longer one first.
    pub(super) fn election(self) -> (Duration, Duration) {
        (self.stretch(ELECTION.0), self.stretch(ELECTION.1))
    }

    /// How long a leader goes on without an answer from a majority, and a node counts as there that was heard from.
    pub(super) fn lease(self) -> Duration {
        self.election().1
    }

    /// How long a follower that has heard nothing still names its leader to clients.
    pub(super) fn in_touch(self) -> Duration {
        self.stretch(IN_TOUCH)
    }
}

const HEARTBEAT: Duration = Duration::from_millis(60);
const ELECTION: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(400));
const IN_TOUCH: Duration = Duration::from_millis(600);
/// How many batches may be under way through the log at once. A second one is proposed only if it is full, or if there
/// are so few commands that it costs nobody anything: every batch costs each node a sync and a message, so what comes
/// meanwhile becomes one.
pub(super) const IN_FLIGHT: usize = 4;
/// After how many entries a snapshot is taken.
pub(crate) const SNAPSHOT_EVERY: u32 = 10_000;
/// The part of them that a snapshot leaves in the log, for nodes that are a little behind.
pub(super) const KEPT_PART: u64 = 5;
/// How many times as many a leader leaves there at most, for nodes that are far behind.
pub(super) const KEPT_TIMES: u64 = 3;

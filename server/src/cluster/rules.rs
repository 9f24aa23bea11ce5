//! What all nodes of a cluster have to have in common, in one place.
//!
//! The limits decide what a command does, so they are part of what the log means: they are the
//! same on every node and for the whole life of a cluster, and no option changes them.

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

/// How often a leader is heard from.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(60);
/// How long a follower waits for a leader before it asks for votes: at least and at most. The
/// engine keeps the old leader's lease for the longer one first.
pub(super) const ELECTION: (Duration, Duration) =
    (Duration::from_millis(250), Duration::from_millis(400));
/// How long a follower that has heard nothing still names its leader to clients.
pub(super) const IN_TOUCH: Duration = Duration::from_millis(600);
/// How many batches may be on their way through the log at once.
pub(super) const IN_FLIGHT: usize = 4;
/// After how many entries a snapshot is taken.
pub(crate) const SNAPSHOT_EVERY: u32 = 10_000;
/// The part of them that a snapshot leaves in the log, for nodes that are a little behind.
pub(super) const KEPT_PART: u64 = 5;
/// How many times as many a leader leaves there at most, for nodes that are far behind.
pub(super) const KEPT_TIMES: u64 = 10;

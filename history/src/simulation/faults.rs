//! Everything that can go wrong, as ratios.

use super::random::Random;

/// How often each fault happens: in so many of a thousand cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A frame between nodes is lost.
    pub lost_frames: u32,
    /// A frame between nodes arrives twice.
    pub doubled_frames: u32,
    /// A frame between nodes takes up to a second.
    pub slow_frames: u32,
    /// A node dies, in each quarter of a second. It starts again within two seconds.
    pub crashes: u32,
    /// Of three nodes one falls behind, another that has everything dies, and when it is back the
    /// leader is cut off: nobody may be elected then. In each quarter of a second.
    pub worst_moments: u32,
    /// A node stops for up to three seconds and goes on as if nothing had been.
    pub pauses: u32,
    /// A node is cut off from the others, for up to two seconds.
    pub partitions: u32,
    /// One direction between two nodes is cut, for up to two seconds.
    pub one_way_cuts: u32,
    /// The clock of a node jumps ahead or back, by up to five seconds.
    pub clock_jumps: u32,
    /// How far clocks differ in speed at most, in millionths.
    pub clock_skew_ppm: u64,
    /// A client loses its connection, in each quarter of a second.
    pub lost_connections: u32,
    /// A deposed leader passes what it had proposed on to its successor, with its old epoch.
    pub late_proposals: u32,
    /// A node writes a snapshot and forgets its log, after each applied entry.
    pub snapshots: u32,
    /// The database answers nothing to a commit.
    pub lost_commits: u32,
    /// A holder stops until its lease is over, and then writes.
    pub sleepers: u32,
    /// An operator orders a force-release, after each grant.
    pub force_releases: u32,
}

impl Faults {
    /// Some of the faults, some of them often: each seed has its own weather.
    pub(crate) fn drawn(random: &mut Random) -> Self {
        let mut ratio = |most: u64| {
            if random.happens(400) {
                0
            } else {
                u32::try_from(random.between(1, most)).unwrap_or(0)
            }
        };
        Self {
            lost_frames: ratio(150),
            doubled_frames: ratio(100),
            slow_frames: ratio(60),
            crashes: ratio(60),
            worst_moments: ratio(40),
            pauses: ratio(60),
            partitions: ratio(80),
            one_way_cuts: ratio(80),
            clock_jumps: ratio(20),
            clock_skew_ppm: u64::from(ratio(20_000)),
            lost_connections: ratio(100),
            late_proposals: ratio(400),
            snapshots: ratio(100),
            lost_commits: ratio(200),
            sleepers: ratio(150),
            force_releases: ratio(40),
        }
    }

    /// No more faults between nodes and none of clocks; the clocks go on at their own speed.
    pub(crate) fn healed(&self) -> Self {
        Self {
            clock_skew_ppm: self.clock_skew_ppm,
            snapshots: self.snapshots,
            ..Self::default()
        }
    }
}

//! The clocks of a cluster node, which a test can make run wrong.

use std::sync::{Arc, Mutex, PoisonError};

use highwater_lock::Timestamp;
use tokio::time::Instant;

use super::{Clock, now, unix_micros};

/// The clocks of a cluster node. A test can make them run wrong.
#[derive(Clone, Debug)]
pub(crate) struct NodeClock {
    clock: Clock,
    /// What is wrong with it, and what it showed when the node started.
    skew: Option<(ClockSkew, u64)>,
}

impl NodeClock {
    /// Clocks of which the monotonic one starts now.
    pub(crate) fn start(skew: Option<ClockSkew>) -> Self {
        let skew = skew.map(|skew| {
            let shown = skew.elapsed_micros();
            (skew, shown)
        });
        let clock = Clock::start();
        Self { clock, skew }
    }

    /// The monotonic clock: zero when the node started.
    pub(crate) fn timestamp(&self) -> Timestamp {
        match &self.skew {
            None => self.clock.timestamp(),
            Some((skew, start)) => {
                Timestamp::from_micros(skew.elapsed_micros().saturating_sub(*start))
            }
        }
    }

    /// The wall clock, in microseconds since the Unix epoch; zero if it stands before that.
    pub(crate) fn wall_micros(&self) -> u64 {
        let skew = self.skew.as_ref();
        let ahead = skew.map_or(0, |(skew, _)| skew.wall_ahead_micros());
        unix_micros().unwrap_or(0).saturating_add_signed(ahead)
    }
}

/// Makes the clocks of a cluster node run wrong, for tests of what is done about that: the monotonic one
/// too fast or too slow, the wall clock ahead or behind. Clones are the same.
///
/// It is no part of the promises of this crate.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ClockSkew(Arc<Mutex<Skew>>);

#[derive(Debug)]
struct Skew {
    /// When it began to be as it is now, and what the clock showed then, in microseconds.
    since: (Instant, u64),
    parts_per_million: i32,
    wall_ahead_micros: i64,
}

impl ClockSkew {
    /// Clocks that run right, until something else is said.
    pub fn none() -> Self {
        Self(Arc::new(Mutex::new(Skew {
            since: (now(), 0),
            parts_per_million: 0,
            wall_ahead_micros: 0,
        })))
    }

    /// From now on the monotonic clock is faster by so many parts in a million, or slower; it never
    /// runs backwards. The wall clock is ahead by so much, or behind.
    pub fn set(&self, parts_per_million: i32, wall_ahead_micros: i64) {
        let mut skew = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *skew = Skew {
            since: (now(), skew.elapsed_micros()),
            parts_per_million: parts_per_million.max(-1_000_000),
            wall_ahead_micros,
        };
    }

    fn elapsed_micros(&self) -> u64 {
        let skew = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        skew.elapsed_micros()
    }

    fn wall_ahead_micros(&self) -> i64 {
        let skew = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        skew.wall_ahead_micros
    }
}

impl Skew {
    fn elapsed_micros(&self) -> u64 {
        let (since, shown) = self.since;
        let true_micros = now().saturating_duration_since(since).as_micros();
        let speed = u128::from(1_000_000_u32.saturating_add_signed(self.parts_per_million));
        let micros = true_micros.saturating_mul(speed) / 1_000_000;
        shown.saturating_add(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

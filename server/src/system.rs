//! The only place in this crate that reads a clock or the randomness of the operating system.
//!
//! Everything else gets time and random bytes from here, so what can differ between two runs is
//! in one short file. Sleeping until a moment is not reading a clock and is done where needed.

#[cfg(feature = "cluster")]
mod skew;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use highwater_lock::{Domain, HashSeed, Timestamp};
use tokio::time::Instant;

#[cfg(feature = "cluster")]
pub use self::skew::ClockSkew;
#[cfg(feature = "cluster")]
pub(crate) use self::skew::NodeClock;

/// The monotonic clock that lease time is stamped with: zero when the server starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { origin: now() }
    }

    /// Lease time now.
    pub(crate) fn timestamp(self) -> Timestamp {
        let elapsed = now().saturating_duration_since(self.origin);
        Timestamp::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
    }

    /// The moment at which [`Clock::timestamp`] has reached `timestamp`.
    pub(crate) fn instant(self, timestamp: Timestamp) -> Instant {
        self.origin + Duration::from_micros(timestamp.as_micros())
    }
}

/// The monotonic time, for limits that have nothing to do with leases.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Microseconds since the Unix epoch, or `None` if the system clock stands before it.
pub(crate) fn unix_micros() -> Option<u64> {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(elapsed.as_micros()).ok()
}

/// A new domain, which no other start of any server has.
pub(crate) fn new_domain() -> Result<Domain, getrandom::Error> {
    Ok(Domain::from_bytes(random()?))
}

/// A seed that nobody can know, for tables whose keys clients choose.
pub(crate) fn hash_seed() -> Result<HashSeed, getrandom::Error> {
    Ok(HashSeed::from_bytes(random()?))
}

/// Bytes that nobody can predict.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

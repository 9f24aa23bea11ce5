//! The only place in this crate that reads a clock or the randomness of the operating system.
//!
//! Everything else gets time and chance from here. Sleeping until a moment is not reading a
//! clock and is done where needed.

use std::time::Duration;

use tokio::time::Instant;

/// The monotonic time.
///
/// It may stand still while the machine is suspended, so a lease can end earlier than a ticket
/// thinks; what the database compares does not depend on it.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// So much later than now, or about a century later if that is beyond what the clock can tell.
pub(crate) fn after(span: Duration) -> Instant {
    let now = now();
    now.checked_add(span).unwrap_or(now + CENTURY)
}

/// A random time between half of `full` and all of it, so that clients which lost their server
/// together do not come back together.
pub(crate) fn jittered(full: Duration) -> Duration {
    // Without randomness the spread is lost, nothing else.
    let chance = getrandom::u32().unwrap_or(u32::MAX);
    let half = full / 2;
    half + half.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

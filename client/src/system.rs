//! The only place in this crate that reads a clock or the randomness of the operating system.
//!
//! Everything else gets time and chance from here. Sleeping until a moment is not reading a
//! clock and is done where needed.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::leader::{BoxFuture, Clock};

/// The monotonic time, for waits and patience. It may stand still while the machine is suspended.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// So much later than now, or about a century later if that is beyond what the clock can tell.
pub(crate) fn after(span: Duration) -> Instant {
    let now = now();
    now.checked_add(span).unwrap_or(now + CENTURY)
}

/// A moment on the clock that leases are counted with. It runs on while the machine is suspended,
/// where the system has such a clock (Linux and Android); elsewhere it is the monotonic clock, and
/// a suspend may go unnoticed.
///
/// Kept as the monotonic time plus all the time that the machine has spent suspended, each rounded
/// to the safe side: a moment is never later than it was, and what is left never more than it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Instant);

impl Moment {
    /// A moment that has come by now; for what is counted from before a request is sent.
    pub(crate) fn now() -> Self {
        let now = now();
        Self(now + suspended().least)
    }

    /// So much later; about a century later if that is beyond what the clock can tell.
    pub(crate) fn plus(self, span: Duration) -> Self {
        let sum = self.0.checked_add(span);
        Self(sum.unwrap_or_else(|| self.0 + CENTURY))
    }

    /// So much earlier.
    pub(crate) fn minus(self, span: Duration) -> Self {
        Self(self.0.checked_sub(span).unwrap_or(self.0))
    }

    /// What is certainly left until then.
    pub(crate) fn remaining(self) -> Duration {
        self.clock().saturating_duration_since(now())
    }

    pub(crate) fn is_over(self) -> bool {
        self.remaining().is_zero()
    }

    /// The same on the monotonic clock, if the machine is not suspended any more until then.
    pub(crate) fn clock(self) -> Instant {
        let most = suspended().most;
        self.0.checked_sub(most).unwrap_or(self.0)
    }

    /// Waits for it. Timers stand still in a suspend, so it is looked up again now and then: after
    /// one it may come so much late.
    pub(crate) async fn reached(self) {
        loop {
            let left = self.remaining();
            if left.is_zero() {
                return;
            }
            sleep(left.min(SUSPEND_CHECK)).await;
        }
    }
}

/// How often those who wait for a moment look whether a suspend has brought it nearer.
pub(crate) const SUSPEND_CHECK: Duration = Duration::from_secs(1);

/// The time that the machine has spent suspended, between two bounds.
#[derive(Clone, Copy, Debug)]
struct Suspended {
    least: Duration,
    most: Duration,
}

#[cfg(not(test))]
fn suspended() -> Suspended {
    clocks::suspended()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod clocks {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::Suspended;

    /// The two clocks cannot be read at once, so one is read on either side of the other; again if
    /// this thread was interrupted between.
    pub(super) fn suspended() -> Suspended {
        let mut tightest = once();
        for _ in 0..RETRIES {
            if tightest.most - tightest.least <= CLOSE {
                break;
            }
            let again = once();
            if again.most - again.least < tightest.most - tightest.least {
                tightest = again;
            }
        }
        tightest
    }

    fn once() -> Suspended {
        let before = read(ClockId::Monotonic);
        let with_suspends = read(ClockId::Boottime);
        let after = read(ClockId::Monotonic);
        Suspended {
            least: with_suspends.saturating_sub(after),
            most: with_suspends.saturating_sub(before),
        }
    }

    const CLOSE: Duration = Duration::from_micros(50);
    const RETRIES: u32 = 10;

    fn read(clock: ClockId) -> Duration {
        // Neither clock is ever negative.
        clock_gettime(clock).try_into().unwrap_or_default()
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod clocks {
    use std::time::Duration;

    use super::Suspended;

    pub(super) fn suspended() -> Suspended {
        Suspended {
            least: Duration::ZERO,
            most: Duration::ZERO,
        }
    }
}

/// A random time between half of `full` and all of it, so that clients which lost their server
/// together do not come back together.
pub(crate) fn jittered(full: Duration) -> Duration {
    // Without randomness the spread is lost, nothing else.
    let chance = getrandom::u32().unwrap_or(u32::MAX);
    let half = full / 2;
    half + half.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// Bytes that nobody can guess.
///
/// # Panics
/// The system has no randomness.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// The monotonic clock of the Tokio runtime: virtual where the runtime's time is paused.
#[derive(Clone, Debug)]
pub struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    /// A clock whose origin is now.
    pub fn new() -> Self {
        Self { origin: now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.origin)
    }

    fn sleep(&self, span: Duration) -> BoxFuture<()> {
        Box::pin(sleep(span))
    }
}

const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

// Unit tests decide how long the machine was suspended.
#[cfg(test)]
thread_local! {
    static PRETENDED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
}

#[cfg(test)]
fn suspended() -> Suspended {
    let time = PRETENDED.get();
    Suspended {
        least: time,
        most: time,
    }
}

/// Pretends that the machine is suspended for so long, in this thread.
#[cfg(test)]
pub(crate) fn suspend(span: Duration) {
    PRETENDED.set(PRETENDED.get() + span);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_the_suspended_time_are_in_order_and_close() {
        let first = clocks::suspended();
        let second = clocks::suspended();
        assert!(first.least <= first.most);
        assert!(first.most - first.least < Duration::from_millis(20));
        // It can grow between the two, and not shrink.
        assert!(first.least <= second.most);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_counts_although_the_monotonic_clock_stood_still() {
        let end = Moment::now().plus(Duration::from_secs(30));
        assert_eq!(end.remaining(), Duration::from_secs(30));
        suspend(Duration::from_secs(20));
        assert_eq!(end.remaining(), Duration::from_secs(10));
        assert_eq!(end.clock(), now() + Duration::from_secs(10));
        assert!(!end.is_over());
        suspend(Duration::from_secs(10));
        assert!(end.is_over());
        // What came before does not count.
        let end = Moment::now().plus(Duration::from_secs(30));
        assert_eq!(end.remaining(), Duration::from_secs(30));
        assert_eq!(end.clock(), now() + Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_learns_of_a_suspend_within_a_second() {
        let started = now();
        let end = Moment::now().plus(Duration::from_secs(30));
        let waiting = tokio::spawn(end.reached());
        sleep(Duration::from_millis(5_500)).await;
        suspend(Duration::from_secs(60));
        waiting.await.unwrap();
        assert_eq!(started.elapsed(), Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_suspend_the_moment_is_exact() {
        let started = now();
        Moment::now()
            .plus(Duration::from_millis(2_300))
            .reached()
            .await;
        assert_eq!(started.elapsed(), Duration::from_millis(2_300));
    }

    #[test]
    fn a_moment_has_no_end_to_run_into() {
        let far = Moment::now().plus(Duration::MAX);
        assert!(far.remaining() > CENTURY / 2);
        assert!(far.minus(Duration::MAX) >= Moment::now());
    }
}

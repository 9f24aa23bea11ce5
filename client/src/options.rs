//! How long to wait for a lock, and how long to hold it.

use std::time::Duration;

use highwater_protocol::{Extensions, LeaseMillis, LeaseSeconds, SpanMillis};

use crate::AcquireError;
use crate::limits::SHORTEST_KEPT_LEASE;

/// How long to wait for a lock, and how long to hold it at most.
///
/// ```
/// use std::time::Duration;
/// use highwater_client::AcquireOptions;
///
/// let options = AcquireOptions::new()
///     .wait(Duration::from_secs(5))
///     .lease(Duration::from_secs(30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct AcquireOptions {
    wait: Duration,
    lease: Duration,
    min_work: Duration,
    keep: Option<Duration>,
    min_hold: Duration,
}

impl AcquireOptions {
    /// A wait of 10 s and a lease of 30 s, which is not extended by itself.
    pub const fn new() -> Self {
        Self {
            wait: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            min_work: Duration::ZERO,
            keep: None,
            min_hold: Duration::ZERO,
        }
    }

    /// How long to stand in the queue: 0 to 1 h.
    ///
    /// Zero is one try that never queues, not even behind somebody who only queues; the answer
    /// then has 5 s. A server of the base protocol counts in whole seconds, so that such a wait may
    /// last up to one second longer, and only to 255 s ([`AcquireError::Unsupported`]).
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long to hold the lock if it is not released: above 0, at most 1 h.
    ///
    /// The server holds it for whole milliseconds, rounded up, or whole seconds and at most 250 s
    /// on the base protocol; the ticket counts exactly this. Servers may allow less
    /// ([`AcquireError::Rejected`]).
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How much of the lease must be left when the ticket is given out, up to the lease itself.
    /// The default is 0: any ticket that is still valid.
    ///
    /// A grant that took too long to arrive is extended if the server offers that, and otherwise
    /// released; the outcome is then [`AcquireError::TooShort`].
    pub const fn min_work(mut self, min_work: Duration) -> Self {
        self.min_work = min_work;
        self
    }

    /// Extends the lease by itself, each time a third of it has passed, for as long as the ticket
    /// lives, and at most for `max_hold` from the acquire on.
    ///
    /// The limit is there for work that hangs: without one it would keep the lock for ever.
    /// [`Duration::MAX`] is none. When it is reached, when the ticket is dropped or released, or
    /// when the client is closed, no extension is asked for any more. Failed attempts are repeated
    /// until the lease ends; then, or at once if the server does not know the token any more,
    /// [`Ticket::lost`](crate::Ticket::lost) completes. Needs a lease of at least 300 ms and a
    /// server with extensions ([`AcquireError::Unsupported`]).
    ///
    /// Extending is done in the Tokio runtime that the client was made in. A runtime whose threads
    /// are all kept busy by code that does not await cannot extend anything.
    pub const fn auto_extend(mut self, max_hold: Duration) -> Self {
        self.keep = Some(max_hold);
        self
    }

    /// Keeps the lock from everybody until so long after the grant, also when it is given back
    /// before; at most for the lease. The default is 0.
    ///
    /// The server counts it, also when the ticket is only dropped, so work that is over too soon
    /// is not begun again elsewhere at once. Needs a server with extensions
    /// ([`AcquireError::Unsupported`]).
    pub const fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = min_hold;
        self
    }

    pub(crate) fn check(&self) -> Result<Terms, AcquireError> {
        if self.wait > MAX_WAIT {
            return Err(AcquireError::InvalidWait { wait: self.wait });
        }
        let lease = u32::try_from(whole_millis(self.lease)).ok();
        let lease_millis = lease
            .and_then(LeaseMillis::new)
            .ok_or(AcquireError::InvalidLease { lease: self.lease })?;
        let lease_seconds = u8::try_from(whole_seconds(self.lease))
            .ok()
            .and_then(LeaseSeconds::new);
        let min_hold = u32::try_from(whole_millis(self.min_hold)).ok();
        let min_hold = min_hold
            .filter(|_| self.min_hold <= self.lease)
            .and_then(SpanMillis::new)
            .ok_or(AcquireError::InvalidMinHold {
                min_hold: self.min_hold,
            })?;
        if self.min_work > self.lease {
            return Err(AcquireError::InvalidMinWork {
                min_work: self.min_work,
            });
        }
        if self.keep.is_some() && self.lease < SHORTEST_KEPT_LEASE {
            return Err(AcquireError::LeaseTooShortToExtend { lease: self.lease });
        }
        Ok(Terms {
            wait: self.wait,
            lease: self.lease,
            lease_millis,
            lease_seconds,
            min_work: self.min_work,
            keep: self.keep,
            min_hold,
        })
    }
}

impl Default for AcquireOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Options that were found legal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    pub(crate) lease_millis: LeaseMillis,
    /// `None` for a lease that the base protocol cannot ask for.
    pub(crate) lease_seconds: Option<LeaseSeconds>,
    pub(crate) min_work: Duration,
    /// For how long to extend by itself, if at all.
    pub(crate) keep: Option<Duration>,
    pub(crate) min_hold: SpanMillis,
}

impl Terms {
    /// What a server must have besides the base protocol.
    pub(crate) fn needs(&self) -> Extensions {
        let mut needs = Extensions::NONE;
        if self.lease_seconds.is_none() || self.wait > MAX_BASE_WAIT {
            needs = needs.and(Extensions::ACQUIRE);
        }
        if self.keep.is_some() {
            needs = needs.and(Extensions::EXTEND);
        }
        if self.min_hold > SpanMillis::ZERO {
            needs = needs.and(Extensions::MINIMUM_HOLD);
        }
        needs
    }
}

/// The time in milliseconds, rounded up.
pub(crate) fn whole_millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}

/// The time in seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

const MAX_WAIT: Duration = Duration::from_millis(SpanMillis::MAX as u64);
const MAX_BASE_WAIT: Duration = Duration::from_secs(u8::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up_for_the_server_and_kept_exact_for_the_ticket() {
        let check = |microseconds| {
            AcquireOptions::new()
                .lease(Duration::from_micros(microseconds))
                .check()
                .map(|terms| {
                    let seconds = terms.lease_seconds.map(LeaseSeconds::get);
                    (
                        seconds,
                        terms.lease_millis.get(),
                        terms.lease.as_micros() as u64,
                    )
                })
                .ok()
        };
        assert_eq!(check(1), Some((Some(1), 1, 1)));
        assert_eq!(check(1_000_000), Some((Some(1), 1_000, 1_000_000)));
        assert_eq!(check(1_000_001), Some((Some(2), 1_001, 1_000_001)));
        assert_eq!(check(250_000_000), Some((Some(250), 250_000, 250_000_000)));
        assert_eq!(check(250_000_001), Some((None, 250_001, 250_000_001)));
        assert_eq!(check(3_600_000_000), Some((None, 3_600_000, 3_600_000_000)));
        assert_eq!(check(0), None);
        assert_eq!(check(3_600_000_001), None);
        assert_eq!(check(u64::MAX), None);
    }

    #[test]
    fn what_goes_beyond_the_base_protocol_is_known() {
        let needs = |options: AcquireOptions| options.check().unwrap().needs();
        let second = Duration::from_secs(1);
        let options = AcquireOptions::new();
        assert_eq!(needs(options.clone().wait(255 * second)), Extensions::NONE);
        assert_eq!(needs(options.clone().lease(250 * second)), Extensions::NONE);
        for (options, extension) in [
            (options.clone().wait(256 * second), Extensions::ACQUIRE),
            (options.clone().lease(251 * second), Extensions::ACQUIRE),
            (options.clone().auto_extend(second), Extensions::EXTEND),
            (options.clone().min_hold(second), Extensions::MINIMUM_HOLD),
        ] {
            assert_eq!(needs(options), extension);
        }
    }

    #[test]
    fn a_minimum_hold_ends_with_the_lease_at_the_latest() {
        let options = AcquireOptions::new().lease(Duration::from_secs(2));
        let min_hold = |min_hold| options.clone().min_hold(min_hold).check().map(|_| ());
        assert_eq!(min_hold(Duration::from_secs(2)), Ok(()));
        let long = Duration::from_millis(2_001);
        assert_eq!(
            min_hold(long),
            Err(AcquireError::InvalidMinHold { min_hold: long })
        );
    }

    #[test]
    fn the_work_must_fit_into_the_lease() {
        let options = AcquireOptions::new().lease(Duration::from_secs(2));
        let min_work = Duration::from_millis(2_001);
        assert!(
            options
                .clone()
                .min_work(Duration::from_secs(2))
                .check()
                .is_ok()
        );
        assert_eq!(
            options.min_work(min_work).check().map(|_| ()),
            Err(AcquireError::InvalidMinWork { min_work })
        );
    }

    #[test]
    fn a_lease_that_is_extended_must_be_long_enough_for_it() {
        let check = |lease| {
            let options = AcquireOptions::new()
                .auto_extend(Duration::MAX)
                .lease(lease);
            options.check().map(|terms| terms.keep)
        };
        let lease = Duration::from_millis(299);
        assert_eq!(
            check(lease),
            Err(AcquireError::LeaseTooShortToExtend { lease })
        );
        assert_eq!(check(Duration::from_millis(300)), Ok(Some(Duration::MAX)));
    }

    #[test]
    fn a_wait_has_an_upper_bound() {
        let wait = |wait| AcquireOptions::new().wait(wait).check().map(|_| ());
        assert_eq!(wait(Duration::ZERO), Ok(()));
        assert_eq!(wait(Duration::from_secs(3_600)), Ok(()));
        let long = Duration::from_millis(3_600_001);
        assert_eq!(wait(long), Err(AcquireError::InvalidWait { wait: long }));
    }
}

//! How long to wait for a lock, and how long to hold it.

use std::time::Duration;

use highwater_protocol::LeaseSeconds;

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
}

impl AcquireOptions {
    /// A wait of 10 s and a lease of 30 s, which is not extended by itself.
    pub const fn new() -> Self {
        Self {
            wait: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            min_work: Duration::ZERO,
            keep: None,
        }
    }

    /// How long to stand in the queue: 0 to 255 s.
    ///
    /// Zero is one try that never queues, not even behind somebody who only queues; the answer
    /// then has 5 s. A server of the base protocol counts in whole seconds, and such a wait may
    /// last up to one second longer.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long to hold the lock if it is not released: above 0, at most 250 s.
    ///
    /// The server holds it for whole seconds, rounded up; the ticket counts exactly this.
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

    pub(crate) fn check(&self) -> Result<Terms, AcquireError> {
        if self.wait > MAX_WAIT {
            return Err(AcquireError::InvalidWait { wait: self.wait });
        }
        let lease_seconds = u8::try_from(whole_seconds(self.lease))
            .ok()
            .and_then(LeaseSeconds::new)
            .ok_or(AcquireError::InvalidLease { lease: self.lease })?;
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
            lease_seconds,
            min_work: self.min_work,
            keep: self.keep,
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
    pub(crate) lease_seconds: LeaseSeconds,
    pub(crate) min_work: Duration,
    /// For how long to extend by itself, if at all.
    pub(crate) keep: Option<Duration>,
}

/// The time in seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

const MAX_WAIT: Duration = Duration::from_secs(255);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up_for_the_server_and_kept_exact_for_the_ticket() {
        let check = |milliseconds| {
            AcquireOptions::new()
                .lease(Duration::from_millis(milliseconds))
                .check()
                .map(|terms| (terms.lease_seconds.get(), terms.lease.as_millis()))
                .ok()
        };
        assert_eq!(check(1), Some((1, 1)));
        assert_eq!(check(1_000), Some((1, 1_000)));
        assert_eq!(check(1_001), Some((2, 1_001)));
        assert_eq!(check(250_000), Some((250, 250_000)));
        assert_eq!(check(0), None);
        assert_eq!(check(250_001), None);
        assert_eq!(check(u64::MAX), None);
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
        assert_eq!(wait(Duration::from_secs(255)), Ok(()));
        let long = Duration::from_millis(255_001);
        assert_eq!(wait(long), Err(AcquireError::InvalidWait { wait: long }));
    }
}

//! How long to wait for a lock, and how long to hold it.

use std::time::Duration;

use highwater_protocol::LeaseSeconds;

use crate::AcquireError;

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
}

impl AcquireOptions {
    /// A wait of 10 s and a lease of 30 s.
    pub const fn new() -> Self {
        Self {
            wait: Duration::from_secs(10),
            lease: Duration::from_secs(30),
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

    pub(crate) fn check(&self) -> Result<Terms, AcquireError> {
        if self.wait > MAX_WAIT {
            return Err(AcquireError::InvalidWait { wait: self.wait });
        }
        let lease_seconds = u8::try_from(whole_seconds(self.lease))
            .ok()
            .and_then(LeaseSeconds::new)
            .ok_or(AcquireError::InvalidLease { lease: self.lease })?;
        Ok(Terms {
            wait: self.wait,
            lease: self.lease,
            lease_seconds,
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
    fn a_wait_has_an_upper_bound() {
        let wait = |wait| AcquireOptions::new().wait(wait).check().map(|_| ());
        assert_eq!(wait(Duration::ZERO), Ok(()));
        assert_eq!(wait(Duration::from_secs(255)), Ok(()));
        let long = Duration::from_millis(255_001);
        assert_eq!(wait(long), Err(AcquireError::InvalidWait { wait: long }));
    }
}

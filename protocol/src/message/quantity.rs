//! Times as they travel, each within its bounds.

use core::num::NonZeroU8;
use core::time::Duration;

/// The length of a lease on the base protocol: 1 to 250 whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseSeconds(NonZeroU8);

impl LeaseSeconds {
    /// The longest lease that the base protocol can ask for.
    pub const MAX: u8 = 250;

    /// Gives the lease, or `None` for 0 and from 251 up.
    pub const fn new(seconds: u8) -> Option<Self> {
        match NonZeroU8::new(seconds) {
            Some(seconds) if seconds.get() <= Self::MAX => Some(Self(seconds)),
            _ => None,
        }
    }

    /// The number of seconds.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// The same time as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0.get() as u64)
    }
}

/// The length of a lease on the extensions: 1 ms to 1 hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseMillis(u32);

impl LeaseMillis {
    /// The longest lease, in milliseconds.
    pub const MAX: u32 = 3_600_000;

    /// Gives the lease, or `None` for 0 and beyond an hour.
    pub const fn new(milliseconds: u32) -> Option<Self> {
        if milliseconds == 0 || milliseconds > Self::MAX {
            None
        } else {
            Some(Self(milliseconds))
        }
    }

    /// The number of milliseconds.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The same time as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }
}

/// A wait or a minimum hold on the extensions: 0 ms to 1 hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanMillis(u32);

impl SpanMillis {
    /// No time at all: one try that never queues, or no minimum.
    pub const ZERO: Self = Self(0);

    /// The longest span, in milliseconds.
    pub const MAX: u32 = 3_600_000;

    /// Gives the span, or `None` beyond an hour.
    pub const fn new(milliseconds: u32) -> Option<Self> {
        if milliseconds > Self::MAX {
            None
        } else {
            Some(Self(milliseconds))
        }
    }

    /// The number of milliseconds.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The same time as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }
}

//! Lease time: the only clock the machine knows.
//!
//! It is a number that the caller stamps on each command, not wall time, and nothing here reads a
//! clock. How the server makes stamps that keep running across leaders is the server's business.

use core::fmt;
use core::time::Duration;

/// A moment of lease time, in microseconds since an origin of the caller's choice.
///
/// Only differences mean anything. The machine uses `max(its own time, the stamp)`, so a stamp that
/// lags behind is harmless and time never runs backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The latest moment the machine goes to, some 292,000 years after the origin: later stamps
    /// count as this one, so that a deadline behind it still fits.
    pub const HORIZON: Self = Self(u64::MAX / 2);

    /// The moment this many microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The moment `span` later, or the last one there is. A part of a microsecond counts as a
    /// whole one: a lease is never shorter than asked.
    #[must_use]
    pub const fn saturating_add(self, span: Duration) -> Self {
        self.plus(micros_rounded_up(span))
    }

    /// How long after `earlier` this is, or zero if it is not.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    pub(crate) const fn plus(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

impl fmt::Display for Timestamp {
    /// Seconds with six decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Whole microseconds, rounded up; `u64::MAX` for a span that is longer than that.
pub(crate) const fn micros_rounded_up(span: Duration) -> u64 {
    let micros = span.as_nanos().div_ceil(1_000);
    if micros > u64::MAX as u128 {
        u64::MAX
    } else {
        micros as u64
    }
}

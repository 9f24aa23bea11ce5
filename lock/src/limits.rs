//! The bound of everything that could grow.

use core::time::Duration;

/// How much one machine takes on. Reaching a number is a typed [`Busy`](crate::Busy), asking for
/// too long a time a typed [`Rejection`](crate::Rejection); nothing is ever cut silently.
///
/// All replicas of one machine must use the same limits, or they decide differently. Start from
/// the default and change fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Keys in use: held, or queued for. An N-slot name counts as N keys, whether taken or not, so
    /// that a hand-over can never fail for lack of room.
    pub keys: u32,
    /// Requests in all queues. A request for several keys counts once.
    pub waiters: u32,
    /// Requests in the queue of one key.
    pub waiters_per_key: u32,
    /// Queued requests of one connection.
    pub waiters_per_connection: u32,
    /// Slots of one name.
    pub slots: u32,
    /// The longest lease that can be asked for, by an acquire or an extension.
    pub lease: Duration,
    /// The longest time in a queue.
    pub wait: Duration,
    /// The longest minimum hold, counted from the grant.
    pub minimum_hold: Duration,
    /// How many holds one command may expire; the others wait for the next one. At least one.
    pub expiries_per_apply: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 4_000_000,
            waiters: 100_000,
            waiters_per_key: 10_000,
            waiters_per_connection: 10_000,
            slots: 1_024,
            lease: Duration::from_secs(3_600),
            wait: Duration::from_secs(3_600),
            minimum_hold: Duration::from_secs(3_600),
            expiries_per_apply: 256,
        }
    }
}

impl Limits {
    /// The longest span that any of the three times above can allow; a longer one counts as this.
    pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

    pub(crate) fn longest_lease(&self) -> Duration {
        self.lease.min(Self::LONGEST)
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.wait.min(Self::LONGEST)
    }

    pub(crate) fn longest_minimum_hold(&self) -> Duration {
        self.minimum_hold.min(Self::LONGEST)
    }
}

//! What clients ask for: which keys, for how long.
//!
//! Clients that speak the bytes have keys of their own, whose decisions are looked at too: there each
//! request is exactly one call. A `highwater-client` asks again by itself after it was turned away,
//! so of its keys only what it told is looked at.

use std::time::Duration;

use highwater_history::CallId;

use crate::random::Random;

/// The keys of the clients that speak the bytes, with all decisions.
pub(crate) const WIRE_KEYS: [&str; 3] = ["wire/a", "wire/b", "wire/c"];
/// A name with slots, and how many it has.
pub(crate) const WIRE_SLOTS: (&str, u32) = ("wire/slots", 2);
/// The keys of `highwater-client`.
pub(crate) const CLIENT_KEYS: [&str; 2] = ["client/a", "client/b"];
/// The longest lease that anybody asks for, extensions included.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_millis(6_500);

/// How long to wait and to hold. Together with the keys it names the call, so that a decision of the
/// log can be told to belong to it: no two calls of a minute have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
}

impl Times {
    /// For this call.
    pub(crate) fn of(call: CallId, random: &mut Random) -> Self {
        let (low, high) = (call.0 % VARIETY, call.0 / VARIETY % VARIETY);
        let lease = if random.percent(80) { 1_200 } else { 5_000 };
        let wait = *random.choose(&[0, 300, 1_500, 3_000]);
        let wait = if wait == 0 { 0 } else { wait + high };
        Self {
            wait: Duration::from_millis(wait),
            lease: Duration::from_millis(lease + low),
        }
    }
}

/// How many different milliseconds there are on top of a base.
const VARIETY: u64 = 1_499;

//! What an operator sees and does.
//!
//! Every call does a bounded amount of work under the mutex, however much is held: who wants all
//! the names asks again and again, and requests of clients get their turn in between.

use std::ops::Bound;
use std::time::Duration;

use highwater_lock::{
    Ended, FencingToken, HolderView, Key, NameView, Operation, Reply as Outcome, Timestamp,
};

use super::{Counts, Desk};
use crate::metrics::Tally;

/// The numbers of one moment.
#[derive(Debug)]
pub(crate) struct Readings {
    pub(crate) tally: Tally,
    pub(crate) counts: Counts,
    /// Ownerships; one may hold several keys.
    pub(crate) holds: usize,
    pub(crate) uptime: Duration,
}

/// Some names in use, and the moment at which they were looked at.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) now: Timestamp,
    pub(crate) names: Vec<NameView>,
}

/// One name in use and some of its holders.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) now: Timestamp,
    pub(crate) name: NameView,
    /// In slot order.
    pub(crate) holders: Vec<HolderView>,
}

/// What a force-release did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Forced {
    pub(crate) burned: FencingToken,
    pub(crate) ended: Vec<Ended>,
}

impl Desk {
    pub(crate) fn readings(&self) -> Readings {
        let state = self.state();
        Readings {
            tally: state.tally.clone(),
            counts: state.counts(),
            holds: state.machine.holds(),
            uptime: self.since(Timestamp::ZERO),
        }
    }

    /// The first `most` names from here on, in byte order, but never more than
    /// [`NAMES_AT_ONCE`].
    pub(crate) fn names(&self, start: Bound<&Key>, most: usize) -> Names {
        let most = most.min(NAMES_AT_ONCE);
        let state = self.state();
        Names {
            now: self.clock.timestamp(),
            names: state.machine.names_from(start).take(most).collect(),
        }
    }

    /// One name with the first `most` of its holders from this slot on, or `None` if it is free.
    pub(crate) fn lock(&self, key: &Key, from_slot: u32, most: usize) -> Option<Lock> {
        let state = self.state();
        let holders = state.machine.holders_from(key, from_slot);
        Some(Lock {
            now: self.clock.timestamp(),
            name: state.machine.name(key)?,
            holders: holders.take(most).collect(),
        })
    }

    /// Ends whatever holds a key and burns a token, or `None` if no token is left, or none that is
    /// reserved yet. Who waits gets the lock in the same step.
    pub(crate) fn force_release(&self, key: Key) -> Option<Forced> {
        let mut state = self.state();
        let now = self.clock.timestamp();
        if !state.may_take_token() {
            return None;
        }
        let outcome = state.apply(now, Operation::ForceRelease { key });
        let forced = match outcome {
            Outcome::ForceReleased { burned, ended } => {
                state.tally.forced += 1;
                Some(Forced { burned, ended })
            }
            _ => None,
        };
        self.after_change(state);
        forced
    }
}

/// How many names are looked at before others get their turn.
pub(crate) const NAMES_AT_ONCE: usize = 128;

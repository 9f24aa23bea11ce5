//! What an operator sees and does.
//!
//! Every call does a bounded amount of work under the mutex, however much is held: who wants all
//! the names asks again and again, and requests of clients get their turn in between.

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_lock::{
    Ended, FencingToken, HolderView, Key, Machine, NameView, Operation, Reply as Outcome, Timestamp,
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

impl Names {
    /// The first [`NAMES_AT_ONCE`] of these names, as far as they are in use now.
    pub(crate) fn of(machine: &Machine, now: Timestamp, keys: &[Key]) -> Self {
        let keys = keys.iter().take(NAMES_AT_ONCE);
        let names = keys.filter_map(|key| machine.name(key)).collect();
        Self { now, names }
    }
}

/// The first names, in byte order, of those that it was offered.
#[derive(Debug)]
pub(crate) struct Page {
    prefix: String,
    after: Option<Key>,
    most: usize,
    keys: BTreeSet<Key>,
}

impl Page {
    /// At most so many names, behind a key if there is one.
    pub(crate) fn new(prefix: &str, after: Option<Key>, most: usize) -> Self {
        Self {
            prefix: prefix.to_owned(),
            after,
            most,
            keys: BTreeSet::new(),
        }
    }

    /// Looks for names in the next places of the machine, from this one on, and gives the place to go
    /// on from, if there is one.
    pub(crate) fn look(&mut self, machine: &Machine, from: usize) -> Option<usize> {
        let next = from.saturating_add(PLACES_AT_ONCE);
        for key in machine.keys_at(from..next) {
            self.offer(key);
        }
        (next < machine.places()).then_some(next)
    }

    fn offer(&mut self, key: &Key) {
        let behind = self.after.as_ref().is_none_or(|after| key > after);
        let full = self.keys.len() >= self.most;
        let late = full && self.keys.last().is_none_or(|last| key >= last);
        if !behind || late || !key.as_str().starts_with(&self.prefix) {
            return;
        }
        self.keys.insert(key.clone());
        if self.keys.len() > self.most {
            self.keys.pop_last();
        }
    }

    pub(crate) fn into_keys(self) -> Vec<Key> {
        self.keys.into_iter().collect()
    }
}

/// One name in use and some of its holders.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) now: Timestamp,
    pub(crate) name: NameView,
    /// In slot order.
    pub(crate) holders: Vec<HolderView>,
}

impl Lock {
    /// One name with the first `most` of its holders from this slot on, or `None` if it is free.
    pub(crate) fn of(
        machine: &Machine,
        now: Timestamp,
        key: &Key,
        from_slot: u32,
        most: usize,
    ) -> Option<Self> {
        let holders = machine.holders_from(key, from_slot);
        Some(Self {
            now,
            name: machine.name(key)?,
            holders: holders.take(most).collect(),
        })
    }
}

/// What a force-release did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Forced {
    pub(crate) burned: FencingToken,
    pub(crate) ended: Vec<Ended>,
}

/// Why a force-release did nothing, or why nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "most of it only happens to nodes of a cluster")
)]
pub(crate) enum NotForced {
    /// No token is left, or none that is reserved yet.
    NoToken,
    /// The node of this slot leads, and decides.
    Elsewhere { leader: u8 },
    /// Nobody leads, or nobody knows.
    NoLeader,
    /// Too much waits to be decided.
    Busy,
    /// It is in a log, and may have come about or may do so yet.
    Unknown,
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

    /// See [`Page::look`].
    pub(crate) fn look(&self, from: usize, page: &mut Page) -> Option<usize> {
        page.look(&self.state().machine, from)
    }

    /// See [`Names::of`].
    pub(crate) fn names(&self, keys: &[Key]) -> Names {
        let state = self.state();
        Names::of(&state.machine, self.clock.timestamp(), keys)
    }

    /// See [`Lock::of`].
    pub(crate) fn lock(&self, key: &Key, from_slot: u32, most: usize) -> Option<Lock> {
        let state = self.state();
        Lock::of(&state.machine, self.clock.timestamp(), key, from_slot, most)
    }

    /// Ends whatever holds a key and burns a token. Who waits gets the lock in the same step.
    pub(crate) fn force_release(&self, key: Key) -> Result<Forced, NotForced> {
        let mut state = self.state();
        let now = self.clock.timestamp();
        if !state.may_take_token() {
            return Err(NotForced::NoToken);
        }
        let outcome = state.apply(now, Operation::ForceRelease { key });
        let forced = match outcome {
            Outcome::ForceReleased { burned, ended } => {
                state.tally.forced += 1;
                Ok(Forced { burned, ended })
            }
            _ => Err(NotForced::NoToken),
        };
        self.after_change(state);
        forced
    }
}

/// How many names are shown before others get their turn.
pub(crate) const NAMES_AT_ONCE: usize = 128;
/// How many places are searched before others get their turn.
const PLACES_AT_ONCE: usize = 1_000;

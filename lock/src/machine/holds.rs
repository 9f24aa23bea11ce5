//! Every ownership, found by its token, and the order in which they end.
//!
//! Knows nothing of queues. Which ownership holds a key stands in [`names`](super::names).

use alloc::vec::Vec;

use super::rows::Rows;
use super::slab::{Id, Slab};
use super::timers::{Due, Links, Timed, Timers};
use super::{HoldState, HolderView};
use crate::{FencingToken, HashSeed, KeySet, Timestamp};

/// One ownership. All that a release looks at is in one line of the processor's cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Hold {
    pub(super) keys: KeySet,
    pub(super) token: FencingToken,
    pub(super) slot: Option<u32>,
    pub(super) granted_at: Timestamp,
    pub(super) state: HoldState,
    links: Links,
}

const _: () = assert!(size_of::<Option<Hold>>() == 64);

impl Hold {
    pub(super) fn new(
        keys: KeySet,
        token: FencingToken,
        granted_at: Timestamp,
        state: HoldState,
    ) -> Self {
        Self {
            keys,
            token,
            slot: None,
            granted_at,
            state,
            links: Links::default(),
        }
    }

    pub(super) fn view(&self) -> HolderView {
        HolderView {
            keys: self.keys.clone(),
            slot: self.slot,
            token: self.token,
            granted_at: self.granted_at,
            state: self.state,
        }
    }

    /// When it ends by itself.
    pub(super) fn deadline(&self) -> Timestamp {
        self.state.deadline()
    }
}

impl Timed for Hold {
    fn due(&self) -> Due {
        Due {
            at: self.deadline(),
            order: self.token.get(),
        }
    }

    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn links_ref(&self) -> Links {
        self.links
    }
}

/// What a token and some keys name together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// No hold that is still running.
    NotHeld,
    /// A running hold of other keys.
    OtherKeys,
    /// A running hold of these keys.
    Running(Id),
}

#[derive(Clone, Debug)]
pub(super) struct Holds {
    holds: Slab<Hold>,
    by_token: Rows,
    timers: Timers,
}

impl Holds {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            holds: Slab::default(),
            by_token: Rows::new(seed),
            timers: Timers::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    pub(super) fn get(&self, id: Id) -> Option<&Hold> {
        self.holds.get(id)
    }

    /// All of them, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &Hold)> {
        self.holds.iter()
    }

    /// All of them, oldest grant first.
    pub(super) fn in_token_order(&self) -> Vec<&Hold> {
        let mut holds: Vec<&Hold> = self.holds.iter().map(|(_, hold)| hold).collect();
        holds.sort_unstable_by_key(|hold| hold.token);
        holds
    }

    /// The hold of this token and these keys, unless its end has come, decided or not.
    pub(super) fn claim(&self, token: FencingToken, keys: &KeySet, now: Timestamp) -> Claim {
        let Some(id) = self.by_token.get(token.get()) else {
            return Claim::NotHeld;
        };
        let hold = &self.holds[id];
        if hold.deadline() <= now {
            Claim::NotHeld
        } else if hold.keys != *keys {
            Claim::OtherKeys
        } else {
            Claim::Running(id)
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first()
    }

    pub(super) fn last_deadline(&self) -> Option<Timestamp> {
        self.timers.last(&self.holds)
    }

    /// The hold that ends first, if its end has come.
    pub(super) fn first_due(&self, now: Timestamp) -> Option<Id> {
        self.timers.first_due(now)
    }

    pub(super) fn insert(&mut self, hold: Hold) -> Id {
        let number = hold.token.get();
        let id = self.holds.insert(hold);
        self.by_token.insert(number, id);
        self.timers.insert(&mut self.holds, id);
        id
    }

    pub(super) fn set_slot(&mut self, id: Id, slot: u32) {
        self.holds[id].slot = Some(slot);
    }

    pub(super) fn remove(&mut self, id: Id) -> Hold {
        self.timers.remove(&mut self.holds, id);
        let hold = self.holds.remove(id);
        self.by_token.remove(hold.token.get());
        hold
    }

    pub(super) fn set_state(&mut self, id: Id, state: HoldState) {
        self.timers.remove(&mut self.holds, id);
        self.holds[id].state = state;
        self.timers.insert(&mut self.holds, id);
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        self.holds.check()?;
        self.timers.check(&self.holds)?;
        self.by_token.check()?;
        let mut holds = self.holds.iter();
        let found = holds.all(|(id, hold)| self.by_token.get(hold.token.get()) == Some(id));
        if !found || self.by_token.len() != self.holds.len() {
            return Err("every hold is found by its token");
        }
        Ok(())
    }
}

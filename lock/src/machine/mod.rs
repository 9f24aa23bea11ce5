//! The state machine: every grant, release, extension and expiry is decided here.

use alloc::vec::Vec;

use crate::{Command, FencingToken, Key, KeySet, Limits, Outcome, RestoreError, Timestamp};

/// Placeholder
#[derive(Clone, Debug)]
pub struct Machine {}

/// What holds a key, for queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// All the keys held with it, or the one name of a slot.
    pub keys: KeySet,
    /// Which slot, for an N-slot lock.
    pub slot: Option<u32>,
    /// The token.
    pub token: FencingToken,
    /// When it began.
    pub granted_at: Timestamp,
    /// How it stands.
    pub state: HoldState,
}

/// Whether a hold is still somebody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// Somebody holds it, and may extend or release it.
    Held {
        /// When the lease ends.
        expires: Timestamp,
    },
    /// It is released, and kept from others until its minimum hold is over.
    Retained {
        /// When that is.
        until: Timestamp,
    },
}

impl Machine {
    /// A machine that holds nothing.
    pub fn new(_limits: Limits, _first_token: FencingToken) -> Self {
        unimplemented!()
    }
    /// Applies one command at `now`. Same history in, same state and outcome out.
    pub fn apply(&mut self, _now: Timestamp, _command: Command) -> Outcome {
        unimplemented!()
    }
    /// Earliest moment at which a tick would change anything. It may already be past.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        unimplemented!()
    }
    /// The whole state as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        unimplemented!()
    }
    /// The machine that wrote these bytes.
    ///
    /// # Errors
    /// The bytes are no snapshot.
    pub fn restore(_bytes: &[u8], _limits: Limits) -> Result<Self, RestoreError> {
        unimplemented!()
    }
    /// Panics if an invariant is broken.
    pub fn assert_valid(&self) {
        unimplemented!()
    }
    /// What holds this key; for an N-slot name, the lowest taken slot.
    pub fn holder(&self, _key: &Key) -> Option<HolderView> {
        unimplemented!()
    }
    /// Everything that holds this key: at most one, or the taken slots in slot order.
    pub fn holders(&self, _key: &Key) -> Vec<HolderView> {
        unimplemented!()
    }
    /// How many requests queue for this key.
    pub fn queue_len(&self, _key: &Key) -> usize {
        unimplemented!()
    }
    /// How many keys are held, slots counted one by one.
    pub fn held_keys(&self) -> usize {
        unimplemented!()
    }
    /// How many ownerships there are.
    pub fn holds(&self) -> usize {
        unimplemented!()
    }
    /// How many requests are queued.
    pub fn waiters(&self) -> usize {
        unimplemented!()
    }
    /// The machine's time.
    pub fn now(&self) -> Timestamp {
        unimplemented!()
    }
    /// The newest epoch seen.
    pub fn epoch(&self) -> crate::Epoch {
        unimplemented!()
    }
    /// The token that the next grant gets, or `None` if all are given out.
    pub fn next_token(&self) -> Option<FencingToken> {
        unimplemented!()
    }
}

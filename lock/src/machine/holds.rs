//! Every ownership by its token, and the order in which they end.
//!
//! Knows nothing of queues. Which token holds a key stands in [`names`](super::names).

use alloc::collections::{BTreeMap, BTreeSet};

use super::HoldState;
use crate::{FencingToken, KeySet, Timestamp};

#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) keys: KeySet,
    pub(super) slot: Option<u32>,
    pub(super) granted_at: Timestamp,
    pub(super) state: HoldState,
}

impl Hold {
    /// When it ends by itself.
    pub(super) fn deadline(&self) -> Timestamp {
        self.state.deadline()
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
    Running {
        granted_at: Timestamp,
        state: HoldState,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    by_token: BTreeMap<FencingToken, Hold>,
    deadlines: BTreeSet<(Timestamp, FencingToken)>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }

    pub(super) fn get(&self, token: FencingToken) -> Option<&Hold> {
        self.by_token.get(&token)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (FencingToken, &Hold)> {
        self.by_token.iter().map(|(token, hold)| (*token, hold))
    }

    pub(super) fn last_token(&self) -> Option<FencingToken> {
        self.by_token.last_key_value().map(|(token, _)| *token)
    }

    /// The hold of this token and these keys, unless its end has come, decided or not.
    pub(super) fn claim(&self, token: FencingToken, keys: &KeySet, now: Timestamp) -> Claim {
        match self.by_token.get(&token) {
            None => Claim::NotHeld,
            Some(hold) if hold.deadline() <= now => Claim::NotHeld,
            Some(hold) if hold.keys != *keys => Claim::OtherKeys,
            Some(hold) => Claim::Running {
                granted_at: hold.granted_at,
                state: hold.state,
            },
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    pub(super) fn last_deadline(&self) -> Option<Timestamp> {
        self.deadlines.last().map(|(deadline, _)| *deadline)
    }

    /// The hold that ends first, if its end has come.
    pub(super) fn first_due(&self, now: Timestamp) -> Option<FencingToken> {
        let (deadline, token) = self.deadlines.first()?;
        (*deadline <= now).then_some(*token)
    }

    pub(super) fn insert(&mut self, token: FencingToken, hold: Hold) {
        self.deadlines.insert((hold.deadline(), token));
        let old = self.by_token.insert(token, hold);
        assert!(old.is_none(), "a token is given out once");
    }

    pub(super) fn remove(&mut self, token: FencingToken) -> Hold {
        let hold = self.by_token.remove(&token).expect("the token is held");
        let indexed = self.deadlines.remove(&(hold.deadline(), token));
        assert!(indexed, "every hold has its deadline in the index");
        hold
    }

    pub(super) fn set_state(&mut self, token: FencingToken, state: HoldState) {
        let hold = self.by_token.get_mut(&token).expect("the token is held");
        let indexed = self.deadlines.remove(&(hold.deadline(), token));
        assert!(indexed, "every hold has its deadline in the index");
        hold.state = state;
        self.deadlines.insert((hold.deadline(), token));
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        let indexed = self
            .by_token
            .iter()
            .all(|(token, hold)| self.deadlines.contains(&(hold.deadline(), *token)));
        if !indexed || self.deadlines.len() != self.by_token.len() {
            return Err("the deadline index holds exactly the deadlines of the holds");
        }
        Ok(())
    }
}

//! How an ownership begins, is prolonged, and ends.

use alloc::vec::Vec;
use core::time::Duration;

use super::holds::{Claim, Hold};
use super::names::Kind;
use super::slab::Id;
use super::{HoldState, Machine};
use crate::time::micros_rounded_up;
use crate::{
    Ended, Event, FencingToken, Grant, Key, KeySet, Rejection, Reply, Timestamp, WaiterId,
};

impl Machine {
    /// The next token, which will not come again.
    pub(super) fn take_token(&mut self) -> Option<FencingToken> {
        let token = self.next_token?;
        self.next_token = token.get().checked_add(1).and_then(FencingToken::new);
        Some(token)
    }

    pub(super) fn grant(
        &mut self,
        waiter: WaiterId,
        keys: KeySet,
        kind: Kind,
        lease_micros: u64,
        token: FencingToken,
    ) -> Grant {
        let expires = self.now.plus(lease_micros);
        let state = HoldState::Held { expires };
        let hold = Hold::new(keys.clone(), token, self.now, state);
        let id = self.holds.insert(hold);
        let slot = self.names.take(&keys, kind, id);
        if let Some(slot) = slot {
            self.holds.set_slot(id, slot);
        }
        self.held_keys += keys.len();
        Grant {
            waiter,
            keys,
            slot,
            token,
            granted_at: self.now,
            expires,
        }
    }

    fn end(&mut self, id: Id) -> Hold {
        let hold = self.holds.remove(id);
        self.names.give_back(&hold.keys, hold.slot, id);
        self.held_keys -= hold.keys.len();
        hold
    }

    /// Ends the holds whose time has come, oldest first, each with its hand-over.
    ///
    /// What a bound leaves over stays held for everybody else, but its own token is dead already:
    /// see [`Holds::claim`](super::holds::Holds::claim).
    pub(super) fn expire_holds(&mut self, events: &mut Vec<Event>) {
        for _ in 0..self.limits.expiries_per_apply.max(1) {
            let Some(id) = self.holds.first_due(self.now) else {
                return;
            };
            let Hold {
                keys,
                token,
                slot,
                state,
                ..
            } = self.end(id);
            let freed = keys.clone();
            events.push(match state {
                HoldState::Held { .. } => Event::Expired { keys, slot, token },
                HoldState::Retained { .. } => Event::RetentionEnded { keys, slot, token },
            });
            self.hand_over(&freed, events);
        }
    }

    pub(super) fn release(
        &mut self,
        keys: &KeySet,
        token: FencingToken,
        minimum_hold: Duration,
        events: &mut Vec<Event>,
    ) -> Reply {
        let (id, until) = match self.check_release(keys, token, minimum_hold) {
            Ok(checked) => checked,
            Err(reply) => return reply,
        };
        if until > self.now {
            self.holds.set_state(id, HoldState::Retained { until });
        } else {
            self.end(id);
            self.hand_over(keys, events);
        }
        Reply::Released
    }

    /// What is released, and until when it is kept from everybody; or the answer that changes
    /// nothing.
    pub(super) fn check_release(
        &self,
        keys: &KeySet,
        token: FencingToken,
        minimum_hold: Duration,
    ) -> Result<(Id, Timestamp), Reply> {
        let longest = self.limits.longest_minimum_hold();
        if minimum_hold > longest {
            return Err(Reply::Rejected(Rejection::MinimumHold { longest }));
        }
        let (id, hold) = self.claimed(keys, token)?;
        if let HoldState::Retained { .. } = hold.state {
            // The sender did not see the first answer, and says it again.
            return Err(Reply::Released);
        }
        Ok((id, hold.granted_at.saturating_add(minimum_hold)))
    }

    pub(super) fn extend(&mut self, keys: &KeySet, token: FencingToken, lease: Duration) -> Reply {
        let (id, expires) = match self.check_extend(keys, token, lease) {
            Ok(checked) => checked,
            Err(reply) => return reply,
        };
        self.holds.set_state(id, HoldState::Held { expires });
        Reply::Extended { expires }
    }

    /// What is extended, and when it then ends; or the answer that changes nothing.
    pub(super) fn check_extend(
        &self,
        keys: &KeySet,
        token: FencingToken,
        lease: Duration,
    ) -> Result<(Id, Timestamp), Reply> {
        self.check_lease(lease).map_err(Reply::Rejected)?;
        let (id, hold) = self.claimed(keys, token)?;
        match hold.state {
            HoldState::Retained { .. } => Err(Reply::NotHeld),
            HoldState::Held { expires } => {
                let asked = self.now.plus(micros_rounded_up(lease));
                Ok((id, expires.max(asked)))
            }
        }
    }

    fn claimed(&self, keys: &KeySet, token: FencingToken) -> Result<(Id, &Hold), Reply> {
        match self.holds.claim(token, keys, self.now) {
            Claim::NotHeld => Err(Reply::NotHeld),
            Claim::OtherKeys => Err(Reply::GroupMismatch),
            Claim::Running(id) => Ok((id, self.holds.get(id).expect("a claim is of a hold"))),
        }
    }

    pub(super) fn force_release(&mut self, key: &Key, events: &mut Vec<Event>) -> Reply {
        let Some(burned) = self.take_token() else {
            return Reply::Rejected(Rejection::TokensExhausted);
        };
        let owners = self.names.get(key).map(|name| name.owners());
        let mut freed = Vec::new();
        let mut ended = Vec::new();
        for id in owners.unwrap_or_default() {
            let Hold {
                keys, token, slot, ..
            } = self.end(id);
            freed.extend(keys.iter().cloned());
            ended.push(Ended { keys, slot, token });
        }
        self.hand_over(&freed, events);
        Reply::ForceReleased { burned, ended }
    }

    pub(super) fn check_lease(&self, lease: Duration) -> Result<(), Rejection> {
        let longest = self.limits.longest_lease();
        if lease.is_zero() || lease > longest {
            return Err(Rejection::Lease { longest });
        }
        Ok(())
    }
}

//! How an ownership begins, is prolonged, and ends.

use alloc::vec::Vec;
use core::time::Duration;

use super::holds::{Claim, Hold};
use super::names::Kind;
use super::{HoldState, Machine};
use crate::time::micros_rounded_up;
use crate::{Ended, Event, FencingToken, Grant, Key, KeySet, Rejection, Reply, WaiterId};

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
        let slot = self.names.take(&keys, kind, token);
        let expires = self.now.plus(lease_micros);
        let hold = Hold {
            keys: keys.clone(),
            slot,
            granted_at: self.now,
            state: HoldState::Held { expires },
        };
        self.held_keys += keys.len();
        self.holds.insert(token, hold);
        Grant {
            waiter,
            keys,
            slot,
            token,
            granted_at: self.now,
            expires,
        }
    }

    fn end(&mut self, token: FencingToken) -> Hold {
        let hold = self.holds.remove(token);
        self.names.give_back(&hold.keys, hold.slot, token);
        self.held_keys -= hold.keys.len();
        hold
    }

    /// Ends the holds whose time has come, oldest first, each with its hand-over.
    ///
    /// What a bound leaves over stays held for everybody else, but its own token is dead already:
    /// see [`Holds::claim`](super::holds::Holds::claim).
    pub(super) fn expire_holds(&mut self, events: &mut Vec<Event>) {
        for _ in 0..self.limits.expiries_per_apply.max(1) {
            let Some(token) = self.holds.first_due(self.now) else {
                return;
            };
            let Hold {
                keys, slot, state, ..
            } = self.end(token);
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
        let longest = self.limits.longest_minimum_hold();
        if minimum_hold > longest {
            return Reply::Rejected(Rejection::MinimumHold { longest });
        }
        let granted_at = match self.holds.claim(token, keys, self.now) {
            Claim::NotHeld => return Reply::NotHeld,
            Claim::OtherKeys => return Reply::GroupMismatch,
            // The sender did not see the first answer, and says it again.
            Claim::Running {
                state: HoldState::Retained { .. },
                ..
            } => return Reply::Released,
            Claim::Running { granted_at, .. } => granted_at,
        };
        let until = granted_at.saturating_add(minimum_hold);
        if until > self.now {
            self.holds.set_state(token, HoldState::Retained { until });
        } else {
            self.end(token);
            self.hand_over(keys, events);
        }
        Reply::Released
    }

    pub(super) fn extend(&mut self, keys: &KeySet, token: FencingToken, lease: Duration) -> Reply {
        if let Err(rejection) = self.check_lease(lease) {
            return Reply::Rejected(rejection);
        }
        match self.holds.claim(token, keys, self.now) {
            Claim::NotHeld => Reply::NotHeld,
            Claim::OtherKeys => Reply::GroupMismatch,
            Claim::Running {
                state: HoldState::Retained { .. },
                ..
            } => Reply::NotHeld,
            Claim::Running {
                state: HoldState::Held { expires },
                ..
            } => {
                let expires = expires.max(self.now.plus(micros_rounded_up(lease)));
                self.holds.set_state(token, HoldState::Held { expires });
                Reply::Extended { expires }
            }
        }
    }

    pub(super) fn force_release(&mut self, key: &Key, events: &mut Vec<Event>) -> Reply {
        let Some(burned) = self.take_token() else {
            return Reply::Rejected(Rejection::TokensExhausted);
        };
        let tokens = self.names.get(key).map(|name| name.tokens());
        let mut freed = Vec::new();
        let mut ended = Vec::new();
        for token in tokens.unwrap_or_default() {
            let Hold { keys, slot, .. } = self.end(token);
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

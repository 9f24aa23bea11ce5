//! The invariants of the machine, in one place.
//!
//! They are checked by looking at everything, so only tests, simulations and a restore do it.

use super::Machine;
use super::names::{Name, Owners};
use crate::{Key, Timestamp};

/// The broken rule.
pub(super) type Broken = &'static str;

impl Machine {
    /// Panics with the rule that is broken, if one is.
    ///
    /// It looks at the whole state, so its cost grows with everything held and queued: meant for
    /// tests and simulations, after each command.
    pub fn assert_valid(&self) {
        if let Err(rule) = self.check() {
            panic!("broken invariant of the lock machine: {rule}");
        }
    }

    pub(super) fn check(&self) -> Result<(), Broken> {
        if self.now > Timestamp::HORIZON {
            return Err("time stays within the horizon");
        }
        self.holds.check()?;
        self.waiters.check(self.now)?;
        let held = self.check_holds()?;
        let queued = self.check_waiters()?;
        let mut owners = 0;
        let mut places = 0;
        for (key, name) in self.names.iter() {
            self.check_name(key, name)?;
            owners += name.tokens().len();
            places += name.queue.len();
        }
        if owners != held || held != self.held_keys {
            return Err("every owner of a key is a hold");
        }
        if places != queued {
            return Err("every place in a queue is a waiter's");
        }
        if self.names.in_use() != self.names.weighed() {
            return Err("the keys in use are counted");
        }
        Ok(())
    }

    /// Gives the number of held keys.
    fn check_holds(&self) -> Result<usize, Broken> {
        let mut held = 0;
        for (token, hold) in self.holds.iter() {
            if self.next_token.is_some_and(|next| token >= next) {
                return Err("every token in use was given out");
            }
            if hold.granted_at > self.now || hold.deadline() <= hold.granted_at {
                return Err("a hold begins in the past and lasts");
            }
            if hold.slot.is_some() && hold.keys.len() != 1 {
                return Err("a slot has one name");
            }
            for key in hold.keys.iter() {
                let owner = match (self.names.get(key).map(|name| &name.owners), hold.slot) {
                    (Some(Owners::Plain(owner)), None) => *owner,
                    (Some(Owners::Slots(slots)), Some(slot)) => slots.taken().get(&slot).copied(),
                    _ => None,
                };
                if owner != Some(token) {
                    return Err("a hold owns all its keys");
                }
            }
            held += hold.keys.len();
        }
        Ok(held)
    }

    /// Gives the number of places in queues.
    fn check_waiters(&self) -> Result<usize, Broken> {
        let mut queued = 0;
        for (ticket, waiter) in self.waiters.iter() {
            for key in waiter.keys.iter() {
                let Some(name) = self.names.get(key) else {
                    return Err("a queued-for key is in use");
                };
                if !name.queue.contains(&ticket) {
                    return Err("a waiter is in all its queues");
                }
                if name.kind() != waiter.kind {
                    return Err("all who use a name agree what it is");
                }
            }
            if self.next_token.is_some() && self.names.is_grantable(&waiter.keys, ticket) {
                return Err("nobody waits for what is free");
            }
            queued += waiter.keys.len();
        }
        Ok(queued)
    }

    fn check_name(&self, key: &Key, name: &Name) -> Result<(), Broken> {
        if !name.is_in_use() {
            return Err("only names in use are kept");
        }
        if let Owners::Slots(slots) = &name.owners
            && slots.rebuilt() != **slots
        {
            return Err("a slot is free or taken");
        }
        let known = name.tokens().iter().all(|token| {
            self.holds
                .get(*token)
                .is_some_and(|hold| hold.keys.contains(key))
        });
        if !known {
            return Err("every owner of a key is a hold of it");
        }
        Ok(())
    }
}

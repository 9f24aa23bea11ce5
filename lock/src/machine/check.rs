//! The invariants of the machine, in one place.
//!
//! They are checked by looking at everything, so only tests, simulations and a restore do it.

use super::Machine;
use super::names::Name;
use crate::Timestamp;

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
        self.names.check()?;
        let held = self.check_holds()?;
        let queued = self.check_waiters()?;
        let mut owners = 0;
        let mut places = 0;
        // The first rule by name, since the order of the names means nothing.
        let broken = self.names.iter().filter_map(|name| {
            owners += name.owners().len();
            places += name.queue_len();
            self.check_name(name).err()
        });
        if let Some(rule) = broken.min() {
            return Err(rule);
        }
        if owners != held || held != self.held_keys {
            return Err("every owner of a key is a hold");
        }
        if places != queued {
            return Err("every place in a queue is a waiter's");
        }
        Ok(())
    }

    /// Gives the number of held keys.
    fn check_holds(&self) -> Result<usize, Broken> {
        let mut held = 0;
        for (id, hold) in self.holds.iter() {
            if self.next_token.is_some_and(|next| hold.token >= next) {
                return Err("every token in use was given out");
            }
            if hold.granted_at > self.now || hold.deadline() <= hold.granted_at {
                return Err("a hold begins in the past and lasts");
            }
            if hold.slot.is_some() && hold.keys.len() != 1 {
                return Err("a slot has one name");
            }
            for key in hold.keys.iter() {
                let owner = self.names.get(key).and_then(|name| name.owner(hold.slot));
                if owner != Some(id) {
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
        for (id, waiter) in self.waiters.iter() {
            for key in waiter.keys.iter() {
                let Some(name) = self.names.get(key) else {
                    return Err("a queued-for key is in use");
                };
                if name.kind() != waiter.kind {
                    return Err("all who use a name agree what it is");
                }
            }
            if self.next_token.is_some() && self.names.is_grantable(&waiter.keys, id) {
                return Err("nobody waits for what is free");
            }
            // The queues are in strict order and hold only who asks for their key. So if they
            // have as many places as the waiters have keys, each waiter is in all its queues.
            queued += waiter.keys.len();
        }
        Ok(queued)
    }

    fn check_name(&self, name: &Name) -> Result<(), Broken> {
        if !name.is_in_use() {
            return Err("only names in use are kept");
        }
        if let Some(queue) = name.queue() {
            self.waiters.check_queue(name.key(), queue)?;
        }
        if let Some(slots) = name.slots()
            && slots.rebuilt() != *slots
        {
            return Err("a slot is free or taken");
        }
        let known = name.owners().iter().all(|id| {
            self.holds
                .get(*id)
                .is_some_and(|hold| hold.keys.contains(name.key()))
        });
        if !known {
            return Err("every owner of a key is a hold of it");
        }
        Ok(())
    }
}

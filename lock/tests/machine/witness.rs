//! Watches commands and outcomes from outside and checks the promises of a lock service.
//!
//! It knows no rule of the machine's inside. What it asserts: one holder at a time, tokens only go
//! up, first come first served, no granted waiter that is gone, and no free lock with somebody
//! waiting for it.

use std::collections::BTreeMap;

use highwater_lock::{
    Command, Event, FencingToken, Grant, HoldState, Key, KeySet, Machine, Operation, Outcome,
    Rejection, Reply, WaiterId,
};

#[derive(Clone, Default)]
pub(crate) struct Witness {
    owners: BTreeMap<(Key, Option<u32>), FencingToken>,
    /// In the order of arrival, with the number of slots.
    queue: Vec<(WaiterId, KeySet, Option<u32>)>,
    highest: Option<FencingToken>,
}

impl Witness {
    /// Checks what one command caused. `machine` is the state after it.
    pub(crate) fn observe(&mut self, command: &Command, outcome: &Outcome, machine: &Machine) {
        if matches!(outcome.reply, Reply::Rejected(Rejection::StaleEpoch { .. })) {
            assert!(
                outcome.events.is_empty(),
                "a stale command caused something"
            );
            return;
        }
        for event in &outcome.events {
            match event {
                Event::Dropped(waiter) | Event::TimedOut(waiter) => self.leave(*waiter),
                Event::Expired { token, .. } | Event::RetentionEnded { token, .. } => {
                    self.end(*token);
                }
                Event::Granted(grant) => {
                    self.operate_before(command, outcome, grant, machine);
                    self.check_turn(grant);
                    self.leave(grant.waiter);
                    self.begin(grant);
                }
            }
        }
        self.operate(command, outcome, machine);
        if machine.next_token().is_some() {
            self.check_nobody_sleeps_on();
        }
    }

    /// A hand-over may be the work of the operation, whose part of it comes first then.
    fn operate_before(
        &mut self,
        command: &Command,
        outcome: &Outcome,
        grant: &Grant,
        machine: &Machine,
    ) {
        let held = |key: &Key| self.owners.contains_key(&(key.clone(), grant.slot));
        let behind = self.earlier(grant.waiter, &grant.keys).is_some();
        if behind || grant.keys.iter().any(held) {
            self.operate(command, outcome, machine);
        }
    }

    /// Notes what the operation itself did. Doing it twice does nothing more.
    fn operate(&mut self, command: &Command, outcome: &Outcome, machine: &Machine) {
        match (&command.operation, &outcome.reply) {
            (Operation::Acquire { waiter, .. }, Reply::Granted(grant))
            | (Operation::AcquireSlot { waiter, .. }, Reply::Granted(grant)) => {
                assert_eq!(*waiter, grant.waiter);
                assert!(
                    self.queue
                        .iter()
                        .all(|(_, keys, _)| disjoint(keys, &grant.keys)),
                    "an acquire passed those who queue: {grant:?}"
                );
                self.begin(grant);
            }
            (Operation::Acquire { waiter, keys, .. }, Reply::Queued) => {
                self.queue.push((*waiter, keys.clone(), None));
            }
            (
                Operation::AcquireSlot {
                    waiter,
                    name,
                    slots,
                    ..
                },
                Reply::Queued,
            ) => {
                let keys = name.clone().into();
                self.queue.push((*waiter, keys, Some(slots.get())));
            }
            (Operation::Release { keys, token, .. }, Reply::Released) => {
                let views = machine.holders(&keys[0]);
                let retained = views.iter().any(|view| {
                    view.token == *token && matches!(view.state, HoldState::Retained { .. })
                });
                if !retained {
                    self.end(*token);
                }
            }
            (Operation::Cancel { waiter }, Reply::Cancelled) => {
                self.queue.retain(|(other, ..)| other != waiter);
            }
            (Operation::Disconnect { connection }, _) => {
                self.queue
                    .retain(|(waiter, ..)| waiter.connection != *connection);
            }
            (_, Reply::ForceReleased { burned, ended }) => {
                for ended in ended {
                    assert!(
                        ended.token < *burned,
                        "a burned token is above the ended ones"
                    );
                    self.end(ended.token);
                }
                self.highest = self.highest.max(Some(*burned));
            }
            _ => {}
        }
    }

    fn leave(&mut self, waiter: WaiterId) {
        let before = self.queue.len();
        self.queue.retain(|(other, ..)| *other != waiter);
        assert_eq!(self.queue.len() + 1, before, "{waiter:?} was not queued");
    }

    fn end(&mut self, token: FencingToken) {
        self.owners.retain(|_, owner| *owner != token);
    }

    fn begin(&mut self, grant: &Grant) {
        let token = grant.token;
        assert!(Some(token) > self.highest, "token {token} is not new");
        self.highest = Some(token);
        for key in grant.keys.iter() {
            let owner = self.owners.insert((key.clone(), grant.slot), token);
            assert_eq!(owner, None, "{key} went to {token} before it was free");
        }
    }

    fn check_turn(&self, grant: &Grant) {
        let earlier = self.earlier(grant.waiter, &grant.keys);
        assert_eq!(earlier, None, "{grant:?} came out of turn");
    }

    /// The first who came before this waiter and wants one of the keys too.
    fn earlier(&self, waiter: WaiterId, keys: &KeySet) -> Option<WaiterId> {
        let before = self.queue.iter().take_while(|(other, ..)| *other != waiter);
        let mut rivals = before.filter(|(_, theirs, _)| !disjoint(theirs, keys));
        rivals.next().map(|(rival, ..)| *rival)
    }

    fn check_nobody_sleeps_on(&self) {
        for (waiter, keys, slots) in &self.queue {
            let has_room = |key: &Key| {
                let owners = self.owners.keys().filter(|(owned, _)| owned == key);
                owners.count() < slots.unwrap_or(1) as usize
            };
            let next = self.earlier(*waiter, keys).is_none();
            assert!(
                !(next && keys.iter().all(has_room)),
                "{waiter:?} sleeps on before free keys"
            );
        }
    }
}

fn disjoint(one: &KeySet, other: &KeySet) -> bool {
    one.iter().all(|key| !other.contains(key))
}

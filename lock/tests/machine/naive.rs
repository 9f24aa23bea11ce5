//! A second machine, written to be obviously right and as slow as it likes.
//!
//! Two lists, holds and waiters, and every question is answered by looking through them. It shares
//! with the real machine only the types of commands and outcomes.

use std::fmt::Write as _;
use std::time::Duration;

use highwater_lock::{
    Busy, Command, Ended, Epoch, Event, FencingToken, Grant, HoldState, HolderView, Key, KeySet,
    Limits, Operation, Outcome, Rejection, Reply, Timestamp, WaiterId,
};

#[derive(Clone)]
pub(crate) struct Naive {
    limits: Limits,
    now: u64,
    epoch: Epoch,
    /// One above `u64::MAX` when there is no token left.
    next_token: u128,
    holds: Vec<Hold>,
    /// In the order of arrival.
    waiters: Vec<Waiter>,
}

#[derive(Clone)]
struct Hold {
    keys: KeySet,
    /// How many slots the name has, and which one this is.
    slot: Option<(u32, u32)>,
    token: u64,
    granted_at: u64,
    end: u64,
    retained: bool,
}

#[derive(Clone)]
struct Waiter {
    id: WaiterId,
    keys: KeySet,
    slots: Option<u32>,
    deadline: u64,
    lease: u64,
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap()
}

fn share_a_key(one: &KeySet, other: &KeySet) -> bool {
    one.iter().any(|key| other.contains(key))
}

impl Naive {
    pub(crate) fn new(limits: Limits, first_token: FencingToken) -> Self {
        Self {
            limits,
            now: 0,
            epoch: Epoch::new(0),
            next_token: u128::from(first_token.get()),
            holds: Vec::new(),
            waiters: Vec::new(),
        }
    }

    pub(crate) fn apply(&mut self, now: Timestamp, command: Command) -> Outcome {
        let mut events = Vec::new();
        if command.epoch < self.epoch {
            let current = self.epoch;
            let reply = Reply::Rejected(Rejection::StaleEpoch { current });
            return Outcome { reply, events };
        }
        if command.epoch > self.epoch {
            self.epoch = command.epoch;
            for waiter in self.waiters.drain(..) {
                events.push(Event::Dropped(waiter.id));
            }
        }
        self.now = self.now.max(now.as_micros().min(u64::MAX / 2));
        self.time_out(&mut events);
        for _ in 0..self.limits.expiries_per_apply.max(1) {
            self.expire_one(&mut events);
        }
        let reply = self.run(command.operation, &mut events);
        Outcome { reply, events }
    }

    fn time_out(&mut self, events: &mut Vec<Event>) {
        let mut over: Vec<Waiter> = self.waiters.clone();
        over.retain(|waiter| waiter.deadline <= self.now);
        // The sort is stable: equal deadlines stay in the order of arrival.
        over.sort_by_key(|waiter| waiter.deadline);
        self.waiters.retain(|waiter| waiter.deadline > self.now);
        events.extend(over.iter().map(|waiter| Event::TimedOut(waiter.id)));
        self.hand_over(events);
    }

    fn expire_one(&mut self, events: &mut Vec<Event>) {
        let mut over: Vec<&Hold> = self.holds.iter().collect();
        over.retain(|hold| hold.end <= self.now);
        let Some(hold) = over.iter().min_by_key(|hold| (hold.end, hold.token)) else {
            return;
        };
        let (keys, number, retained) = (hold.keys.clone(), hold.token, hold.retained);
        let slot = hold.slot.map(|(_, slot)| slot);
        let token = FencingToken::new(number).unwrap();
        self.holds.retain(|hold| hold.token != number);
        events.push(if retained {
            Event::RetentionEnded { keys, slot, token }
        } else {
            Event::Expired { keys, slot, token }
        });
        self.hand_over(events);
    }

    fn hand_over(&mut self, events: &mut Vec<Event>) {
        while self.next_token <= u128::from(u64::MAX) {
            let next = (0..self.waiters.len()).find(|place| {
                let waiter = &self.waiters[*place];
                let first = self.waiters[..*place]
                    .iter()
                    .all(|earlier| !share_a_key(&earlier.keys, &waiter.keys));
                first && self.is_free(&waiter.keys, waiter.slots)
            });
            let Some(place) = next else { return };
            let waiter = self.waiters.remove(place);
            let grant = self.grant(waiter.id, waiter.keys, waiter.slots, waiter.lease);
            events.push(Event::Granted(grant));
        }
    }

    fn is_free(&self, keys: &KeySet, slots: Option<u32>) -> bool {
        keys.iter().all(|key| {
            let holders = self.holds.iter().filter(|hold| hold.keys.contains(key));
            holders.count() < slots.unwrap_or(1) as usize
        })
    }

    fn grant(&mut self, waiter: WaiterId, keys: KeySet, slots: Option<u32>, lease: u64) -> Grant {
        let slot = slots.map(|count| {
            let mut of_name = self.holds.iter().filter(|hold| hold.keys == keys);
            (0..count)
                .find(|slot| {
                    of_name
                        .clone()
                        .all(|hold| hold.slot != Some((count, *slot)))
                })
                .unwrap_or_else(|| panic!("{:?}", of_name.next().map(|hold| hold.token)))
        });
        let number = u64::try_from(self.next_token).unwrap();
        self.next_token += 1;
        self.holds.push(Hold {
            keys: keys.clone(),
            slot: slots.zip(slot),
            token: number,
            granted_at: self.now,
            end: self.now + lease,
            retained: false,
        });
        Grant {
            waiter,
            keys,
            slot,
            token: FencingToken::new(number).unwrap(),
            granted_at: Timestamp::from_micros(self.now),
            expires: Timestamp::from_micros(self.now + lease),
        }
    }

    fn run(&mut self, operation: Operation, events: &mut Vec<Event>) -> Reply {
        match operation {
            Operation::Tick => Reply::Ticked,
            Operation::Acquire {
                waiter,
                keys,
                wait,
                lease,
            } => self.acquire(waiter, keys, None, wait, lease),
            Operation::AcquireSlot {
                waiter,
                name,
                slots,
                wait,
                lease,
            } => self.acquire(waiter, name.into(), Some(slots.get()), wait, lease),
            Operation::Release {
                keys,
                token,
                minimum_hold,
            } => self.release(&keys, token.get(), minimum_hold, events),
            Operation::Extend { keys, token, lease } => self.extend(&keys, token.get(), lease),
            Operation::Cancel { waiter } => {
                let before = self.waiters.len();
                self.waiters.retain(|other| other.id != waiter);
                self.hand_over(events);
                if self.waiters.len() < before {
                    Reply::Cancelled
                } else {
                    Reply::NotQueued
                }
            }
            Operation::Disconnect { connection } => {
                let before = self.waiters.len();
                self.waiters
                    .retain(|waiter| waiter.id.connection != connection);
                let waiters = u32::try_from(before - self.waiters.len()).unwrap();
                self.hand_over(events);
                Reply::Disconnected { waiters }
            }
            Operation::ForceRelease { key } => self.force_release(&key, events),
        }
    }

    fn acquire(
        &mut self,
        waiter: WaiterId,
        keys: KeySet,
        slots: Option<u32>,
        wait: Duration,
        lease: Duration,
    ) -> Reply {
        if let Some(rejection) = self.rejection(waiter, &keys, slots, wait, lease) {
            return Reply::Rejected(rejection);
        }
        let queued_for = |key: &Key| self.queue_len(key);
        let open = self.is_free(&keys, slots) && keys.iter().all(|key| queued_for(key) == 0);
        if !open && wait.is_zero() {
            return Reply::TimedOut;
        }
        let new = keys
            .iter()
            .filter(|key| self.used_as(key).is_none())
            .count() as u64;
        let new = new * u64::from(slots.unwrap_or(1));
        if self.keys_in_use() + new > u64::from(self.limits.keys) {
            return Reply::Busy(Busy::Keys);
        }
        if open {
            return Reply::Granted(self.grant(waiter, keys, slots, micros(lease)));
        }
        if self.waiters.len() >= self.limits.waiters as usize {
            return Reply::Busy(Busy::Waiters);
        }
        let full = |key: &Key| queued_for(key) >= self.limits.waiters_per_key as usize;
        if keys.iter().any(full) {
            return Reply::Busy(Busy::WaitersPerKey);
        }
        let mine = self.waiters.iter();
        let mine = mine.filter(|other| other.id.connection == waiter.connection);
        if mine.count() >= self.limits.waiters_per_connection as usize {
            return Reply::Busy(Busy::WaitersPerConnection);
        }
        self.waiters.push(Waiter {
            id: waiter,
            keys,
            slots,
            deadline: self.now + micros(wait),
            lease: micros(lease),
        });
        Reply::Queued
    }

    fn rejection(
        &self,
        waiter: WaiterId,
        keys: &KeySet,
        slots: Option<u32>,
        wait: Duration,
        lease: Duration,
    ) -> Option<Rejection> {
        if self.waiters.iter().any(|other| other.id == waiter) {
            return Some(Rejection::DuplicateWaiter);
        }
        if slots.is_some_and(|slots| slots > self.limits.slots) {
            let most = self.limits.slots;
            return Some(Rejection::Slots { most });
        }
        if lease.is_zero() || lease > self.limits.lease {
            let longest = self.limits.lease;
            return Some(Rejection::Lease { longest });
        }
        if wait > self.limits.wait {
            let longest = self.limits.wait;
            return Some(Rejection::Wait { longest });
        }
        for key in keys.iter() {
            let name = key.clone();
            match (slots, self.used_as(key)) {
                (None, Some(Some(_))) => return Some(Rejection::HasSlots { name }),
                (Some(_), Some(None)) => return Some(Rejection::HasNoSlots { name }),
                (Some(asked), Some(Some(used))) if asked != used => {
                    let slots = used.try_into().unwrap();
                    return Some(Rejection::OtherSlots { name, slots });
                }
                _ => {}
            }
        }
        (self.next_token > u128::from(u64::MAX)).then_some(Rejection::TokensExhausted)
    }

    /// The number of slots of a key in use, `Some(None)` for a plain one.
    fn used_as(&self, key: &Key) -> Option<Option<u32>> {
        let held = self.holds.iter().find(|hold| hold.keys.contains(key));
        let queued = self.waiters.iter().find(|waiter| waiter.keys.contains(key));
        match (held, queued) {
            (Some(hold), _) => Some(hold.slot.map(|(count, _)| count)),
            (None, Some(waiter)) => Some(waiter.slots),
            (None, None) => None,
        }
    }

    fn keys_in_use(&self) -> u64 {
        let held = self.holds.iter().flat_map(|hold| hold.keys.iter());
        let queued = self.waiters.iter().flat_map(|waiter| waiter.keys.iter());
        let mut keys: Vec<&Key> = held.chain(queued).collect();
        keys.sort();
        keys.dedup();
        let weight = |key: &&Key| u64::from(self.used_as(key).unwrap().unwrap_or(1));
        keys.iter().map(weight).sum()
    }

    fn release(
        &mut self,
        keys: &KeySet,
        token: u64,
        minimum_hold: Duration,
        events: &mut Vec<Event>,
    ) -> Reply {
        if minimum_hold > self.limits.minimum_hold {
            let longest = self.limits.minimum_hold;
            return Reply::Rejected(Rejection::MinimumHold { longest });
        }
        let now = self.now;
        let running = |hold: &&mut Hold| hold.token == token && hold.end > now;
        let Some(hold) = self.holds.iter_mut().find(running) else {
            return Reply::NotHeld;
        };
        if hold.keys != *keys {
            return Reply::GroupMismatch;
        }
        if hold.retained {
            return Reply::Released;
        }
        let until = hold.granted_at + micros(minimum_hold);
        if until > now {
            hold.retained = true;
            hold.end = until;
        } else {
            self.holds.retain(|hold| hold.token != token);
            self.hand_over(events);
        }
        Reply::Released
    }

    fn extend(&mut self, keys: &KeySet, token: u64, lease: Duration) -> Reply {
        if lease.is_zero() || lease > self.limits.lease {
            let longest = self.limits.lease;
            return Reply::Rejected(Rejection::Lease { longest });
        }
        let now = self.now;
        let running = |hold: &&mut Hold| hold.token == token && hold.end > now;
        match self.holds.iter_mut().find(running) {
            None => Reply::NotHeld,
            Some(hold) if hold.keys != *keys => Reply::GroupMismatch,
            Some(hold) if hold.retained => Reply::NotHeld,
            Some(hold) => {
                hold.end = hold.end.max(now + micros(lease));
                let expires = Timestamp::from_micros(hold.end);
                Reply::Extended { expires }
            }
        }
    }

    fn force_release(&mut self, key: &Key, events: &mut Vec<Event>) -> Reply {
        if self.next_token > u128::from(u64::MAX) {
            return Reply::Rejected(Rejection::TokensExhausted);
        }
        let burned = FencingToken::new(u64::try_from(self.next_token).unwrap()).unwrap();
        self.next_token += 1;
        let ended = self.holders(key).into_iter().map(|view| Ended {
            keys: view.keys,
            slot: view.slot,
            token: view.token,
        });
        let ended = ended.collect();
        self.holds.retain(|hold| !hold.keys.contains(key));
        self.hand_over(events);
        Reply::ForceReleased { burned, ended }
    }

    pub(crate) fn holders(&self, key: &Key) -> Vec<HolderView> {
        let mut holds: Vec<&Hold> = self.holds.iter().collect();
        holds.retain(|hold| hold.keys.contains(key));
        holds.sort_by_key(|hold| hold.slot);
        let view = |hold: &Hold| {
            let end = Timestamp::from_micros(hold.end);
            HolderView {
                keys: hold.keys.clone(),
                slot: hold.slot.map(|(_, slot)| slot),
                token: FencingToken::new(hold.token).unwrap(),
                granted_at: Timestamp::from_micros(hold.granted_at),
                state: match hold.retained {
                    true => HoldState::Retained { until: end },
                    false => HoldState::Held { expires: end },
                },
            }
        };
        holds.into_iter().map(view).collect()
    }

    pub(crate) fn queue_len(&self, key: &Key) -> usize {
        let waiters = self.waiters.iter();
        waiters.filter(|waiter| waiter.keys.contains(key)).count()
    }

    /// How many slots this name has, if it is in use with slots.
    pub(crate) fn slots(&self, key: &Key) -> Option<u32> {
        let held = self.holds.iter().filter(|hold| hold.keys.contains(key));
        let held = held.filter_map(|hold| hold.slot.map(|(count, _)| count));
        let queued = self.waiters.iter();
        let queued = queued.filter(|waiter| waiter.keys.contains(key));
        held.chain(queued.filter_map(|waiter| waiter.slots)).next()
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let ends = self.holds.iter().map(|hold| hold.end);
        let deadlines = self.waiters.iter().map(|waiter| waiter.deadline);
        ends.chain(deadlines).min().map(Timestamp::from_micros)
    }

    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        let ends = self.holds.iter().map(|hold| hold.end);
        ends.max().map(Timestamp::from_micros)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn next_token(&self) -> Option<FencingToken> {
        u64::try_from(self.next_token)
            .ok()
            .and_then(FencingToken::new)
    }

    /// Keys and tokens of all holds, oldest grant first.
    pub(crate) fn held(&self) -> Vec<(KeySet, FencingToken)> {
        let pair = |hold: &Hold| (hold.keys.clone(), FencingToken::new(hold.token).unwrap());
        self.holds.iter().map(pair).collect()
    }

    pub(crate) fn held_keys(&self) -> usize {
        self.holds.iter().map(|hold| hold.keys.len()).sum()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// The state without what does not matter for its future: tokens by rank, times from now.
    pub(crate) fn shape(&self) -> String {
        let mut shape = String::new();
        for hold in &self.holds {
            let age = self.now - hold.granted_at;
            let left = i128::from(hold.end) - i128::from(self.now);
            let (keys, slot, retained) = (&hold.keys, hold.slot, hold.retained);
            write!(shape, "{keys} {slot:?} {retained} {age} {left};").unwrap();
        }
        for waiter in &self.waiters {
            let left = waiter.deadline - self.now;
            let (id, keys, slots, lease) = (waiter.id, &waiter.keys, waiter.slots, waiter.lease);
            let (connection, request) = (id.connection, id.request);
            write!(
                shape,
                "{connection}.{request} {keys} {slots:?} {left} {lease};"
            )
            .unwrap();
        }
        shape
    }
}

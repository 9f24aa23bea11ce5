//! Requests that cannot be run yet, because the disk does not allow it or old leases may go on.
//!
//! They stand here in the order of arrival, before the lock machine knows of them, each until a
//! moment at which it is answered without being run. Who decides that is [`gate`](super::gate).

use std::collections::{BTreeMap, BTreeSet};

use highwater_lock::{ConnectionId, Key, Operation, RequestId, Timestamp, WaiterId};

/// A request that waits outside of the machine.
#[derive(Debug)]
pub(super) struct Entry {
    /// Who asks.
    pub(super) waiter: WaiterId,
    pub(super) operation: Operation,
    /// When it is answered at the latest.
    pub(super) until: Timestamp,
}

/// See the module's description. Who bounds it is who adds to it.
#[derive(Debug, Default)]
pub(super) struct Parked {
    entries: BTreeMap<u64, Entry>,
    arrivals: u64,
    by_waiter: BTreeMap<WaiterId, u64>,
    deadlines: BTreeSet<(Timestamp, u64)>,
    /// How many acquires stand here for a key.
    keys: BTreeMap<Key, usize>,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn of_connection(&self, connection: ConnectionId) -> usize {
        self.by_waiter.range(all_of(connection)).count()
    }

    /// The most acquires that stand here for one of these keys.
    pub(super) fn most_for(&self, keys: &[Key]) -> usize {
        let counts = keys.iter().filter_map(|key| self.keys.get(key));
        counts.copied().max().unwrap_or_default()
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Adds one behind all others.
    pub(super) fn push(&mut self, entry: Entry) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.by_waiter.insert(entry.waiter, arrival);
        self.deadlines.insert((entry.until, arrival));
        for key in acquired(&entry.operation) {
            *self.keys.entry(key.clone()).or_default() += 1;
        }
        self.entries.insert(arrival, entry);
    }

    /// Takes out the acquire of this waiter.
    pub(super) fn take_acquire(&mut self, waiter: WaiterId) -> Option<Entry> {
        let arrival = *self.by_waiter.get(&waiter)?;
        let is_acquire = !acquired(&self.entries.get(&arrival)?.operation).is_empty();
        is_acquire.then(|| self.take(arrival)).flatten()
    }

    /// Forgets everything of a connection.
    pub(super) fn remove_connection(&mut self, connection: ConnectionId) {
        let range = self.by_waiter.range(all_of(connection));
        let arrivals: Vec<u64> = range.map(|(_, arrival)| *arrival).collect();
        for arrival in arrivals {
            self.take(arrival);
        }
    }

    /// Takes out one whose time is over.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<Entry> {
        let (until, arrival) = *self.deadlines.first()?;
        if until > now {
            return None;
        }
        self.take(arrival)
    }

    /// Takes out all, in the order of arrival.
    pub(super) fn take_all(&mut self) -> Vec<Entry> {
        let arrivals = self.arrivals;
        let all = std::mem::take(self);
        self.arrivals = arrivals;
        all.entries.into_values().collect()
    }

    fn take(&mut self, arrival: u64) -> Option<Entry> {
        let entry = self.entries.remove(&arrival)?;
        self.by_waiter.remove(&entry.waiter);
        self.deadlines.remove(&(entry.until, arrival));
        for key in acquired(&entry.operation) {
            if let Some(count) = self.keys.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.keys.remove(key);
                }
            }
        }
        Some(entry)
    }
}

/// The keys of an acquire, a name with slots being one; none of anything else.
pub(super) fn acquired(operation: &Operation) -> &[Key] {
    match operation {
        Operation::Acquire { keys, .. } => keys,
        Operation::AcquireSlot { name, .. } => std::slice::from_ref(name),
        _ => &[],
    }
}

fn all_of(connection: ConnectionId) -> std::ops::RangeInclusive<WaiterId> {
    let request = |number| WaiterId::new(connection, RequestId::new(number));
    request(0)..=request(u64::MAX)
}

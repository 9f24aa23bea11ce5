//! Requests that cannot be run yet, because the disk does not allow it or old leases may go on.
//!
//! They stand here in the order of arrival, before the lock machine knows of them, each until a
//! moment at which it is answered without being run. Who decides that is [`gate`](super::gate).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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

/// Where a request stands that was parked before and is judged again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) arrival: u64,
    pub(super) until: Timestamp,
}

/// See the module's description. Who bounds it is who adds to it.
#[derive(Debug, Default)]
pub(super) struct Parked {
    entries: BTreeMap<u64, Entry>,
    arrivals: u64,
    by_waiter: BTreeMap<WaiterId, u64>,
    deadlines: BTreeSet<(Timestamp, u64)>,
    /// The acquires that stand here for a key.
    keys: BTreeMap<Key, BTreeSet<u64>>,
    /// All that are no acquires.
    prolongations: BTreeSet<u64>,
    connections: BTreeMap<ConnectionId, usize>,
    /// The arrival from which on entries are still to be judged again.
    round: Option<u64>,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn of_connection(&self, connection: ConnectionId) -> usize {
        self.connections
            .get(&connection)
            .copied()
            .unwrap_or_default()
    }

    /// The most acquires that stand here for one of these keys.
    pub(super) fn most_for(&self, keys: &[Key]) -> usize {
        let counts = keys.iter().filter_map(|key| self.keys.get(key));
        counts.map(BTreeSet::len).max().unwrap_or_default()
    }

    /// Whether an acquire stands here for one of these keys that came before this place, or at all.
    pub(super) fn is_behind(&self, place: Option<Place>, keys: &[Key]) -> bool {
        let own = place.map_or(self.arrivals, |place| place.arrival);
        let mut firsts = keys.iter().filter_map(|key| self.keys.get(key)?.first());
        firsts.any(|first| *first < own)
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// Adds one behind all others, or puts one back into its place.
    pub(super) fn push(&mut self, place: Option<Place>, entry: Entry) {
        let arrival = place.map_or(self.arrivals, |place| place.arrival);
        self.arrivals = self.arrivals.max(arrival + 1);
        self.by_waiter.insert(entry.waiter, arrival);
        self.deadlines.insert((entry.until, arrival));
        let connection = entry.waiter.connection;
        *self.connections.entry(connection).or_default() += 1;
        let keys = acquired(&entry.operation);
        if keys.is_empty() {
            self.prolongations.insert(arrival);
        }
        for key in keys {
            self.keys.entry(key.clone()).or_default().insert(arrival);
        }
        self.entries.insert(arrival, entry);
    }

    /// From now on everything that is here has to be judged again, from the first one on. A record
    /// that begins a round anew lets those in who kept the last one from its end.
    pub(super) fn begin_round(&mut self) {
        self.round = Some(0);
    }

    pub(super) fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Takes out the next one to judge again, and its place; acquires only if they
    /// are wanted.
    pub(super) fn take_next(&mut self, acquires_wanted: bool) -> Option<(Place, Entry)> {
        let from = self.round?;
        let arrival = match acquires_wanted {
            true => self
                .entries
                .range(from..)
                .next()
                .map(|(arrival, _)| *arrival),
            false => self.prolongations.range(from..).next().copied(),
        };
        self.round = arrival.map(|arrival| arrival + 1);
        let arrival = arrival?;
        let entry = self.take(arrival)?;
        let until = entry.until;
        Some((Place { arrival, until }, entry))
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
        self.prolongations.remove(&arrival);
        let connection = entry.waiter.connection;
        if let Some(count) = self.connections.get_mut(&connection) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(&connection);
            }
        }
        for key in acquired(&entry.operation) {
            if let Some(arrivals) = self.keys.get_mut(key) {
                arrivals.remove(&arrival);
                if arrivals.is_empty() {
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

/// The same operation; an acquire that has waited waits for the rest of its time.
pub(super) fn with_wait_until(operation: Operation, now: Timestamp, until: Timestamp) -> Operation {
    let rest = |wait: Duration| match wait.is_zero() {
        true => wait,
        false => until.saturating_since(now),
    };
    match operation {
        Operation::Acquire {
            waiter,
            keys,
            wait,
            lease,
        } => Operation::Acquire {
            waiter,
            keys,
            wait: rest(wait),
            lease,
        },
        Operation::AcquireSlot {
            waiter,
            name,
            slots,
            wait,
            lease,
        } => Operation::AcquireSlot {
            waiter,
            name,
            slots,
            wait: rest(wait),
            lease,
        },
        other => other,
    }
}

fn all_of(connection: ConnectionId) -> std::ops::RangeInclusive<WaiterId> {
    let request = |number| WaiterId::new(connection, RequestId::new(number));
    request(0)..=request(u64::MAX)
}

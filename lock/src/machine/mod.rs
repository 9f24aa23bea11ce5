//! The state machine: every grant, release, extension and expiry is decided here.
//!
//! This file owns the order of things within one command, and the queries. How requests queue is
//! in [`queues`], how an ownership begins and ends in [`ownership`], the tables behind them in
//! [`names`], [`holds`] and [`waiters`], what those are made of in [`slab`], [`index`], [`rows`],
//! [`list`] and [`timers`], what a client may ask of a key in [`status`], the walk over all names
//! in [`listing`], and the invariants in [`check`].

mod check;
mod holds;
mod index;
mod list;
mod listing;
mod names;
mod ownership;
mod queues;
mod rows;
mod slab;
mod slots;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod timers;
mod waiters;

use core::time::Duration;

use alloc::vec::Vec;

pub use listing::NameView;
pub use snapshot::RestoreError;
pub use status::KeyStatus;

use self::holds::{Hold, Holds};
use self::names::{Kind, Names};
use self::queues::Request;
use self::slab::Id;
use self::waiters::Waiters;
use crate::{
    Command, Epoch, Event, FencingToken, HashSeed, Key, KeySet, Limits, Operation, Outcome,
    Rejection, Reply, Timestamp,
};

/// All locks of one domain, and everything that decides about them.
///
/// Deterministic: the same commands with the same stamps give the same outcomes and the same
/// [`snapshot`](Machine::snapshot), on every machine with the same [`Limits`]. The cost of a
/// command grows with what the command itself removes or ends, and never with the number of keys
/// held or of requests queued, except for how far away their memory is. (Three things can add a
/// logarithm: deadlines that come in no order at all, when each lease is shorter than the last;
/// many queued requests of one connection; and many slots of one name.)
///
/// ```
/// use core::time::Duration;
/// use highwater_lock::{
///     Command, ConnectionId, Epoch, FencingToken, Key, Limits, Machine, Operation, Reply,
///     RequestId, Timestamp, WaiterId,
/// };
///
/// let mut machine = Machine::new(Limits::default(), FencingToken::MIN);
/// let keys = Key::new("stock/apple")?.into();
/// let acquire = Operation::Acquire {
///     waiter: WaiterId::new(ConnectionId::new(1), RequestId::new(1)),
///     keys,
///     wait: Duration::ZERO,
///     lease: Duration::from_secs(10),
/// };
/// let outcome = machine.apply(Timestamp::ZERO, Command::new(Epoch::new(1), acquire));
/// let Reply::Granted(grant) = outcome.reply else { panic!("the key was free") };
/// assert_eq!(grant.token, FencingToken::MIN);
/// assert_eq!(machine.next_deadline(), Some(grant.expires));
/// # Ok::<(), highwater_lock::KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Machine {
    limits: Limits,
    now: Timestamp,
    epoch: Epoch,
    /// The token of the next ownership; none when the last one is given out.
    next_token: Option<FencingToken>,
    names: Names,
    holds: Holds,
    held_keys: usize,
    waiters: Waiters,
}

/// One ownership, as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// All the keys held with it, or the one name of a slot.
    pub keys: KeySet,
    /// Which slot, for an N-slot lock.
    pub slot: Option<u32>,
    /// Its token.
    pub token: FencingToken,
    /// When it began.
    pub granted_at: Timestamp,
    /// Whether it is still somebody's, and until when.
    pub state: HoldState,
}

/// Whether an ownership is still somebody's, and until when.
///
/// A moment that is past means that the end is not decided yet: for others the keys are still
/// held, while the owner can neither extend nor release them any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// Somebody holds it, and may extend or release it.
    Held {
        /// When the lease ends.
        expires: Timestamp,
    },
    /// It is released, and kept from everybody until its minimum hold is over.
    Retained {
        /// When that is.
        until: Timestamp,
    },
}

impl HoldState {
    /// When it ends by itself.
    pub const fn deadline(self) -> Timestamp {
        match self {
            Self::Held { expires } => expires,
            Self::Retained { until } => until,
        }
    }
}

impl Machine {
    /// A machine in which nothing is held, at time zero and epoch zero.
    ///
    /// The first grant has the token `first_token`. In a domain that gave out tokens before, that
    /// must be higher than any of them.
    pub fn new(limits: Limits, first_token: FencingToken) -> Self {
        Self::seeded(limits, first_token, HashSeed::default())
    }

    /// [`Machine::new`] for keys that hostile clients choose; see [`HashSeed`]. Replicas need not
    /// have the same seed.
    pub fn seeded(limits: Limits, first_token: FencingToken, seed: HashSeed) -> Self {
        Self {
            limits,
            now: Timestamp::ZERO,
            epoch: Epoch::default(),
            next_token: Some(first_token),
            names: Names::new(seed),
            holds: Holds::new(seed),
            held_keys: 0,
            waiters: Waiters::new(seed),
        }
    }

    /// Applies one command at `now`. Same history in, same state and outcome out.
    ///
    /// In this order:
    /// 1. A command of an older epoch is rejected and changes nothing at all. One of a newer epoch
    ///    removes all waiters.
    /// 2. The machine's time becomes `now`, unless it is later already.
    /// 3. Waiters whose wait is over time out, and whoever can have a lock by that gets it.
    /// 4. Holds whose time is over end, oldest first, each with its hand-over; at most
    ///    [`Limits::expiries_per_apply`] of them.
    /// 5. The operation runs, with its hand-over.
    ///
    /// So a waiter whose wait is over is never granted, a hold whose time is over is never
    /// extended or released, even if its end is not decided yet, and a free key never waits for a
    /// later command to reach the head of its queue.
    pub fn apply(&mut self, now: Timestamp, command: Command) -> Outcome {
        let mut events = Vec::new();
        let current = self.epoch;
        if command.epoch < current {
            let reply = Reply::Rejected(Rejection::StaleEpoch { current });
            return Outcome { reply, events };
        }
        if command.epoch > current {
            self.epoch = command.epoch;
            self.drop_waiters(&mut events);
        }
        // The stamp may lag: proposals race. Time in the machine must not run backwards.
        self.now = self.now.max(now.min(Timestamp::HORIZON));
        self.time_out_waiters(&mut events);
        self.expire_holds(&mut events);
        let reply = self.run(command.operation, &mut events);
        Outcome { reply, events }
    }

    fn run(&mut self, operation: Operation, events: &mut Vec<Event>) -> Reply {
        match operation {
            Operation::Tick => Reply::Ticked,
            Operation::Acquire {
                waiter,
                keys,
                wait,
                lease,
            } => self.acquire(Request {
                waiter,
                keys,
                kind: Kind::Plain,
                wait,
                lease,
            }),
            Operation::AcquireSlot {
                waiter,
                name,
                slots,
                wait,
                lease,
            } => self.acquire(Request {
                waiter,
                keys: name.into(),
                kind: Kind::Slots(slots),
                wait,
                lease,
            }),
            Operation::Release {
                keys,
                token,
                minimum_hold,
            } => self.release(&keys, token, minimum_hold, events),
            Operation::Extend { keys, token, lease } => self.extend(&keys, token, lease),
            Operation::Cancel { waiter } => self.cancel(waiter, events),
            Operation::Disconnect { connection } => self.disconnect(connection, events),
            Operation::ForceRelease { key } => self.force_release(&key, events),
        }
    }

    /// For how long this operation could make something be held: the whole lease of an acquire that
    /// would be granted or queued, and what an extension or a release with a minimum hold would
    /// leave to run, counted from [`Machine::now`]. Zero for an operation that prolongs nothing.
    /// Changes nothing itself, and takes the machine as it is: a tick before it brings it up to
    /// date.
    ///
    /// # Errors
    /// The reply to an operation that would change nothing but the time.
    pub fn would_hold(&self, operation: &Operation) -> Result<Duration, Reply> {
        let rest = |until: Timestamp| until.saturating_since(self.now);
        let (waiter, keys, kind, wait, lease) = match operation {
            Operation::Acquire {
                waiter,
                keys,
                wait,
                lease,
            } => (waiter, keys.clone(), Kind::Plain, wait, lease),
            Operation::AcquireSlot {
                waiter,
                name,
                slots,
                wait,
                lease,
            } => (
                waiter,
                name.clone().into(),
                Kind::Slots(*slots),
                wait,
                lease,
            ),
            Operation::Release {
                keys,
                token,
                minimum_hold,
            } => {
                let checked = self.check_release(keys, *token, *minimum_hold);
                return checked.map(|(_, until)| rest(until));
            }
            Operation::Extend { keys, token, lease } => {
                let checked = self.check_extend(keys, *token, *lease);
                return checked.map(|(_, expires)| rest(expires));
            }
            _ => return Ok(Duration::ZERO),
        };
        let request = Request {
            waiter: *waiter,
            keys,
            kind,
            wait: *wait,
            lease: *lease,
        };
        self.check_acquire(&request).map(|_| *lease)
    }

    /// Earliest moment at which a tick would change anything, or `None` if time alone changes
    /// nothing. It is past when one command could not end everything that was due: tick again.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        match (self.waiters.next_deadline(), self.holds.next_deadline()) {
            (Some(wait), Some(hold)) => Some(wait.min(hold)),
            (wait, hold) => wait.or(hold),
        }
    }

    /// The moment by which everything that is held ends by itself, or `None` if nothing is held. It
    /// is past when the end of the last hold is not decided yet. Costs more than other questions the
    /// more lengths of lease are in use.
    pub fn held_until(&self) -> Option<Timestamp> {
        self.holds.last_deadline()
    }

    /// What holds this key; for an N-slot name, its lowest taken slot.
    pub fn holder(&self, key: &Key) -> Option<HolderView> {
        let owners = self.names.get(key)?.owners();
        self.view(*owners.first()?)
    }

    /// All that holds this key: at most one, or the taken slots of a name in slot order.
    pub fn holders(&self, key: &Key) -> Vec<HolderView> {
        let owners = self.names.get(key).map(|name| name.owners());
        let owners = owners.unwrap_or_default();
        owners.iter().filter_map(|id| self.view(*id)).collect()
    }

    fn view(&self, id: Id) -> Option<HolderView> {
        self.holds.get(id).map(Hold::view)
    }

    /// How many requests queue for this key.
    pub fn queue_len(&self, key: &Key) -> usize {
        self.names.get(key).map_or(0, |name| name.queue_len())
    }

    /// How many keys are held, each taken slot counted as one.
    pub fn held_keys(&self) -> usize {
        self.held_keys
    }

    /// How many ownerships there are; one may hold several keys.
    pub fn holds(&self) -> usize {
        self.holds.len()
    }

    /// How many requests are queued.
    pub fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// The machine's time: the highest stamp it has seen.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The newest epoch it has seen.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The token that the next grant or force-release takes, or `None` if all are given out.
    pub fn next_token(&self) -> Option<FencingToken> {
        self.next_token
    }

    /// The limits it keeps to.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

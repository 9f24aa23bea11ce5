//! What the disk allows: how many tokens may still be given out, and for how long.
//!
//! Plain numbers, kept beside the lock machine under the same mutex. The disk knows a bound above
//! all tokens and the longest lease that may be running; both are raised ahead of need, so that
//! giving out a lock does not wait for the disk. Decides when to write what; does not write.

use std::time::Duration;

use highwater_lock::{Domain, FencingToken, Limits, Machine, Timestamp};

use super::StorageError;
use super::disk::Disk;
use super::record::Record;
use super::store::Store;

/// What happens to leases that were given out before the start and may still be running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterRestart {
    /// Nothing is granted until all of them are over, counted from the start on the monotonic
    /// clock. The server does not know which keys they hold, so this concerns every key.
    #[default]
    WaitForOldLeases,
    /// Locks are granted at once. An old holder may still be working, and only the fence keeps
    /// its writes out: choose this if every write that matters is fenced.
    TrustFencing,
}

/// See the module's description. Lease time begins at zero with the start of the server.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    /// The last record that is durable.
    durable: Record,
    /// How many tokens are reserved at a time.
    block: u64,
    /// The longest lease that was given since the start or waits to be, rounded up.
    promised: Duration,
    /// When the leases from before the start are over.
    old_leases_end: Timestamp,
    after_restart: AfterRestart,
    /// The record that may be durable at any moment.
    writing: Option<Record>,
    counts: StorageCounts,
}

/// What a start knows of those before it, and what it was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) domain: Domain,
    /// Above all tokens that were given out in the domain.
    pub(crate) first_token: FencingToken,
    /// For how long leases of earlier starts may go on.
    pub(crate) old_leases: Duration,
    pub(crate) after_restart: AfterRestart,
    /// How many tokens are reserved at a time.
    pub(crate) block: u64,
}

impl Start {
    /// A start on a data directory that holds `found`; `new` makes a domain and its first token if
    /// it holds nothing.
    pub(crate) fn new<E>(
        found: Option<Record>,
        new: impl FnOnce() -> Result<(Domain, FencingToken), E>,
        at_least: Option<FencingToken>,
        after_restart: AfterRestart,
        block: u64,
    ) -> Result<Self, E> {
        let (domain, first_token) = match found {
            Some(found) => (found.domain, found.bound),
            None => new()?,
        };
        Ok(Self {
            domain,
            first_token: at_least.map_or(first_token, |least| least.max(first_token)),
            old_leases: found.map_or(Duration::ZERO, |found| found.horizon),
            after_restart,
            block,
        })
    }
}

/// What durability has cost since the start. All zero for a server in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageCounts {
    /// Records that were made durable.
    pub records: u64,
    /// Syncs of files and directories, which is what takes the time.
    pub syncs: u64,
    /// Blocks of tokens that were reserved.
    pub blocks: u64,
}

impl Reserve {
    /// Stores that this start begins, with a first block of tokens. Waits for the disk.
    pub(crate) fn begin<D: Disk>(start: Start, store: &mut Store<D>) -> Result<Self, StorageError> {
        let durable = Record {
            domain: start.domain,
            bound: bound(start.first_token.get().saturating_add(start.block)),
            horizon: start.old_leases,
            closed: false,
        };
        store.commit(&durable)?;
        Ok(Self {
            old_leases_end: Timestamp::ZERO.saturating_add(start.old_leases),
            durable,
            block: start.block,
            promised: Duration::ZERO,
            after_restart: start.after_restart,
            writing: None,
            counts: StorageCounts {
                records: 1,
                syncs: store.syncs(),
                blocks: 1,
            },
        })
    }

    /// Until when nothing may be granted after the start, if there is anything to wait for.
    pub(crate) fn held_back_until(&self) -> Option<Timestamp> {
        let waits = self.after_restart == AfterRestart::WaitForOldLeases;
        let end = self.old_leases_end;
        (waits && end > Timestamp::ZERO).then_some(end)
    }

    /// Takes note that a lock is or will be held for this long, of at most `longest`.
    pub(crate) fn promise(&mut self, span: Duration, longest: Duration) {
        let rounded = rounded_up(span).min(longest).max(span);
        self.promised = self.promised.max(rounded);
    }

    /// Whether a lock may be held for this long, if that is [promised](Reserve::promise) with it.
    /// If not, it will be worth asking again after the next record with that promise.
    pub(crate) fn covers(&self, span: Duration) -> bool {
        // What is being written may promise less, when older leases have ended by now.
        let written = self.writing.iter().chain([&self.durable]);
        written.into_iter().all(|record| span <= record.horizon)
    }

    /// How many acquires may still be let in. Each of them takes at most one token, now or when
    /// its turn comes, so one is set aside for everybody who waits.
    pub(crate) fn room(&self, machine: &Machine) -> u64 {
        let Some(next) = machine.next_token() else {
            return 0;
        };
        let left = self.durable.bound.get().saturating_sub(next.get());
        left.saturating_sub(machine.waiters() as u64)
    }

    /// Whether the tokens are at their end, so that no record can make room.
    pub(crate) fn is_used_up(&self, machine: &Machine) -> bool {
        self.durable.bound >= END_OF_TOKENS && self.room(machine) == 0
    }

    /// Whether there is something to write that is not being written.
    pub(crate) fn wants(&self, now: Timestamp, machine: &Machine) -> bool {
        self.writing.is_none() && self.is_low(now, machine)
    }

    /// The record to write now, if there is one. Has to be followed by [`Reserve::stored`].
    pub(crate) fn next_record(&mut self, now: Timestamp, machine: &Machine) -> Option<Record> {
        if !self.wants(now, machine) {
            return None;
        }
        let taken = machine.next_token().unwrap_or(END_OF_TOKENS).get();
        let taken = taken.saturating_add(machine.waiters() as u64);
        let from = self.durable.bound.get().max(taken);
        let room = self.room(machine);
        let bound = match room < self.low() {
            true => bound(from.saturating_add(self.block)),
            false => self.durable.bound,
        };
        self.writing = Some(Record {
            bound,
            horizon: self.horizon(now),
            ..self.durable
        });
        self.writing
    }

    /// The record of an orderly end, after which nothing is granted or extended: exactly what was
    /// given out, and how long it may still go on.
    pub(crate) fn last_record(&self, now: Timestamp, machine: &Machine) -> Record {
        let held_until = machine.held_until().unwrap_or(now);
        let until = held_until.max(self.old_leases_end);
        Record {
            domain: self.durable.domain,
            bound: machine.next_token().unwrap_or(END_OF_TOKENS),
            horizon: until.saturating_since(now),
            closed: true,
        }
    }

    /// Takes note of a record that is durable now.
    pub(crate) fn stored(&mut self, record: Record, syncs: u64) {
        self.counts.records += 1;
        self.counts.blocks += u64::from(record.bound > self.durable.bound);
        self.counts.syncs = syncs;
        self.writing = None;
        self.durable = record;
    }

    pub(crate) fn counts(&self) -> StorageCounts {
        self.counts
    }

    fn is_low(&self, now: Timestamp, machine: &Machine) -> bool {
        let grows = self.durable.bound < END_OF_TOKENS;
        (grows && self.room(machine) < self.low()) || self.horizon(now) > self.durable.horizon
    }

    /// The room below which the next block is reserved.
    fn low(&self) -> u64 {
        self.block.div_ceil(2)
    }

    /// For how long leases may be running: those of this run, and older ones until they are over.
    fn horizon(&self, now: Timestamp) -> Duration {
        match now < self.old_leases_end {
            // It is counted from the next start, so nothing may be taken off.
            true => self.promised.max(self.old_horizon()),
            false => self.promised,
        }
    }

    fn old_horizon(&self) -> Duration {
        self.old_leases_end.saturating_since(Timestamp::ZERO)
    }
}

/// The longest span that limits allow to keep a key by, if this one is legal.
pub(crate) fn legal_lease(lease: Duration, limits: &Limits) -> bool {
    !lease.is_zero() && lease <= limits.lease.min(Limits::LONGEST)
}

/// A span rounded up so that few different ones are ever stored, and by less than a quarter of it
/// where it is longer than eight seconds: what is stored is waited for after a crash.
pub(super) fn rounded_up(span: Duration) -> Duration {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    let step = (seconds.next_power_of_two() / 8).max(1);
    Duration::from_secs(seconds.next_multiple_of(step))
}

fn bound(number: u64) -> FencingToken {
    let number = number.min(END_OF_TOKENS.get());
    FencingToken::new(number).expect("a first token and more is not zero")
}

/// The bound above all tokens that a database can store.
pub(crate) const END_OF_TOKENS: FencingToken = FencingToken::new(1 << 63).expect("it is not zero");
/// What a block is by default: as much as the clock makes of the start time in a second, and far
/// more than is given out while a disk syncs.
pub(crate) const DEFAULT_BLOCK: u32 = 1 << 20;

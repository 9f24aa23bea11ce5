//! Any bytes are a history, and any history keeps the rules. A fuzz target: it panics on a finding.

use std::num::NonZeroU32;
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Epoch, FencingToken, HashSeed, Key, KeySet, Limits, Machine, Operation,
    RequestId, Timestamp, WaiterId,
};

use crate::naive::Naive;
use crate::witness::Witness;

/// All times are multiples of this, so that deadlines meet often.
const UNIT: Duration = Duration::from_millis(500);
const LONGEST: usize = 400;

/// The first byte chooses the limits; from then on each command takes a few bytes.
pub(crate) fn core(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let mut history = History::new(*kind, bytes);
    for _ in 0..LONGEST {
        if history.bytes.is_empty() {
            break;
        }
        history.step();
    }
    history.compare();
}

struct History<'a> {
    bytes: &'a [u8],
    limits: Limits,
    machine: Machine,
    /// With another seed, and from a snapshot now and then.
    twin: Machine,
    naive: Naive,
    witness: Witness,
    clock: Duration,
    epoch: u64,
}

impl<'a> History<'a> {
    fn new(kind: u8, bytes: &'a [u8]) -> Self {
        let mut limits = Limits {
            expiries_per_apply: 1 + u32::from(kind % 4),
            lease: UNIT * 100,
            wait: UNIT * 50,
            minimum_hold: UNIT * 50,
            slots: 5,
            ..Limits::default()
        };
        if kind & 16 != 0 {
            limits.keys = 7;
            limits.waiters = 6;
            limits.waiters_per_key = 3;
            limits.waiters_per_connection = 2;
        }
        let left = if kind & 32 == 0 { u64::MAX - 1 } else { 9 };
        let first = FencingToken::new(u64::MAX - left).unwrap();
        Self {
            bytes,
            machine: Machine::new(limits.clone(), first),
            twin: Machine::seeded(limits.clone(), first, HashSeed::from_bytes([kind; 16])),
            naive: Naive::new(limits.clone(), first),
            limits,
            witness: Witness::default(),
            clock: Duration::ZERO,
            epoch: 1,
        }
    }

    fn step(&mut self) {
        let (now, epoch) = self.stamp();
        let Some(operation) = self.operation() else {
            self.restart();
            return;
        };
        let command = Command::new(epoch, operation);
        let outcome = self.machine.apply(now, command.clone());
        let expected = self.naive.apply(now, command.clone());
        assert_eq!(outcome, expected, "{command:?} at {now}");
        self.machine.assert_valid();
        assert_eq!(
            self.twin.apply(now, command.clone()),
            expected,
            "with another seed"
        );
        self.witness.observe(&command, &outcome, &self.machine);
        assert_eq!(self.machine.next_deadline(), self.naive.next_deadline());
    }

    fn restart(&mut self) {
        self.compare();
        let bytes = self.machine.snapshot();
        let seed = HashSeed::from_bytes([self.byte(); 16]);
        let restored = Machine::restore_seeded(&bytes, self.limits.clone(), seed);
        self.twin = restored.expect("a machine reads its own snapshot");
        self.compare();
    }

    fn compare(&self) {
        assert_eq!(self.twin.snapshot(), self.machine.snapshot());
        self.twin.assert_valid();
        assert_eq!(self.machine.holds(), self.naive.held().len());
        assert_eq!(self.machine.held_keys(), self.naive.held_keys());
        assert_eq!(self.machine.waiters(), self.naive.waiting());
        for key in keys(0xff).iter() {
            assert_eq!(self.machine.holders(key), self.naive.holders(key));
            assert_eq!(self.machine.queue_len(key), self.naive.queue_len(key));
        }
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    fn stamp(&mut self) -> (Timestamp, Epoch) {
        let byte = self.byte();
        if byte & 1 != 0 {
            self.clock += UNIT * u32::from(byte >> 3 & 7);
        }
        let mut now = Timestamp::ZERO.saturating_add(self.clock);
        // A stamp that lags behind, or leaps over everything.
        if byte & 6 == 2 {
            now = Timestamp::from_micros(now.as_micros().saturating_sub(1_700_000));
        }
        if byte == 0xff {
            self.clock += UNIT * 200;
        }
        if byte & 0xc6 == 0x46 {
            self.epoch += 1;
        }
        let stale = u64::from(byte & 0xc6 == 0x86);
        (now, Epoch::new(self.epoch - stale))
    }

    /// `None` asks for a restart.
    fn operation(&mut self) -> Option<Operation> {
        Some(match self.byte() % 16 {
            0 => return None,
            1 => Operation::Tick,
            2..=6 => Operation::Acquire {
                waiter: self.waiter(),
                keys: keys(self.byte()),
                wait: self.span(),
                lease: self.span(),
            },
            7 | 8 => Operation::AcquireSlot {
                waiter: self.waiter(),
                name: self.name(),
                slots: NonZeroU32::new(u32::from(self.byte() % 6) + 1).unwrap(),
                wait: self.span(),
                lease: self.span(),
            },
            9 | 10 => {
                let (keys, token) = self.claim();
                let minimum_hold = self.span();
                Operation::Release {
                    keys,
                    token,
                    minimum_hold,
                }
            }
            11 => {
                let (keys, token) = self.claim();
                let minimum_hold = Duration::ZERO;
                Operation::Release {
                    keys,
                    token,
                    minimum_hold,
                }
            }
            12 => {
                let (keys, token) = self.claim();
                let lease = self.span();
                Operation::Extend { keys, token, lease }
            }
            13 => Operation::Cancel {
                waiter: self.waiter(),
            },
            14 => Operation::Disconnect {
                connection: self.waiter().connection,
            },
            _ => Operation::ForceRelease { key: self.name() },
        })
    }

    fn waiter(&mut self) -> WaiterId {
        let byte = self.byte();
        // Connections that stand apart, and some that are neighbours.
        let connection = [1, 2, 3, 64, u64::MAX][usize::from(byte % 5)];
        let request = RequestId::new(u64::from(byte / 5 % 8));
        WaiterId::new(ConnectionId::new(connection), request)
    }

    fn name(&mut self) -> Key {
        let number = self.byte() % 8;
        keys(1 << number)[0].clone()
    }

    fn span(&mut self) -> Duration {
        UNIT * u32::from(self.byte() % 110)
    }

    /// Mostly a pair that is live; else other keys, or a token nearby.
    fn claim(&mut self) -> (KeySet, FencingToken) {
        let byte = self.byte();
        let held = self.naive.held();
        let index = usize::from(byte >> 3) % held.len().max(1);
        let Some((own, token)) = held.get(index).cloned() else {
            return (keys(byte), FencingToken::MIN);
        };
        match byte & 7 {
            0 => (keys(self.byte()), token),
            1 => {
                let number = token.get().saturating_add(1);
                (own, FencingToken::new(number).unwrap())
            }
            2 => {
                let number = token.get().saturating_sub(1).max(1);
                (own, FencingToken::new(number).unwrap())
            }
            _ => (own, token),
        }
    }
}

/// The keys of the bits; with none, the first.
fn keys(bits: u8) -> KeySet {
    let bits = if bits == 0 { 1 } else { bits };
    let chosen = (0..8).filter(|bit| bits & 1 << bit != 0);
    let keys = chosen.map(|bit| Key::new(format!("k{bit}")).unwrap());
    KeySet::new(keys).unwrap()
}

//! Machines under load. What a command is made of is made outside of the measured time.

use std::hint::black_box;
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Epoch, Event, FencingToken, HashSeed, Key, KeySet, Limits, Machine,
    Operation, Outcome, Reply, RequestId, Timestamp, WaiterId,
};

use crate::cpu_time;

pub(crate) const LEASE: Duration = Duration::from_secs(3_600);
/// Pairs of commands in a block, and how many of them are made beforehand in one go.
const BLOCK: usize = 20_000;
const BATCH: usize = 500;

pub(crate) trait Load {
    /// Nanoseconds for two commands, over one block.
    fn block(&mut self) -> f64;
}

/// A machine, and stamps for the commands to come.
pub(crate) struct Bench {
    pub(crate) machine: Machine,
    micros: u64,
    request: u64,
    random: u64,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            waiters: 1_000_000,
            waiters_per_key: 1_000_000,
            waiters_per_connection: 1_000_000,
            ..Limits::default()
        };
        let seed = HashSeed::from_bytes(*b"some seed or any");
        Self {
            machine: Machine::seeded(limits, FencingToken::MIN, seed),
            micros: 0,
            request: 0,
            random: 1,
        }
    }

    pub(crate) fn apply(&mut self, operation: Operation) -> Outcome {
        self.micros += 1;
        let now = Timestamp::from_micros(self.micros);
        self.machine
            .apply(now, Command::new(Epoch::new(1), operation))
    }

    pub(crate) fn acquire_of(&mut self, number: usize, lease: Duration) -> Operation {
        self.request += 1;
        Operation::Acquire {
            waiter: WaiterId::new(ConnectionId::new(1), RequestId::new(self.request)),
            keys: key_set(number),
            wait: Duration::ZERO,
            lease,
        }
    }

    fn hold(&mut self, number: usize, lease: Duration) -> FencingToken {
        let operation = self.acquire_of(number, lease);
        granted(&self.apply(operation))
    }

    fn lease(&mut self, leases: Leases) -> Duration {
        match leases {
            Leases::Same => LEASE,
            Leases::Mixed => {
                self.random = mix(self.random);
                Duration::from_millis(600_000 + self.random % 3_000_000)
            }
        }
    }
}

/// How long the leases are.
#[derive(Clone, Copy)]
pub(crate) enum Leases {
    Same,
    Mixed,
}

fn granted(outcome: &Outcome) -> FencingToken {
    match &outcome.reply {
        Reply::Granted(grant) => grant.token,
        reply => panic!("the key was free, not {reply:?}"),
    }
}

/// 24 bytes, in an order that is not that of the numbers. Made anew each time, like one that comes
/// in over the wire.
pub(crate) fn key_set(number: usize) -> KeySet {
    let name = format!("account/{:016x}", mix(number as u64));
    KeySet::from(Key::new(name).expect("the name keeps the rule"))
}

fn release(number: usize, token: FencingToken) -> Operation {
    Operation::Release {
        keys: key_set(number),
        token,
        minimum_hold: Duration::ZERO,
    }
}

fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn shuffle(order: &mut [usize], seed: u64) {
    let mut random = seed;
    for index in (1..order.len()).rev() {
        random = mix(random);
        order.swap(index, random as usize % (index + 1));
    }
}

fn per_pair(time: Duration) -> f64 {
    time.as_nanos() as f64 / BLOCK as f64
}

/// Many keys are held, and a few others come and go.
pub(crate) struct Hot {
    bench: Bench,
    held: usize,
}

const HOT: usize = 997;

impl Hot {
    pub(crate) fn new(held: usize) -> Self {
        Self::with(held, Leases::Same)
    }

    fn with(held: usize, leases: Leases) -> Self {
        let mut bench = Bench::new();
        for number in 0..held {
            let lease = bench.lease(leases);
            bench.hold(number, lease);
        }
        Self { bench, held }
    }
}

impl Load for Hot {
    fn block(&mut self) -> f64 {
        let mut time = Duration::ZERO;
        for batch in 0..BLOCK / BATCH {
            let numbers = (0..BATCH).map(|pair| self.held + (batch * BATCH + pair) % HOT);
            let numbers: Vec<usize> = numbers.collect();
            let mut pairs: Vec<(Operation, KeySet)> = Vec::with_capacity(BATCH);
            for number in numbers {
                pairs.push((self.bench.acquire_of(number, LEASE), key_set(number)));
            }
            let start = cpu_time();
            for (acquire, keys) in pairs {
                let token = granted(&self.bench.apply(acquire));
                black_box(self.bench.apply(Operation::Release {
                    keys,
                    token,
                    minimum_hold: Duration::ZERO,
                }));
            }
            time += cpu_time() - start;
        }
        per_pair(time)
    }
}

/// [`Hot`], with what is held ending in no order.
pub(crate) struct Mixed(Hot);

impl Mixed {
    pub(crate) fn new(held: usize) -> Self {
        Self(Hot::with(held, Leases::Mixed))
    }
}

impl Load for Mixed {
    fn block(&mut self) -> f64 {
        self.0.block()
    }
}

/// Half of the keys are held. Any of them is released, and any other acquired.
pub(crate) struct Random {
    bench: Bench,
    leases: Leases,
    held: Vec<(usize, FencingToken)>,
    free: Vec<usize>,
    seed: u64,
}

impl Random {
    pub(crate) fn new(held: usize, leases: Leases) -> Self {
        let mut bench = Bench::new();
        let mut pairs = Vec::with_capacity(held);
        for number in 0..held {
            let lease = bench.lease(leases);
            pairs.push((number, bench.hold(number, lease)));
        }
        let mut random = Self {
            bench,
            leases,
            held: pairs,
            free: (held..2 * held).collect(),
            seed: 7,
        };
        // Every key once, so that nothing is in the order in which it came.
        for _ in 0..2 * held / BATCH {
            random.batch();
        }
        random
    }

    fn pick<T>(&mut self, from: fn(&mut Self) -> &mut Vec<T>) -> T {
        self.seed = mix(self.seed);
        let seed = self.seed;
        let all = from(self);
        let index = seed as usize % all.len();
        all.swap_remove(index)
    }

    fn batch(&mut self) -> Duration {
        let mut operations = Vec::with_capacity(2 * BATCH);
        let mut released = Vec::with_capacity(BATCH);
        let mut acquired = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let (number, token) = self.pick(|random| &mut random.held);
            operations.push(release(number, token));
            released.push(number);
            let number = self.pick(|random| &mut random.free);
            let lease = self.bench.lease(self.leases);
            operations.push(self.bench.acquire_of(number, lease));
            acquired.push(number);
        }
        let mut tokens = Vec::with_capacity(BATCH);
        let start = cpu_time();
        for operation in operations {
            match self.bench.apply(operation).reply {
                Reply::Granted(grant) => tokens.push(grant.token),
                reply => assert_eq!(reply, Reply::Released),
            }
        }
        let time = cpu_time() - start;
        self.free.extend(released);
        self.held.extend(acquired.into_iter().zip(tokens));
        time
    }
}

impl Load for Random {
    fn block(&mut self) -> f64 {
        let batches = 0..BLOCK / BATCH;
        per_pair(batches.map(|_| self.batch()).sum())
    }
}

/// One key, and all who wait for it. The holder releases, and somebody else queues.
pub(crate) struct Crowd {
    bench: Bench,
    token: FencingToken,
    connections: u64,
    arrived: u64,
}

impl Crowd {
    pub(crate) fn new(waiters: usize, connections: u64) -> Self {
        let mut bench = Bench::new();
        for number in 1..1_000 {
            bench.hold(number, LEASE);
        }
        let token = bench.hold(0, LEASE);
        let mut crowd = Self {
            bench,
            token,
            connections,
            arrived: 0,
        };
        for _ in 0..waiters {
            let arrival = crowd.arrival();
            assert_eq!(crowd.bench.apply(arrival).reply, Reply::Queued);
        }
        crowd
    }

    fn arrival(&mut self) -> Operation {
        self.arrived += 1;
        let connection = ConnectionId::new(self.arrived % self.connections);
        Operation::Acquire {
            waiter: WaiterId::new(connection, RequestId::new(self.arrived)),
            keys: key_set(0),
            wait: LEASE,
            lease: LEASE,
        }
    }
}

impl Load for Crowd {
    fn block(&mut self) -> f64 {
        let mut time = Duration::ZERO;
        for _ in 0..BLOCK / BATCH {
            let mut pairs = Vec::with_capacity(BATCH);
            for _ in 0..BATCH {
                pairs.push((key_set(0), self.arrival()));
            }
            let start = cpu_time();
            for (keys, arrival) in pairs {
                let outcome = self.bench.apply(Operation::Release {
                    keys,
                    token: self.token,
                    minimum_hold: Duration::ZERO,
                });
                match outcome.events.as_slice() {
                    [Event::Granted(grant)] => self.token = grant.token,
                    events => panic!("one hand-over, not {events:?}"),
                }
                assert_eq!(self.bench.apply(arrival).reply, Reply::Queued);
            }
            time += cpu_time() - start;
        }
        per_pair(time)
    }
}

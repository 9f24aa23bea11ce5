//! What one command costs: uncontended, and with 1,000 waiters on one key, while a thousand and a
//! million other keys are held. The two figures of a pair should be close.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use highwater_lock::{
    Command, ConnectionId, Epoch, FencingToken, Key, KeySet, Limits, Machine, Operation, Reply,
    RequestId, Timestamp, WaiterId,
};

const HELD: [u64; 2] = [1_000, 1_000_000];
const WAITERS: u64 = 1_000;
const LEASE: Duration = Duration::from_secs(3_600);

/// A machine with this many keys held, and stamps for the commands to come.
struct Bench {
    machine: Machine,
    micros: u64,
    request: u64,
}

impl Bench {
    fn new(held: u64) -> Self {
        let mut bench = Self {
            machine: Machine::new(Limits::default(), FencingToken::MIN),
            micros: 0,
            request: 0,
        };
        for number in 0..held {
            // Scattered, so that they do not come in the order of the index.
            let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let keys = key_set(&format!("held/{scattered:016x}"));
            bench
                .acquire(&keys, Duration::ZERO)
                .expect("every key is new");
        }
        bench
    }

    fn apply(&mut self, operation: Operation) -> highwater_lock::Outcome {
        self.micros += 1;
        let now = Timestamp::from_micros(self.micros);
        self.machine
            .apply(now, Command::new(Epoch::new(1), operation))
    }

    fn acquire(&mut self, keys: &KeySet, wait: Duration) -> Option<FencingToken> {
        self.request += 1;
        let waiter = WaiterId::new(ConnectionId::new(1), RequestId::new(self.request));
        let outcome = self.apply(Operation::Acquire {
            waiter,
            keys: keys.clone(),
            wait,
            lease: LEASE,
        });
        match outcome.reply {
            Reply::Granted(grant) => Some(grant.token),
            _ => None,
        }
    }

    fn release(&mut self, keys: &KeySet, token: FencingToken) -> highwater_lock::Outcome {
        self.apply(Operation::Release {
            keys: keys.clone(),
            token,
            minimum_hold: Duration::ZERO,
        })
    }
}

fn key_set(name: &str) -> KeySet {
    KeySet::from(Key::new(name).expect("the name keeps the rule"))
}

/// Acquire and release of a free key: two commands.
fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("acquire and release, uncontended");
    for held in HELD {
        let mut bench = Bench::new(held);
        let keys: Vec<KeySet> = (0..997_u64)
            .map(|number| {
                key_set(&format!(
                    "held/{:016x}/free",
                    number.wrapping_mul(0x51ed_270b_0a1f_39c1)
                ))
            })
            .collect();
        let mut keys = keys.iter().cycle();
        group.bench_function(BenchmarkId::new("held keys", held), |bencher| {
            bencher.iter(|| {
                let keys = keys.next().expect("a cycle has no end");
                let token = bench
                    .acquire(keys, Duration::ZERO)
                    .expect("the key is free");
                black_box(bench.release(keys, token))
            });
        });
    }
    group.finish();
}

/// A release that hands over, and the next acquire, which queues: two commands, 1,000 waiters.
fn queued(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hand-over and queue, 1000 waiters");
    for held in HELD {
        let mut bench = Bench::new(held);
        let keys = key_set("held/contended");
        let mut token = bench
            .acquire(&keys, Duration::ZERO)
            .expect("the key is free");
        for _ in 0..WAITERS {
            assert_eq!(bench.acquire(&keys, LEASE), None);
        }
        group.bench_function(BenchmarkId::new("held keys", held), |bencher| {
            bencher.iter(|| {
                let outcome = bench.release(&keys, token);
                match outcome.events.as_slice() {
                    [highwater_lock::Event::Granted(grant)] => token = grant.token,
                    events => panic!("one hand-over, not {events:?}"),
                }
                assert_eq!(bench.acquire(&keys, LEASE), None);
            });
        });
        assert_eq!(bench.machine.queue_len(&keys[0]) as u64, WAITERS);
    }
    group.finish();
}

criterion_group!(benches, uncontended, queued);
criterion_main!(benches);

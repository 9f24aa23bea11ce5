//! What the machine takes from the allocator, counted byte by byte.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

use std::alloc::System;
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Epoch, FencingToken, HashSeed, Key, KeySet, Limits, Machine, Operation,
    Reply, RequestId, Timestamp, WaiterId,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn taken() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn apply(machine: &mut Machine, operation: Operation) -> Reply {
    let now = Timestamp::from_micros(machine.now().as_micros() + 1);
    machine
        .apply(now, Command::new(Epoch::new(1), operation))
        .reply
}

fn acquire(number: u64, name: &str) -> Operation {
    Operation::Acquire {
        waiter: WaiterId::new(ConnectionId::new(number / 100), RequestId::new(number)),
        keys: KeySet::new([Key::new(name).unwrap()]).unwrap(),
        wait: Duration::from_secs(60),
        lease: Duration::from_secs(60),
    }
}

fn release(name: &str, number: u64) -> Operation {
    Operation::Release {
        keys: Key::new(name).unwrap().into(),
        token: FencingToken::new(number).unwrap(),
        minimum_hold: Duration::ZERO,
    }
}

fn name(number: u64) -> String {
    format!("stock/{number:018}")
}

/// One test, since everything that runs at the same time is counted too.
#[test]
fn a_held_key_takes_at_most_250_bytes_and_all_of_it_comes_back() {
    let limits = Limits {
        waiters_per_key: 100_000,
        waiters_per_connection: 100_000,
        ..Limits::default()
    };
    let seed = HashSeed::from_bytes([3; 16]);
    let before = taken();
    let mut machine = Machine::seeded(limits, FencingToken::MIN, seed);
    let mut worst = 0;
    // All sizes, so that the moments just after a table has grown are among them.
    for number in 1..=200_000 {
        let reply = apply(&mut machine, acquire(number, &name(number)));
        assert!(matches!(reply, Reply::Granted(_)));
        if number >= 10_000 && number % 100 == 0 {
            let bytes = (taken() - before) / number as usize - name(number).len();
            worst = worst.max(bytes);
        }
    }
    println!("at most {worst} bytes for a held key, besides its own");
    // The promise is 250; this is what the tables are made for.
    assert!(worst <= 160, "{worst} bytes for a held key");

    // Of 64 tokens in a row one stays: the worst case for the index of tokens.
    for number in (1..=200_000).filter(|number| number % 64 != 7) {
        assert_eq!(
            apply(&mut machine, release(&name(number), number)),
            Reply::Released
        );
    }
    let kept = machine.held_keys();
    let records = 200_000 * (64 + 32);
    let others = (taken() - before).saturating_sub(records) / kept - name(0).len();
    println!("{others} bytes for each of {kept} that stayed, besides records that others had");
    assert!(others <= 250, "{others} bytes for a held key");

    for number in (1..=200_000).filter(|number| number % 64 == 7) {
        assert_eq!(
            apply(&mut machine, release(&name(number), number)),
            Reply::Released
        );
    }
    assert_eq!(machine.held_keys(), 0);
    let left = taken() - before;
    println!("{left} bytes when nothing is held any more");
    assert!(left < 64 * 1_024 * 2, "{left} bytes stay behind");

    // Of a long key there is one copy, however many wait for it.
    let one = "1".repeat(Key::MAX_BYTES);
    apply(&mut machine, acquire(300_000, &one));
    let held = taken();
    for number in 0..50_000 {
        assert_eq!(apply(&mut machine, acquire(number, &one)), Reply::Queued);
    }
    let bytes = (taken() - held) / 50_000;
    println!("{bytes} bytes for a waiter");
    assert!(bytes <= 160, "{bytes} bytes for a waiter");
    let disconnected = (0..500).map(ConnectionId::new);
    for connection in disconnected {
        apply(&mut machine, Operation::Disconnect { connection });
    }
    assert_eq!(machine.waiters(), 0);
    drop(machine);
    // The harness has its own memory, such as the lines printed above.
    let left = taken().saturating_sub(before);
    assert!(left < 16 * 1_024, "a dropped machine leaves {left} bytes");
}

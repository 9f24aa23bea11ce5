//! Reading snapshots: any bytes give an error or a valid machine, never a panic.

use highwater_lock::{Command, Epoch, Limits, Machine, Operation, Reply, RestoreError, Timestamp};
use proptest::prelude::*;

use crate::build::{acquire, acquire_slot, command, extend, key, release, seconds, token, waiter};

/// A machine with one of everything in it.
fn sample() -> Machine {
    let mut machine = Machine::new(Limits::default(), token(41));
    let history = [
        (0, acquire(waiter(1, 1), "a", 0, 60)),
        (1, acquire(waiter(1, 2), "b,c", 0, 60)),
        (2, acquire_slot(waiter(1, 3), "s", 3, 0, 60)),
        (2, acquire_slot(waiter(2, 1), "s", 3, 0, 90)),
        (3, release("s", 43, 0)),
        (3, release("a", 41, 20)),
        (4, acquire(waiter(2, 2), "a,b", 30, 60)),
        (5, acquire(waiter(3, 1), "b,d", 40, 60)),
        (5, acquire(waiter(3, 2), "d", 40, 60)),
        (6, extend("s", 44, 200)),
    ];
    for (second, operation) in history {
        let now = Timestamp::ZERO.saturating_add(seconds(second));
        machine.apply(now, command(operation));
    }
    machine.assert_valid();
    assert_eq!((machine.holds(), machine.waiters()), (3, 3));
    machine
}

fn restore(bytes: &[u8]) -> Result<Machine, RestoreError> {
    Machine::restore(bytes, Limits::default())
}

/// What any accepted bytes must be: the one snapshot of a valid machine that goes on working.
fn check_accepted(mut machine: Machine, bytes: &[u8]) {
    machine.assert_valid();
    assert_eq!(machine.snapshot(), bytes);
    let epoch = machine.epoch();
    let force = |name| Operation::ForceRelease { key: key(name) };
    for operation in [
        acquire(waiter(7, 7), "a,b,c,d", 5, 60),
        force("b"),
        force("s"),
        release("a", 41, 0),
        Operation::Tick,
    ] {
        let now = machine.now().saturating_add(seconds(7));
        machine.apply(now, Command::new(epoch, operation));
        machine.assert_valid();
    }
    let end = Timestamp::from_micros(u64::MAX);
    let next = Epoch::new(epoch.get().saturating_add(1));
    machine.apply(end, Command::new(next, acquire(waiter(7, 7), "z", 5, 60)));
    machine.assert_valid();
}

#[test]
fn a_snapshot_gives_the_machine_back() {
    let machine = sample();
    let bytes = machine.snapshot();
    let restored = restore(&bytes).unwrap();
    check_accepted(restored.clone(), &bytes);
    for name in ["a", "b", "c", "d", "s"] {
        let name = key(name);
        assert_eq!(restored.holders(&name), machine.holders(&name));
        assert_eq!(restored.queue_len(&name), machine.queue_len(&name));
    }
    assert_eq!(restored.now(), machine.now());
    assert_eq!(restored.next_deadline(), machine.next_deadline());
    assert_eq!(restored.next_token(), machine.next_token());
}

#[test]
fn the_format_of_version_one_does_not_change() {
    let mut machine = Machine::new(Limits::default(), token(5));
    let now = Timestamp::from_micros(3);
    machine.apply(now, command(acquire(waiter(1, 2), "k,l", 0, 1)));
    machine.apply(now, command(acquire(waiter(1, 3), "k", 2, 1)));
    machine.apply(now, command(acquire_slot(waiter(1, 4), "m", 7, 0, 1)));
    let number = |number: u64| number.to_be_bytes().to_vec();
    let expected = [
        b"hwlock\0\x01".to_vec(),
        [number(3), number(1), number(7)].concat(),
        number(2),
        [number(5), number(3), vec![0], number(1_000_003)].concat(),
        b"\0\x02\x01k\x01l".to_vec(),
        [number(6), number(3), vec![0], number(1_000_003)].concat(),
        b"\x01\0\0\0\x07\0\0\0\0\x01m".to_vec(),
        number(1),
        [number(1), number(3), number(2_000_003), number(1_000_000)].concat(),
        b"\0\x01\x01k".to_vec(),
    ];
    assert_eq!(machine.snapshot(), expected.concat());
}

#[test]
fn a_cut_or_longer_snapshot_is_damaged() {
    let bytes = sample().snapshot();
    for length in 8..bytes.len() {
        let result = restore(&bytes[..length]);
        assert!(
            matches!(result, Err(RestoreError::Damaged { .. })),
            "{length}"
        );
    }
    let longer = [bytes.as_slice(), b"\0"].concat();
    let position = bytes.len() as u64;
    let damaged = RestoreError::Damaged { position };
    assert_eq!(restore(&longer).err(), Some(damaged));
}

#[test]
fn other_bytes_and_other_versions_are_told_apart() {
    assert_eq!(restore(b"").err(), Some(RestoreError::NotASnapshot));
    assert_eq!(
        restore(b"hwlog\0\0\x01").err(),
        Some(RestoreError::NotASnapshot)
    );
    let unknown = RestoreError::UnknownVersion { found: 2 };
    assert_eq!(restore(b"hwlock\0\x02").err(), Some(unknown));
}

#[test]
fn an_immense_count_is_damage_and_not_an_allocation() {
    let mut bytes = Machine::new(Limits::default(), token(1)).snapshot();
    let count = 8 + 3 * 8;
    bytes[count..count + 8].fill(0xff);
    assert!(matches!(restore(&bytes), Err(RestoreError::Damaged { .. })));
}

#[test]
fn lower_limits_keep_what_is_there_and_bind_what_comes() {
    let bytes = sample().snapshot();
    let limits = Limits {
        keys: 1,
        waiters: 1,
        slots: 1,
        ..Limits::default()
    };
    let mut machine = Machine::restore(&bytes, limits).unwrap();
    machine.assert_valid();
    assert_eq!((machine.holds(), machine.waiters()), (3, 3));
    let busy = machine.apply(machine.now(), command(acquire(waiter(9, 1), "z", 0, 1)));
    assert!(matches!(busy.reply, Reply::Busy(_)));
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let machine = || Machine::new(Limits::default(), token(1));
    let holding = |names: &str| {
        let mut machine = machine();
        machine.apply(
            Timestamp::ZERO,
            command(acquire(waiter(1, 1), names, 0, 60)),
        );
        machine.snapshot()
    };
    let token_counter = 8 + 2 * 8;
    let mut reused = holding("a");
    reused[token_counter + 7] = 1;
    let mut from_the_future = holding("a");
    from_the_future[token_counter + 8 + 8 + 8 + 7] = 1;
    // The hold of `a` a second time, under the next token.
    let hold = 8 + 4 * 8..holding("a").len() - 8;
    let mut twice = holding("a");
    let mut second = twice[hold.clone()].to_vec();
    second[7] = 2;
    twice[token_counter + 7] = 3;
    twice[token_counter + 8 + 7] = 2;
    twice.splice(hold.end..hold.end, second);
    for bytes in [reused, from_the_future, twice] {
        let result = restore(&bytes);
        assert!(
            matches!(result, Err(RestoreError::Inconsistent { .. })),
            "{result:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_an_error_or_a_valid_machine(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = restore(&bytes);
        let with_head = [b"hwlock\0\x01".as_slice(), &bytes].concat();
        if let Ok(machine) = restore(&with_head) {
            check_accepted(machine, &with_head);
        }
    }

    #[test]
    fn changed_bytes_give_an_error_or_a_valid_machine(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sample().snapshot();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(machine) = restore(&bytes) {
            check_accepted(machine, &bytes);
        }
    }
}

#[test]
fn every_single_changed_byte_gives_an_error_or_a_valid_machine() {
    let bytes = sample().snapshot();
    let mut accepted = 0;
    for index in 0..bytes.len() {
        for value in [0, 1, 2, bytes[index].wrapping_add(1), 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[index] = value;
            if let Ok(machine) = restore(&changed) {
                accepted += 1;
                check_accepted(machine, &changed);
            }
        }
    }
    assert!(accepted > 100, "only {accepted}: is everything refused?");
}

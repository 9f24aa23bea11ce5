//! The numbers between disk and machine.

use std::time::Duration;

use highwater_lock::{Domain, FencingToken, Limits, Machine, Timestamp};

use super::ModelDisk;
use crate::storage::reserve::rounded_up;
use crate::storage::{AfterRestart, END_OF_TOKENS, Reserve, Start, Store};

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn reserve(first: u64, block: u64, old_leases: u64) -> (Reserve, Machine) {
    let start = Start {
        domain: Domain::from_bytes([7; 32]),
        first_token: token(first),
        old_leases: Duration::from_secs(old_leases),
        after_restart: AfterRestart::default(),
        block,
    };
    let (mut store, _) = Store::open(ModelDisk::new()).unwrap();
    let reserve = Reserve::begin(start, &mut store).unwrap();
    (reserve, Machine::new(Limits::default(), start.first_token))
}

const NOW: Timestamp = Timestamp::ZERO;

#[test]
fn the_next_block_is_asked_for_when_half_of_one_is_left() {
    let (mut reserve, _) = reserve(100, 10, 0);
    let at = |next| Machine::new(Limits::default(), token(next));
    assert_eq!(reserve.room(&at(100)), 10);
    assert_eq!(reserve.next_record(NOW, &at(105)), None);
    let record = reserve.next_record(NOW, &at(106)).unwrap();
    assert_eq!(record.bound, token(120));
    // One at a time, and it counts only when it is durable.
    assert_eq!(reserve.next_record(NOW, &at(109)), None);
    assert_eq!(reserve.room(&at(109)), 1);
    reserve.stored(record, 6);
    assert_eq!(reserve.room(&at(109)), 11);
    assert_eq!(reserve.counts().blocks, 2);
    assert_eq!((reserve.counts().records, reserve.counts().syncs), (2, 6));
}

#[test]
fn a_block_of_one_works() {
    let (mut reserve, machine) = reserve(100, 1, 0);
    assert_eq!(reserve.room(&machine), 1);
    let machine = Machine::new(Limits::default(), token(101));
    assert_eq!(reserve.room(&machine), 0);
    let record = reserve.next_record(NOW, &machine).unwrap();
    assert_eq!(record.bound, token(102));
}

#[test]
fn no_token_is_given_out_that_a_database_cannot_store() {
    let (mut reserve, machine) = reserve(END_OF_TOKENS.get() - 3, 1 << 20, 0);
    assert_eq!(reserve.room(&machine), 3);
    assert_eq!(reserve.next_record(NOW, &machine), None);
    let machine = Machine::new(Limits::default(), END_OF_TOKENS);
    assert_eq!(reserve.room(&machine), 0);
    assert!(reserve.is_used_up(&machine));
    assert_eq!(reserve.next_record(NOW, &machine), None);
}

#[test]
fn a_lease_is_covered_only_once_it_is_stored() {
    let (mut reserve, machine) = reserve(100, 10, 0);
    let lease = Duration::from_secs(30);
    assert!(!reserve.covers(lease));
    assert_eq!(reserve.next_record(NOW, &machine), None, "only asked");
    reserve.promise(lease, Limits::LONGEST);
    let record = reserve.next_record(NOW, &machine).unwrap();
    assert!(record.horizon >= lease);
    assert!(!reserve.covers(lease));
    reserve.stored(record, 6);
    assert!(reserve.covers(lease));
    assert!(reserve.covers(Duration::from_millis(1)));
    assert_eq!(reserve.next_record(NOW, &machine), None);
}

#[test]
fn old_leases_count_until_they_are_over_and_a_record_under_way_may_forget_them() {
    let (mut reserve, machine) = reserve(100, 10, 60);
    let lease = Duration::from_secs(30);
    let end = Timestamp::from_micros(60_000_000);
    assert_eq!(reserve.held_back_until(), Some(end));
    let low = Machine::new(Limits::default(), token(109));
    let before = reserve.next_record(NOW, &low).unwrap();
    assert_eq!(before.horizon, Duration::from_secs(60));
    reserve.stored(before, 6);
    // A block is written when they are over: it covers nothing of before.
    let low = Machine::new(Limits::default(), token(118));
    let after = reserve.next_record(end, &low).unwrap();
    assert_eq!(after.horizon, Duration::ZERO);
    assert!(
        !reserve.covers(lease),
        "as soon as that record is durable, a crash would forget this lease"
    );
    reserve.promise(lease, Limits::LONGEST);
    reserve.stored(after, 8);
    let next = reserve.next_record(end, &machine).unwrap();
    assert!(next.horizon >= lease);
}

#[test]
fn leases_are_rounded_up_so_that_few_are_stored_and_little_is_waited_for() {
    let mut stored = std::collections::BTreeSet::new();
    for millis in (1..=3_600_000).step_by(7) {
        let lease = Duration::from_millis(millis);
        let rounded = rounded_up(lease);
        assert!(rounded >= lease);
        let most = lease.mul_f64(1.25).max(lease + Duration::from_secs(1));
        assert!(rounded <= most, "{lease:?} became {rounded:?}");
        stored.insert(rounded);
    }
    assert!(stored.len() < 50, "{}", stored.len());
    assert_eq!(rounded_up(Duration::from_secs(8)), Duration::from_secs(8));
    assert_eq!(rounded_up(Duration::from_secs(30)), Duration::from_secs(32));
    assert!(rounded_up(Limits::LONGEST) >= Limits::LONGEST);
}

#[test]
fn the_last_record_is_exact() {
    let (reserve, machine) = reserve(100, 10, 5);
    let last = reserve.last_record(Timestamp::from_micros(2_000_000), &machine);
    assert_eq!(last.bound, token(100));
    assert_eq!(last.horizon, Duration::from_secs(3));
    assert!(last.closed);
    let last = reserve.last_record(Timestamp::from_micros(6_000_000), &machine);
    assert_eq!(last.horizon, Duration::ZERO);
}

//! What a query tells of a key, in every state of it.

use highwater_lock::{HoldState, Key, KeyStatus, Limits, Machine, Operation, Reply, Timestamp};

use crate::build::{acquire, acquire_slot, command, key, release, seconds, token, waiter};

fn machine() -> Machine {
    Machine::new(Limits::default(), token(1))
}

fn run(machine: &mut Machine, second: u64, operation: Operation) -> Reply {
    let now = Timestamp::ZERO.saturating_add(seconds(second));
    machine.apply(now, command(operation)).reply
}

/// The holder's token and slot, the slots, the taken ones, the waiters.
fn told(
    machine: &Machine,
    name: &str,
    from: u32,
) -> (Option<(u64, Option<u32>)>, u32, usize, usize) {
    let status = machine.status(&key(name), from);
    let holder = status
        .holder
        .map(|holder| (holder.token.get(), holder.slot));
    let slots = status.slots.map_or(0, |slots| slots.get());
    (holder, slots, status.taken, status.waiters)
}

#[test]
fn a_key_that_nobody_uses() {
    let status = machine().status(&Key::new("k").unwrap(), 0);
    assert_eq!(status, KeyStatus::default());
}

#[test]
fn a_plain_lock_is_slot_zero_of_itself() {
    let mut machine = machine();
    run(&mut machine, 0, acquire(waiter(1, 1), "k,l", 0, 10));
    run(&mut machine, 0, acquire(waiter(2, 1), "l,m", 9, 10));
    assert_eq!(told(&machine, "k", 0), (Some((1, None)), 0, 1, 0));
    assert_eq!(told(&machine, "k", 1), (None, 0, 1, 0));
    assert_eq!(told(&machine, "l", 0), (Some((1, None)), 0, 1, 1));
    // Blocked by a set at the head of its queue, and held by nobody.
    assert_eq!(told(&machine, "m", 0), (None, 0, 0, 1));
}

#[test]
fn a_retained_key_says_so() {
    let mut machine = machine();
    run(&mut machine, 0, acquire(waiter(1, 1), "k", 0, 10));
    run(&mut machine, 1, release("k", 1, 5));
    let holder = machine.status(&key("k"), 0).holder.unwrap();
    let until = Timestamp::ZERO.saturating_add(seconds(5));
    assert_eq!(holder.state, HoldState::Retained { until });
    run(&mut machine, 5, Operation::Tick);
    assert_eq!(machine.status(&key("k"), 0), KeyStatus::default());
}

#[test]
fn slots_can_be_walked() {
    let mut machine = machine();
    for request in 1..=5 {
        run(
            &mut machine,
            0,
            acquire_slot(waiter(1, request), "g", 4, 9, 10),
        );
    }
    run(&mut machine, 1, release("g", 2, 60));
    run(&mut machine, 1, release("g", 3, 0));
    // Slot 1 is retained, slot 2 went to the fifth.
    let holders: Vec<_> = (0..5).map(|from| told(&machine, "g", from)).collect();
    assert_eq!(
        holders,
        [
            (Some((1, Some(0))), 4, 4, 0),
            (Some((2, Some(1))), 4, 4, 0),
            (Some((5, Some(2))), 4, 4, 0),
            (Some((4, Some(3))), 4, 4, 0),
            (None, 4, 4, 0),
        ]
    );
    run(&mut machine, 2, release("g", 5, 0));
    assert_eq!(told(&machine, "g", 2), (Some((4, Some(3))), 4, 3, 0));
}

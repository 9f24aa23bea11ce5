//! Walks over the names in use, with commands in between.

use std::collections::BTreeMap;

use highwater_lock::{Limits, Machine, Operation, Reply, Timestamp};

use crate::build::{acquire, command, key, release, token, waiter};

fn run(machine: &mut Machine, operation: Operation) -> Reply {
    machine.apply(Timestamp::ZERO, command(operation)).reply
}

#[test]
fn a_walk_sees_once_what_is_held_all_the_time_and_nothing_that_never_is() {
    let mut machine = Machine::new(Limits::default(), token(1));
    let stays = |number: u64| number.is_multiple_of(3);
    for number in 0..3_000 {
        run(
            &mut machine,
            acquire(waiter(1, 1), &format!("k{number}"), 0, 60),
        );
    }
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut place = 0;
    let mut number = 0;
    while place < machine.places() {
        for key in machine.keys_at(place..place + 70) {
            *seen.entry(key.to_string()).or_default() += 1;
        }
        place += 70;
        // Others go, come again, and are new.
        for _ in 0..60 {
            number += 1;
            if number < 3_000 && !stays(number) {
                let name = format!("k{number}");
                assert_eq!(
                    run(&mut machine, release(&name, number + 1, 0)),
                    Reply::Released
                );
            }
            run(
                &mut machine,
                acquire(waiter(1, 1), &format!("new{number}"), 0, 60),
            );
        }
        machine.assert_valid();
    }
    for number in (0..3_000).filter(|number| stays(*number)) {
        let times = seen.remove(&format!("k{number}"));
        assert_eq!(times, Some(1), "k{number}");
    }
    let known = |name: &String| name.starts_with('k') || name.starts_with("new");
    assert!(seen.keys().all(known));
}

#[test]
fn a_name_that_is_only_queued_for_is_in_the_walk() {
    let mut machine = Machine::new(Limits::default(), token(1));
    run(&mut machine, acquire(waiter(1, 1), "a", 0, 60));
    run(&mut machine, acquire(waiter(2, 1), "a,b", 60, 60));
    let mut names: Vec<_> = machine.keys_at(0..usize::MAX).cloned().collect();
    names.sort();
    assert_eq!(names, [key("a"), key("b")]);
    assert_eq!(machine.keys_at(7..usize::MAX).count(), 0);
    assert_eq!(machine.name(&key("b")).unwrap().queue, 1);
}

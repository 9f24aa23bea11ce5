//! All histories of small machines, up to a depth.
//!
//! Every command of a small alphabet is applied in every state that can be reached; states that
//! differ only in the numbers of tokens and in the origin of time are visited once. Each step is
//! checked by the witness, by the machine's own invariants, and against the naive model.
//! `HIGHWATER_DEEPER=2` goes two commands deeper than the fast default.

use std::collections::BTreeSet;

use highwater_lock::{Command, Epoch, FencingToken, Key, Limits, Machine, Operation, Timestamp};

use crate::build::{acquire, acquire_slot, key, seconds, waiter};
use crate::naive::Naive;
use crate::witness::Witness;

#[test]
fn all_small_histories_of_two_keys_and_their_set() {
    let start = |step: &Step| -> Vec<Operation> {
        let mut operations = common(step, "a");
        for names in ["a", "b", "a,b"] {
            operations.push(acquire(waiter(9, 9), names, 0, 2));
            for connection in 1..=3 {
                operations.push(acquire(waiter(connection, 1), names, 2, 2));
            }
        }
        operations
    };
    let states = explore(&[key("a"), key("b")], 5, start);
    assert!(states > 1_000, "only {states} states");
}

#[test]
fn all_small_histories_of_overlapping_sets() {
    let start = |step: &Step| -> Vec<Operation> {
        let mut operations = common(step, "b");
        for (connection, names) in [(1, "a,b"), (2, "b,c"), (3, "a,c"), (4, "b")] {
            operations.push(acquire(waiter(connection, 1), names, 2, 3));
        }
        operations.push(acquire(waiter(9, 9), "a", 0, 1));
        operations.push(acquire(waiter(9, 9), "c", 0, 1));
        operations
    };
    let states = explore(&[key("a"), key("b"), key("c")], 5, start);
    assert!(states > 1_000, "only {states} states");
}

#[test]
fn all_small_histories_of_two_slots() {
    let start = |step: &Step| -> Vec<Operation> {
        let mut operations = common(step, "s");
        operations.push(acquire_slot(waiter(9, 9), "s", 2, 0, 2));
        operations.push(acquire_slot(waiter(9, 8), "s", 1, 0, 2));
        operations.push(acquire(waiter(9, 7), "s", 2, 2));
        for connection in 1..=3 {
            operations.push(acquire_slot(waiter(connection, 1), "s", 2, 2, 2));
        }
        operations
    };
    let states = explore(&[key("s")], 8, start);
    assert!(states > 1_000, "only {states} states");
}

/// One state, reached by some history.
#[derive(Clone)]
struct Step {
    machine: Machine,
    naive: Naive,
    witness: Witness,
    now: Timestamp,
    epoch: Epoch,
    history: Vec<Operation>,
}

/// Releases and extensions of all that is held, and everything about leaving.
fn common(step: &Step, forced: &str) -> Vec<Operation> {
    let mut operations = vec![
        Operation::Tick,
        Operation::ForceRelease { key: key(forced) },
    ];
    for (keys, token) in step.naive.held() {
        operations.push(Operation::Extend {
            keys: keys.clone(),
            token,
            lease: seconds(2),
        });
        for hold in [0, 2] {
            operations.push(Operation::Release {
                keys: keys.clone(),
                token,
                minimum_hold: seconds(hold),
            });
        }
    }
    for connection in 1..=3 {
        operations.push(Operation::Cancel {
            waiter: waiter(connection, 1),
        });
    }
    operations.push(Operation::Disconnect {
        connection: waiter(1, 1).connection,
    });
    operations
}

/// Gives the number of states. A tick moves time by a second, everything else happens within it;
/// a new epoch may begin with any tick.
fn explore(keys: &[Key], depth: usize, alphabet: impl Fn(&Step) -> Vec<Operation>) -> usize {
    let limits = Limits {
        expiries_per_apply: 1,
        ..Limits::default()
    };
    let first = FencingToken::MIN;
    let mut frontier = vec![Step {
        machine: Machine::new(limits.clone(), first),
        naive: Naive::new(limits, first),
        witness: Witness::default(),
        now: Timestamp::ZERO,
        epoch: Epoch::new(1),
        history: Vec::new(),
    }];
    let mut visited = BTreeSet::new();
    let deeper = std::env::var("HIGHWATER_DEEPER").map_or(0, |text| text.parse().unwrap());
    let depth = depth + deeper;
    for _ in 0..depth {
        let mut next = Vec::new();
        for step in &frontier {
            for operation in alphabet(step) {
                let epochs: &[u64] = match operation {
                    Operation::Tick => &[0, 1],
                    _ => &[0],
                };
                for more in epochs {
                    let after = step.after(operation.clone(), *more, keys);
                    if visited.insert(after.naive.shape()) {
                        next.push(after);
                    }
                }
            }
        }
        frontier = next;
    }
    println!("{} states to depth {depth}", visited.len());
    visited.len()
}

impl Step {
    fn after(&self, operation: Operation, epochs: u64, keys: &[Key]) -> Step {
        let mut after = self.clone();
        if operation == Operation::Tick {
            after.now = self.now.saturating_add(seconds(1));
        }
        after.epoch = Epoch::new(self.epoch.get() + epochs);
        after.history.push(operation.clone());
        let command = Command::new(after.epoch, operation);
        let outcome = after.machine.apply(after.now, command.clone());
        let expected = after.naive.apply(after.now, command.clone());
        let history = &after.history;
        assert_eq!(outcome, expected, "after {history:#?}");
        after.machine.assert_valid();
        after.witness.observe(&command, &outcome, &after.machine);
        for key in keys {
            let (machine, naive) = (&after.machine, &after.naive);
            assert_eq!(
                machine.holders(key),
                naive.holders(key),
                "after {history:#?}"
            );
            assert_eq!(
                machine.queue_len(key),
                naive.queue_len(key),
                "after {history:#?}"
            );
        }
        let (deadline, expected) = (after.machine.next_deadline(), after.naive.next_deadline());
        assert_eq!(deadline, expected, "after {history:#?}");
        after
    }
}

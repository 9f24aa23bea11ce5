//! Every failure and every crash, at every step: what was reported durable is never lost.

use std::time::Duration;

use highwater_lock::{Domain, FencingToken};

use super::{Fault, ModelDisk};
use crate::storage::disk::{Disk as _, NEW_STATE, STATE};
use crate::storage::{Record, StorageError, Store};

fn record(bound: u64) -> Record {
    Record {
        domain: Domain::from_bytes([7; 32]),
        bound: FencingToken::new(bound).unwrap(),
        horizon: Duration::from_secs(bound),
        closed: bound.is_multiple_of(2),
    }
}

/// What one run of a server did.
struct Run {
    /// The last record that was reported durable, in this run or before it.
    durable: u64,
    /// The last record that was begun.
    begun: u64,
    failed: bool,
}

/// Opens the disk and writes records on top of what it finds, as long as nothing fails. Whatever
/// it finds, it must be at least `durable` and at most `begun`.
fn run(disk: &ModelDisk, commits: u64, durable: u64, begun: u64) -> Run {
    let mut run = Run {
        durable,
        begun,
        failed: true,
    };
    let (mut store, found) = match Store::open(disk.clone()) {
        Ok(opened) => opened,
        Err(StorageError::Io { .. }) => return run,
        Err(error) => panic!("after {durable} of {begun}: {error}"),
    };
    let bound = found.map_or(0, |found| {
        let bound = found.bound.get();
        assert_eq!(found, record(bound), "a record that nobody wrote");
        bound
    });
    assert!(
        (durable..=begun).contains(&bound),
        "{durable} was durable, {bound} is there"
    );
    for next in begun + 1..=begun + commits {
        run.begun = next;
        if store.commit(&record(next)).is_err() {
            // It stays so, even if the disk is well again.
            for _ in 0..2 {
                let again = store.commit(&record(next + 1));
                assert!(matches!(again, Err(StorageError::GivenUp { .. })));
            }
            return run;
        }
        run.durable = next;
    }
    run.failed = false;
    run
}

/// All disks that the end of a process, or of the machine, can leave now.
fn ends(disk: &ModelDisk) -> Vec<ModelDisk> {
    let mut ends = disk.after_power_loss();
    ends.push(disk.after_process_end());
    ends
}

/// Runs a server on the disk once without a fault and once with every fault, and the next servers
/// on all that is left behind each time. Returns how many runs that were.
fn explore(disk: &ModelDisk, depth: usize, durable: u64, begun: u64) -> usize {
    let whole = disk.after_process_end();
    let before = whole.operations();
    let done = run(&whole, 2, durable, begun);
    assert!(!done.failed, "without a fault nothing fails");
    let operations = whole.operations() - before;
    let mut runs = 1;
    let mut go_on = |disk: &ModelDisk, run: &Run| {
        for end in ends(disk) {
            runs += match depth {
                0 => {
                    super::crashes::run(&end, 1, run.durable, run.begun);
                    1
                }
                _ => explore(&end, depth - 1, run.durable, run.begun),
            };
        }
    };
    go_on(&whole, &done);
    for operation in 0..operations {
        for fault in [Fault::Refused, Fault::DoneInPart] {
            let faulty = disk.after_process_end();
            faulty.fail_at(operation, fault);
            let run = run(&faulty, 2, durable, begun);
            assert!(run.failed, "operation {operation} failed unnoticed");
            go_on(&faulty, &run);
        }
    }
    runs
}

#[test]
fn a_fault_at_every_step_loses_nothing_that_was_durable() {
    let runs = explore(&ModelDisk::new(), 1, 0, 0);
    assert!(runs > 10_000, "{runs} runs");
}

#[test]
fn a_first_start_that_was_cut_off_anywhere_can_be_repeated() {
    let disk = ModelDisk::new();
    run(&disk, 1, 0, 0);
    for operation in 0..disk.operations() {
        for fault in [Fault::Refused, Fault::DoneInPart] {
            let disk = ModelDisk::new();
            disk.fail_at(operation, fault);
            let first = run(&disk, 1, 0, 0);
            for end in ends(&disk) {
                assert!(!run(&end, 1, first.durable, first.begun).failed);
            }
        }
    }
}

#[test]
fn a_record_costs_two_syncs() {
    let disk = ModelDisk::new();
    let (mut store, _) = Store::open(disk.clone()).unwrap();
    store.commit(&record(1)).unwrap();
    let first = (store.syncs(), disk.syncs());
    assert_eq!(first, (4, 4), "the first one brings the note along");
    store.commit(&record(2)).unwrap();
    assert_eq!((store.syncs(), disk.syncs()), (6, 6));
}

#[test]
fn a_state_that_somebody_else_changed_is_noticed_before_it_is_overwritten() {
    let mut disk = ModelDisk::new();
    let (mut store, _) = Store::open(disk.clone()).unwrap();
    store.commit(&record(1)).unwrap();
    // Another server, which the lock should have kept out.
    disk.write(NEW_STATE, &record(5).encode()).unwrap();
    disk.rename(NEW_STATE, STATE).unwrap();
    let refused = store.commit(&record(2));
    assert!(matches!(refused, Err(StorageError::Changed { .. })));
    assert_eq!(Store::open(disk).unwrap().1, Some(record(5)));
}

#[test]
fn a_state_that_vanished_is_not_taken_for_a_first_start() {
    let disk = ModelDisk::new();
    let (mut store, _) = Store::open(disk.clone()).unwrap();
    store.commit(&record(1)).unwrap();
    disk.clone().rename(STATE, NEW_STATE).unwrap();
    assert!(store.commit(&record(2)).is_err());
    let refused = Store::open(disk).unwrap_err();
    assert!(
        matches!(refused, StorageError::StateGone { .. }),
        "{refused}"
    );
}

#[test]
fn what_is_not_a_whole_state_is_refused_by_name() {
    let whole = record(9).encode().to_vec();
    let mut newer = whole.clone();
    newer[17] = 2;
    let mut flipped = whole.clone();
    flipped[60] ^= 1;
    let refused = |bytes: &[u8]| {
        let disk = ModelDisk::of_files(vec![(STATE, bytes.to_vec())]);
        Store::open(disk).map(|_| ()).unwrap_err()
    };
    assert!(matches!(
        refused(&whole[..50]),
        StorageError::Damaged { .. }
    ));
    assert!(matches!(refused(&flipped), StorageError::Damaged { .. }));
    assert!(matches!(refused(b""), StorageError::Damaged { .. }));
    assert!(matches!(refused(b"text"), StorageError::NotAState { .. }));
    assert!(matches!(
        refused(&newer),
        StorageError::UnknownFormat { format: 2, .. }
    ));
}

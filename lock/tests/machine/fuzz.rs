//! The fuzz target of the core, run over its corpus and over random changes of it.

use crate::fuzz_target::core;
use crate::harness::{self, Random};

/// A command with its stamp, as the target reads them.
const TICK_3: &[u8] = &[0x19, 1];
/// Waiter 1.0 asks for k0, without a wait, for 10 units.
const TAKE: &[u8] = &[0, 2, 0, 1, 0, 10];
/// Others ask for k0, for k0 and k1, and for k1 and k2, with 20 units of patience.
const QUEUE: &[u8] = &[0, 2, 1, 1, 20, 10, 0, 2, 2, 3, 20, 10, 0, 2, 3, 6, 20, 10];
/// Three of two slots of k7.
const SLOTS: &[u8] = &[
    0, 7, 0, 7, 1, 0, 30, 0, 7, 5, 7, 1, 0, 40, 0, 7, 10, 7, 1, 30, 20,
];
/// The oldest hold is released, extended to 90 units, kept for 40 more.
const RELEASE: &[u8] = &[0, 11, 7];
const EXTEND: &[u8] = &[0, 12, 7, 90];
const RETAIN: &[u8] = &[0, 9, 7, 40];
const RESTART: &[u8] = &[0, 0, 5];
const LEAVE: &[u8] = &[0, 13, 2, 0, 14, 1];
const FORCE: &[u8] = &[0, 15, 0, 0, 15, 7];
const EPOCH: &[u8] = &[0x46, 1, 0x86, 1];
const LATER: &[u8] = &[0xff, 1, 0x39, 1];

fn written() -> Vec<(String, Vec<u8>)> {
    let histories: &[(&str, &[&[u8]])] = &[
        ("empty", &[]),
        ("take-and-release", &[TAKE, RELEASE, TAKE, TICK_3, RELEASE]),
        ("expire", &[TAKE, TICK_3, TICK_3, TICK_3, TICK_3, TAKE]),
        (
            "hand-over",
            &[TAKE, QUEUE, RELEASE, RELEASE, RELEASE, RELEASE],
        ),
        ("leave", &[TAKE, QUEUE, LEAVE, RELEASE]),
        ("slots", &[SLOTS, RELEASE, SLOTS, RESTART, TICK_3, FORCE]),
        ("extend", &[TAKE, EXTEND, QUEUE, LATER, LATER]),
        (
            "retain",
            &[TAKE, RETAIN, EXTEND, QUEUE, RETAIN, LATER, RESTART],
        ),
        ("force", &[TAKE, QUEUE, SLOTS, FORCE, RESTART, FORCE]),
        ("epoch", &[TAKE, QUEUE, SLOTS, EPOCH, QUEUE, EPOCH, RESTART]),
        (
            "everything",
            &[
                TAKE, QUEUE, SLOTS, EXTEND, RESTART, RETAIN, LEAVE, EPOCH, QUEUE, TICK_3, FORCE,
                LATER,
            ],
        ),
    ];
    let mut inputs = Vec::new();
    for (name, parts) in histories {
        // Wide limits, narrow ones, and hardly any tokens left.
        for (suffix, kind) in [("", 0), ("-narrow", 17), ("-last-tokens", 34)] {
            inputs.push((
                format!("{name}{suffix}"),
                [&[kind], &*parts.concat()].concat(),
            ));
        }
    }
    for seed in 0..6 {
        let mut random = Random(seed);
        let bytes = (0..400).map(|_| random.next() as u8).collect();
        inputs.push((format!("random-{seed}"), bytes));
    }
    inputs
}

#[test]
fn the_corpus_is_what_this_test_writes() {
    harness::keep("core", &written());
}

#[test]
fn histories() {
    harness::replay("core", core, 30);
    harness::change("core", core, 1_500);
}

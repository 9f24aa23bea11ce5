//! The example `leader_job` keeps its promises, on a machine like this one: it decides by its exit status.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples before it runs tests of their package.
fn example() -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    folder.join("examples").join("leader_job")
}

#[test]
fn three_processes_and_what_happens_to_their_leader() {
    let example = example();
    assert!(
        example.is_file(),
        "{} is not built: run `cargo test -p highwater-examples`, without a choice of targets",
        example.display()
    );
    let output = Command::new(example).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let failure = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{failure}");
    // What it must have seen: it cannot succeed by leaving something out.
    for (what, times) in [
        ("is killed in the middle of a run", 1),
        ("is frozen in the middle of a run", 1),
        ("is cut off from the lock server in the middle of a run", 1),
        ("is told that it leads no more", 2),
        ("the database REFUSES it", 2),
        ("s later, with token", 3),
        (
            "AS PROMISED: 6 runs in the order of their tokens, 2 stale writes refused",
            1,
        ),
    ] {
        assert_eq!(told.matches(what).count(), times, "{what}:\n{told}");
    }
}

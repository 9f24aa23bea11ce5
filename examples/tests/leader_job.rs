//! The example `leader_job` keeps its promises, on a machine like this one: it decides by its exit status.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Cargo builds examples before it runs tests of their package, but not if only some targets are chosen.
fn example() -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    folder.join("examples").join("leader_job")
}

/// What has changed since it was built. Cargo writes down what went into it, the crates of the workspace
/// included, as a rule of `make`.
fn newer_than(example: &Path) -> Vec<PathBuf> {
    let rule = fs::read_to_string(example.with_extension("d")).unwrap();
    // A space in a name has a backslash in front of it.
    let rule = rule.trim_end().replace("\\ ", "\0");
    let (_, sources) = rule.split_once(": ").unwrap();
    let sources = sources.split(' ').map(|name| name.replace('\0', " "));
    let sources: Vec<PathBuf> = sources.map(PathBuf::from).collect();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("leader_job/worker.rs");
    assert!(sources.contains(&own), "it is of other sources: {BUILD}");
    let built = fs::metadata(example).unwrap().modified().unwrap();
    let is_newer = |source: &PathBuf| {
        let changed = fs::metadata(source).and_then(|source| source.modified());
        changed.map_or(true, |changed| changed > built)
    };
    sources.into_iter().filter(is_newer).collect()
}

const BUILD: &str = "run `cargo test -p highwater-examples`, without a choice of targets";

#[test]
fn three_processes_and_what_happens_to_their_leader() {
    let example = example();
    assert!(
        example.is_file(),
        "{} is not built: {BUILD}",
        example.display()
    );
    let newer = newer_than(&example);
    assert!(newer.is_empty(), "it is older than {newer:?}: {BUILD}");
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

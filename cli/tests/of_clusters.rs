//! The commands for users, against a cluster of real processes.
#![cfg(unix)]

mod serving;

use std::fs;
use std::path::Path;

use serving::highwater;

/// The measurement starts three nodes, checks every grant, and ends them.
#[test]
fn a_cluster_is_measured_beside_a_single_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("figures.json");
    let words = "bench --target highwater,cluster,cluster-volatile --rounds 1 --time 100 --tasks 4 --keys 2 --json";
    let mut command = highwater(&words.split(' ').collect::<Vec<_>>());
    let output = command
        .arg(&json)
        .env("TMPDIR", folder.path())
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let figures = fs::read(json).expect("figures");
    let figures: serde_json::Value = serde_json::from_slice(&figures).expect("JSON");
    let rows = figures["rows"].as_array().expect("rows");
    let targets: Vec<_> = rows.iter().map(|row| row["target"].as_str()).collect();
    let all = [Some("highwater"), Some("cluster"), Some("cluster-volatile")];
    assert_eq!(targets, [all, all].concat());
    for row in rows {
        let rate = row["figures"]["cycles_per_second"].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{row}");
    }
    // Its own file, and nothing of the nodes.
    assert_eq!(left_in(folder.path()), ["figures.json"]);
}

fn left_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

/// Several addresses without an identity, or as many as no cluster has, are wrong options.
#[test]
fn a_cluster_is_named_by_all_its_addresses_and_its_identity() {
    let identity = "7".repeat(64);
    for (server, identity, said) in [
        ("a:1,b:1,c:1", None, "its --identity is missing"),
        ("a:1,b:1", Some(&identity), "2 addresses"),
        ("a:1", Some(&identity), "1 addresses"),
        ("nowhere", None, "not an address"),
    ] {
        let mut command = highwater(&["lock", "k", "--server", server]);
        if let Some(identity) = identity {
            command.args(["--identity", identity]);
        }
        let output = command.args(["--", "true"]).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{server}: {text}");
        assert!(text.contains(said), "{server}: {text}");
    }
}

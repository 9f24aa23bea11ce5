//! What the program says to words, without a network.
#![cfg(target_os = "linux")]

use std::process::{Command, Output};

fn chaos(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-chaos"));
    command.args(words).output().expect("it runs")
}

#[test]
fn all_faults_are_listed_and_each_is_a_scenario() {
    let listed = chaos(&["--scenario", "list"]);
    assert!(listed.status.success());
    let text = String::from_utf8(listed.stdout).expect("text");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(
        names.contains(&"kill-leader") && names.len() >= 20,
        "{text}"
    );
    for name in names {
        // Another word is what is wrong, so this one was understood.
        let refused = chaos(&["--scenario", name, "--nodes", "4"]);
        let text = String::from_utf8(refused.stderr).expect("text");
        assert!(text.starts_with("a cluster has 3 or 5 nodes"), "{text}");
    }
}

#[test]
fn what_it_does_not_know_it_refuses() {
    for words in [
        &["--scenario", "no"][..],
        &["--seconds"],
        &["--nodes", "4"],
        &["x", "y"],
    ] {
        let refused = chaos(words);
        assert_eq!(refused.status.code(), Some(2));
        let text = String::from_utf8(refused.stderr).expect("text");
        assert!(text.contains("usage: cargo xtask chaos"), "{text}");
    }
}

//! What a held key takes of the process's memory, its bytes not counted.

use crate::load::{Bench, LEASE};

/// Holds so many keys, each number in a process of its own; some are such that tables have just
/// grown.
pub(crate) fn report(numbers: &[usize]) {
    println!("\n| held keys | resident bytes per key, besides its own 24 |\n|---|---|");
    for held in numbers {
        let program = std::env::current_exe().expect("this program is there");
        let mut run = std::process::Command::new(program);
        let output = run
            .arg(format!("{ALONE}{held}"))
            .output()
            .expect("this program runs");
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// What the process does that [`report`] starts. False if it is not that one.
pub(crate) fn alone(words: &[String]) -> bool {
    let held = words.iter().find_map(|word| word.strip_prefix(ALONE));
    let Some(held) = held.and_then(|held| held.parse().ok()) else {
        return false;
    };
    let before = resident();
    let mut bench = Bench::new();
    for number in 0..held {
        let operation = bench.acquire_of(number, LEASE);
        bench.apply(operation);
    }
    let grown = resident().saturating_sub(before);
    let per_key = grown / held as u64;
    println!("| {held} | {} |", per_key.saturating_sub(24));
    true
}

const ALONE: &str = "--held=";

/// From the system, in pages of 4 KiB; zero where there is no such file.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1);
    pages.map_or(0, |pages| pages.parse().unwrap_or(0) * 4_096)
}

//! Runs a fuzz target without a fuzzer: over its corpus, and over random changes of that.
//!
//! The corpus is `fuzz/corpus/<target>`, where `cargo fuzz` has it too. Its files are written by
//! the tests (`HIGHWATER_REWRITE=1`), but for those that a fuzzer found and somebody put there.
//! `HIGHWATER_FUZZ_SECONDS` makes a run of changes as long as that, `HIGHWATER_FUZZ_SEED` begins
//! it elsewhere; a failure prints the seed and the input that repeat it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a fuzzer calls: it panics on a finding.
pub(crate) type Target = fn(&[u8]);

fn folder(target: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../fuzz/corpus").join(target)
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder(target)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        inputs.push((name, fs::read(path).unwrap()));
    }
    inputs.sort();
    inputs
}

/// Checks that these inputs are in the corpus, or puts them there.
pub(crate) fn keep(target: &str, inputs: &[(String, Vec<u8>)]) {
    let rewrite = std::env::var_os("HIGHWATER_REWRITE").is_some_and(|value| value == "1");
    for (name, bytes) in inputs {
        let path = folder(target).join(name);
        if rewrite {
            fs::create_dir_all(folder(target)).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_default();
        assert_eq!(
            &kept,
            bytes,
            "{} (HIGHWATER_REWRITE=1 writes it)",
            path.display()
        );
    }
}

/// Runs the whole corpus. There must be at least so much of it.
pub(crate) fn replay(target: &str, run: Target, at_least: usize) {
    let inputs = corpus(target);
    assert!(inputs.len() >= at_least, "only {} inputs", inputs.len());
    for (name, bytes) in inputs {
        attempt(run, &bytes, &format!("{target}/{name}"));
    }
}

/// Runs changed inputs: so many, or for as long as the environment says.
pub(crate) fn change(target: &str, run: Target, count: u64) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let seed = number("HIGHWATER_FUZZ_SEED").unwrap_or(1);
    let end = number("HIGHWATER_FUZZ_SECONDS");
    let end = end.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let inputs: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, bytes)| bytes).collect();
    let mut done = 0;
    while end.map_or(done < count, |end| Instant::now() < end) {
        // Each input by a seed of its own, so that one can be repeated alone.
        let seed = seed + done;
        let bytes = changed(&mut Random(seed), &inputs);
        attempt(
            run,
            &bytes,
            &format!("{target}, HIGHWATER_FUZZ_SEED={seed}"),
        );
        done += 1;
    }
    println!("{target}: {done} inputs from seed {seed} on");
}

fn attempt(run: Target, bytes: &[u8], name: &str) {
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| run(bytes))) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{name} failed with the input {hex}");
        resume_unwind(failure);
    }
}

const LONGEST: usize = 8_192;

fn changed(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(inputs).clone();
    for _ in 0..1 + random.below(6) {
        change_once(random, &mut bytes, inputs);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change_once(random: &mut Random, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    let start = random.below(bytes.len() + 1);
    let length = 1 + random.below(24);
    let end = (start + length).min(bytes.len());
    match random.below(9) {
        0 => {
            if let Some(byte) = bytes.get_mut(start) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(start) {
                *byte = random.next() as u8;
            }
        }
        2 => {
            let edge = *random.pick(&[
                0_u64, 1, 0x7f, 0x80, 0xff, 250, 251, 128, 129, 2_085, 65_535,
            ]);
            let width = *random.pick(&[1, 2, 4, 8]);
            let edge = edge.to_be_bytes();
            let edge = if random.below(4) == 0 {
                [0xff; 8]
            } else {
                edge
            };
            let places = bytes.iter_mut().skip(start).zip(&edge[8 - width..]);
            places.for_each(|(place, byte)| *place = *byte);
        }
        3 => {
            let byte = random.next() as u8;
            bytes.splice(start..start, std::iter::repeat_n(byte, length));
        }
        4 => {
            let fresh: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            bytes.splice(start..start, fresh);
        }
        5 => {
            bytes.drain(start..end);
        }
        6 => {
            let copy = bytes[start..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        7 => bytes.truncate(start),
        _ => {
            let other = random.pick(inputs);
            let from = random.below(other.len() + 1);
            let to = (from + 1 + random.below(300)).min(other.len());
            bytes.splice(start..end, other[from..to].iter().copied());
        }
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

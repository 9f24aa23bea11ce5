//! Many seeds at once, on every core.

use std::num::NonZeroUsize;
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Mutant, Run, Stats, run};

/// What came of many runs.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// How many there were.
    pub runs: u64,
    /// What happened in all of them.
    pub stats: Stats,
    /// How many grants clients were told of.
    pub grants: usize,
    /// How many calls had an unknown outcome.
    pub unknown: usize,
    /// How many writes were acknowledged, and how many refused for a higher token.
    pub writes: (usize, usize),
    /// Those that broke a promise, by seed.
    pub failed: Vec<Run>,
}

/// Runs every seed, with a bug if one is asked for, on all cores.
pub fn run_all(seeds: &[u64], mutant: Option<Mutant>) -> Runs {
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Runs::default());
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = told(*seed, mutant);
                    let mut total = total.lock().expect("no run holds it");
                    total.add(run);
                }
            });
        }
    });
    let mut total = total.into_inner().expect("no run holds it");
    total.failed.sort_by_key(|run| run.seed);
    total
}

/// A run that tells its seed if an assertion of the lock core or of the simulation fails in it.
fn told(seed: u64, mutant: Option<Mutant>) -> Run {
    match panic::catch_unwind(|| run(seed, mutant)) {
        Ok(run) => run,
        Err(cause) => {
            let again = replay(seed, mutant);
            eprintln!("seed {seed} panicked\nto repeat it: {again}");
            panic::resume_unwind(cause)
        }
    }
}

fn replay(seed: u64, mutant: Option<Mutant>) -> String {
    let mutant = mutant.map(|mutant| format!(" --mutant {mutant:?}"));
    let mutant = mutant.unwrap_or_default();
    format!("cargo xtask simulate --seed {seed}{mutant}")
}

impl Runs {
    fn add(&mut self, run: Run) {
        self.runs += 1;
        self.stats.add(&run.stats);
        self.grants += run.report.grants;
        self.unknown += run.report.unknown;
        self.writes.0 += run.report.writes;
        self.writes.1 += run.report.stale;
        if !run.report.violations.is_empty() {
            self.failed.push(run);
        }
    }
}

impl Run {
    /// The command that runs this seed again.
    pub fn replay(&self) -> String {
        replay(self.seed, self.mutant)
    }

    /// What is broken, by which events, and how to see it again.
    pub fn explain(&self) -> String {
        let mode = if self.is_durable {
            "durable"
        } else {
            "volatile"
        };
        let mut text = format!("seed {}: {} nodes, {mode}\n", self.seed, self.nodes);
        for violation in &self.report.violations {
            text.push_str(&violation.explain(&self.history));
            text.push('\n');
        }
        text + "to repeat it: " + &self.replay()
    }
}

//! Runs the simulation: `simulate [--seed N] [--seeds N] [--from N] [--mutant NAME]`.
//!
//! With `--seed` it runs that one, writes its history to a file and prints where; else `--seeds`
//! many (2,000 unless told), from `--from` (0) up. Exits with 1 if a promise is broken.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use highwater_history::simulation::{Mutant, Run, Runs, run_all};

const USAGE: &str = "usage: cargo xtask simulate [--seed N] [--seeds N] [--from N] [--mutant NAME]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match options(&arguments) {
        Ok(options) => simulate(&options),
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    seeds: Vec<u64>,
    is_single: bool,
    mutant: Option<Mutant>,
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut given = BTreeMap::new();
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} needs a value", pair[0]));
        };
        if !["--seed", "--seeds", "--from", "--mutant"].contains(&name.as_str()) {
            return Err(format!("{name} is not an option"));
        }
        given.insert(name.as_str(), value.as_str());
    }
    let number = |name: &str| match given.get(name) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{name} needs a number")),
        },
    };
    let mutant = given.get("--mutant").map(|name| {
        let mut all = Mutant::ALL.into_iter();
        let named = all.find(|mutant| format!("{mutant:?}") == *name);
        named.ok_or_else(|| format!("the mutants are {:?}", Mutant::ALL))
    });
    let single = number("--seed")?;
    let from = number("--from")?.unwrap_or(0);
    let count = number("--seeds")?.unwrap_or(2_000);
    Ok(Options {
        seeds: match single {
            Some(seed) => vec![seed],
            None => (from..from.saturating_add(count)).collect(),
        },
        is_single: single.is_some(),
        mutant: mutant.transpose()?,
    })
}

fn simulate(options: &Options) -> ExitCode {
    let begin = Instant::now();
    let runs = run_all(&options.seeds, options.mutant);
    for run in runs.failed.iter().take(5) {
        println!("{}", run.explain());
        write(run);
    }
    if options.is_single && runs.failed.is_empty() {
        // Seen by whoever asks for one seed, also when nothing is wrong with it.
        write(&highwater_history::simulation::run(
            options.seeds[0],
            options.mutant,
        ));
    }
    tell(&runs, begin.elapsed().as_secs_f64());
    match runs.failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn tell(runs: &Runs, seconds: f64) {
    for (name, count) in runs.stats.all() {
        println!("{count:>10} {}", name.replace('_', " "));
    }
    let (written, stale) = runs.writes;
    println!(
        "{} seeds in {seconds:.1} s: {} grants, {} unknown outcomes, {written} writes, {stale} stale; \
         {} seeds broke a promise",
        runs.runs,
        runs.grants,
        runs.unknown,
        runs.failed.len()
    );
    let failed: Vec<String> = runs.failed.iter().map(|run| run.seed.to_string()).collect();
    if !failed.is_empty() {
        println!("failed seeds: {}", failed.join(" "));
    }
}

/// Leaves the history where it can be read.
fn write(run: &Run) {
    let folder = PathBuf::from("target/simulation");
    let file = folder.join(format!("seed-{}.txt", run.seed));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&file, run.history.to_string()));
    match written {
        Ok(()) => println!("history: {}", file.display()),
        Err(problem) => println!("the history is not written: {problem}"),
    }
}

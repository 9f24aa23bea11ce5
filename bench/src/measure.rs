//! Rounds, in which the targets take turns.

use std::sync::Arc;
use std::time::Duration;

use highwater_client::Key;
use indicatif::{ProgressBar, ProgressStyle};

use crate::BenchError;
use crate::load::{self, Pattern, Place, Slice};
use crate::report::{Report, Row};
use crate::target::Target;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many cycles run at once.
    pub tasks: usize,
    /// How many keys the tasks share when they contend.
    pub keys: usize,
    /// What is measured one after the other.
    pub patterns: Vec<Pattern>,
    /// How often every target has its turn, after one that is not counted.
    pub rounds: usize,
    /// How long a turn is.
    pub time: Duration,
    /// Whether to show how far it is, on standard error if that is a terminal.
    pub progress: bool,
}

/// Measures the targets in turns. The first one is what the others are compared with.
///
/// # Errors
/// The first cycle that fails ends everything: figures of a broken target are worth nothing.
pub async fn measure(targets: Vec<Target>, settings: &Settings) -> Result<Report, BenchError> {
    let counts = [
        settings.tasks,
        settings.keys,
        settings.rounds,
        targets.len(),
        settings.patterns.len(),
    ];
    if counts.contains(&0) || settings.time.is_zero() {
        return Err(BenchError::Empty);
    }
    let targets: Vec<Arc<Target>> = targets.into_iter().map(Arc::new).collect();
    let turns = settings.patterns.len() * (settings.rounds + 1) * targets.len();
    let bar = bar(turns, settings.progress);
    for target in &targets {
        bar.set_message(format!("{} takes {} keys", target.kind(), target.held()));
        target.fill().await.map_err(|source| BenchError::Cycle {
            target: target.kind(),
            source,
        })?;
    }
    let mut rows = Vec::new();
    for &pattern in &settings.patterns {
        // Tokens of different targets have nothing to do with each other.
        let places: Vec<_> = targets.iter().map(|_| places(pattern, settings)).collect();
        let mut slices: Vec<Vec<Slice>> = targets.iter().map(|_| Vec::new()).collect();
        for round in 0..=settings.rounds {
            for ((target, places), slices) in targets.iter().zip(&places).zip(&mut slices) {
                bar.set_message(format!("{} {}", pattern.name(), target.kind()));
                let slice = load::run(target, places, settings.tasks, settings.time).await;
                let slice = slice.map_err(|source| BenchError::Cycle {
                    target: target.kind(),
                    source,
                })?;
                // The first one only warms up.
                if round > 0 {
                    slices.push(slice);
                }
                bar.inc(1);
            }
        }
        let first = &slices[0];
        let row =
            |(target, own): (&Arc<Target>, &Vec<Slice>)| Row::new(target, pattern, own, first);
        rows.extend(targets.iter().zip(&slices).map(row));
    }
    bar.finish_and_clear();
    for target in &targets {
        target.close().await;
    }
    Ok(Report::new(settings, rows))
}

fn places(pattern: Pattern, settings: &Settings) -> Arc<[Place]> {
    let keys = match pattern {
        Pattern::Contended => settings.keys,
        Pattern::Uncontended => settings.tasks,
        Pattern::Scattered => 0,
    };
    let name = pattern.name();
    (0..keys)
        .map(|key| {
            Place::new(Key::new(format!("bench/{name}/{key}")).expect("a legal and short key"))
        })
        .collect()
}

fn bar(turns: usize, shown: bool) -> ProgressBar {
    if !shown {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta} left)");
    ProgressBar::new(turns as u64).with_style(style.expect("a template of known fields"))
}

//! What came of a run: the checks, and how long nobody was granted anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use highwater_history::{Assumptions, Event, History, Report, check};

use crate::Failure;
use crate::faults::Fault;
use crate::trace::Trace;

/// How long nobody was granted anything, by fault.
#[derive(Debug, Default)]
pub(crate) struct Gaps(BTreeMap<String, Vec<Duration>>);

impl Gaps {
    /// Notes the longest time without a grant from a fault until it was mended.
    pub(crate) fn note(&mut self, faults: &[Fault], gap: Duration) {
        let name = match faults {
            [fault] => fault.name(),
            _ => "several at once",
        };
        self.0.entry(name.to_owned()).or_default().push(gap);
    }

    /// How many times something was broken.
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// One line for each fault.
    pub(crate) fn print(&self) {
        println!(
            "{:<28} {:>5} {:>10} {:>10}",
            "longest time without a grant", "times", "median", "worst"
        );
        for (name, gaps) in &self.0 {
            let mut gaps = gaps.clone();
            gaps.sort_unstable();
            let median = gaps[gaps.len() / 2].as_secs_f64();
            let worst = gaps.last().map_or(0.0, Duration::as_secs_f64);
            println!(
                "{name:<28} {:>5} {median:>8.2} s {worst:>8.2} s",
                gaps.len()
            );
        }
    }
}

/// Checks what was seen, with and without the decisions of the log.
///
/// # Errors
/// A promise is broken, or so little happened that the run proves nothing. What was seen is written
/// to the folder.
pub(crate) fn judge(seen: &History, trace: &Trace, folder: &Path) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    let report = check(seen, ASSUMPTIONS);
    println!(
        "all clients: {} events, {} grants, {} unknown, {} writes, {} stale writes",
        seen.entries().len(),
        report.grants,
        report.unknown,
        report.writes,
        report.stale
    );
    wrong.extend(explain(&report, seen, folder, "clients.history")?);
    if report.grants == 0 || report.writes == 0 {
        wrong.push("nothing was granted or written: that proves nothing".to_owned());
    }
    match trace.join(seen, WIRE) {
        Ok(joined) => {
            let report = check(&joined, ASSUMPTIONS);
            let decided = joined.entries().iter();
            let decided = decided.filter(|entry| matches!(entry.event, Event::Decided { .. }));
            println!(
                "with {} decisions of {} entries of the log: {} grants",
                decided.count(),
                trace.entries(),
                report.grants
            );
            wrong.extend(explain(&report, &joined, folder, "decisions.history")?);
            if report.grants == 0 {
                wrong.push("no decision was looked at: that proves nothing".to_owned());
            }
        }
        Err(error) => {
            std::fs::write(folder.join("clients.history"), seen.to_string())?;
            wrong.push(error.to_string());
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}

fn explain(
    report: &Report,
    history: &History,
    folder: &Path,
    name: &str,
) -> Result<Vec<String>, Failure> {
    if report.violations.is_empty() {
        return Ok(Vec::new());
    }
    std::fs::write(folder.join(name), history.to_string())?;
    let shown = report.violations.iter().take(SHOWN);
    let mut lines: Vec<String> = shown.map(|found| found.explain(history)).collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for found in &report.violations {
        *counts.entry(format!("{:?}", found.rule)).or_default() += 1;
    }
    let counts = counts.iter().map(|(rule, count)| format!("{count} {rule}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    lines.push(format!("broken promises, with lines of {name}: {counts}"));
    Ok(lines)
}

const WIRE: &str = "wire/";
const SHOWN: usize = 8;

/// What the checker holds the cluster to. All nodes have the recorder's clock.
pub(crate) const ASSUMPTIONS: Assumptions = Assumptions {
    clock_rate_ppm: 1_000,
    recovery: 25_000_000,
};

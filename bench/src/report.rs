//! Figures: medians of rounds, and ratios within them.

use std::fmt;

use hdrhistogram::Histogram;

use crate::load::{Pattern, Slice, histogram};
use crate::measure::Settings;
use crate::target::{Kind, Target};

/// Everything that was measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// How many cycles ran at once.
    pub tasks: usize,
    /// How many keys they shared when they contended.
    pub keys: usize,
    /// How many rounds the medians are of.
    pub rounds: usize,
    /// How long each turn was, in seconds.
    pub seconds: f64,
    /// One per pattern and target.
    pub rows: Vec<Row>,
}

/// One target on one pattern.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Which keys were used.
    pub pattern: Pattern,
    /// What was measured.
    pub target: Kind,
    /// How many other keys it held meanwhile.
    pub held: u64,
    /// The figures themselves.
    pub figures: Figures,
    /// Cycles per second over those of the first target.
    pub throughput_ratio: f64,
    /// The 99th percentile over that of the first target.
    pub p99_ratio: f64,
}

/// Medians of the rounds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figures {
    /// Acquired and released again, per second.
    pub cycles_per_second: f64,
    /// How long a cycle took, all rounds together.
    pub latency: Latency,
}

/// In microseconds.
#[derive(Clone, Debug, serde::Serialize)]
#[allow(missing_docs, reason = "percentiles say what they are")]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1_000.0,
        }
    }
}

impl Row {
    pub(crate) fn new(target: &Target, pattern: Pattern, own: &[Slice], first: &[Slice]) -> Self {
        Self::of((target.kind(), target.held()), pattern, own, first)
    }

    fn of((target, held): (Kind, u64), pattern: Pattern, own: &[Slice], first: &[Slice]) -> Self {
        let mut all = histogram();
        for slice in own {
            all.add(&slice.latency).expect("all grow as they need to");
        }
        let p99 = |slice: &Slice| slice.latency.value_at_quantile(0.99) as f64;
        let pairs = || own.iter().zip(first);
        Self {
            pattern,
            target,
            held,
            figures: Figures {
                cycles_per_second: median(own.iter().map(Slice::per_second)),
                latency: Latency::of(&all),
            },
            throughput_ratio: median(pairs().map(|(a, b)| a.per_second() / b.per_second())),
            p99_ratio: median(pairs().map(|(a, b)| p99(a) / p99(b))),
        }
    }
}

impl Report {
    pub(crate) fn new(settings: &Settings, rows: Vec<Row>) -> Self {
        Self {
            tasks: settings.tasks,
            keys: settings.keys,
            rounds: settings.rounds,
            seconds: settings.time.as_secs_f64(),
            rows,
        }
    }
}

impl fmt::Display for Report {
    /// A table in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} tasks, {} keys when contended, median of {} rounds of {} s; latency of a cycle in µs",
            self.tasks, self.keys, self.rounds, self.seconds
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "| keys | target | held besides | cycles/s | ratio | p50 | p90 | p99 | ratio | p99.9 | max |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|---|")?;
        for row in &self.rows {
            let latency = &row.figures.latency;
            writeln!(
                f,
                "| {} | {} | {} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} |",
                row.pattern.name(),
                row.target,
                row.held,
                row.figures.cycles_per_second,
                row.throughput_ratio,
                latency.p50,
                latency.p90,
                latency.p99,
                row.p99_ratio,
                latency.p999,
                latency.max,
            )?;
        }
        Ok(())
    }
}

/// The middle one; of an even number the upper one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn slice(cycles: u64, latency: u64) -> Slice {
        let mut histogram = histogram();
        histogram.record_n(latency, cycles).unwrap();
        Slice {
            latency: histogram,
            elapsed: Duration::from_secs(2),
        }
    }

    #[test]
    fn ratios_are_those_within_a_round() {
        let first = [slice(100, 1_000), slice(400, 8_000), slice(1_000, 1_000)];
        let own = [slice(50, 2_000), slice(200, 8_000), slice(250, 1_000)];
        let row = Row::of((Kind::Redis, 0), Pattern::Contended, &own, &first);
        assert_eq!(row.figures.cycles_per_second, 100.0);
        assert_eq!(row.throughput_ratio, 0.5);
        assert_eq!(row.p99_ratio, 1.0);
        assert!((7.9..8.1).contains(&row.figures.latency.max));
    }

    #[test]
    fn a_report_has_a_line_for_each_row() {
        let first = [slice(100, 1_000)];
        let row = Row::of((Kind::Echo, 7), Pattern::Uncontended, &first, &first);
        let report = Report {
            tasks: 64,
            keys: 32,
            rounds: 1,
            seconds: 2.0,
            rows: vec![row],
        };
        let text = report.to_string();
        assert!(
            text.contains("| uncontended | echo | 7 | 50 | 1.00 | 1 | 1 | 1 | 1.00 | 1 | 1 |"),
            "{text}"
        );
    }
}

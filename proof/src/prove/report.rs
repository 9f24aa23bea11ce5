//! The table that a proof prints, its JSON, and what counts as one.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::round::Told;
use super::words::{Form, Level};

/// All rows of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Repeats the run.
    pub seed: u64,
    /// See [`Report::is_proof`].
    pub proof: bool,
    /// Ordered by isolation level, adapter and form.
    pub rows: Vec<Row>,
}

/// One adapter in one form on one isolation level.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(skip)]
    pub(super) position: usize,
    /// The database system.
    pub database: String,
    /// Its version.
    pub version: String,
    /// The level of all transactions.
    pub isolation: Level,
    /// The name of the adapter.
    pub adapter: String,
    /// The form.
    pub form: Form,
    /// Rounds played.
    pub rounds: u32,
    /// What was counted; nothing if a round did not come to its end.
    #[serde(flatten)]
    pub counts: Option<Counts>,
    /// What it amounts to.
    pub verdict: Verdict,
    /// More about a row that is not as it must be.
    pub reason: Option<String>,
}

/// The numbers of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Writes of a holder after its successor had written.
    pub stale_writes: u32,
    /// Those of them that the fence refused.
    pub refused: u32,
    /// Sold units that the stock still offers, and ordered ones without a trace.
    pub lost: i64,
    /// Units that were sold or deducted more than once.
    pub doubled: i64,
}

/// What a row amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Fenced: every unit is accounted for, and every stale write was refused.
    Exact,
    /// Fenced: units are wrong. The fence failed.
    Damaged,
    /// Fenced: every unit is right, but not every stale write was refused, or there was none.
    NotRefused,
    /// The control: units are wrong, as they must be for the other rows to mean something.
    DamagedControl,
    /// The control: nothing is wrong, so the rounds prove nothing.
    NoDamage,
    /// A round did not come to its end.
    Incomplete,
}

impl Verdict {
    /// Whether a proof may have such a row.
    pub fn is_as_it_must_be(self) -> bool {
        matches!(self, Self::Exact | Self::DamagedControl)
    }

    pub(super) fn of(form: Form, counts: Option<Counts>) -> Self {
        let Some(counts) = counts else {
            return Self::Incomplete;
        };
        let right = counts.lost == 0 && counts.doubled == 0;
        let refused = counts.stale_writes > 0 && counts.refused == counts.stale_writes;
        match (form.is_fenced(), right) {
            (true, false) => Self::Damaged,
            (true, true) if refused => Self::Exact,
            (true, true) => Self::NotRefused,
            (false, true) => Self::NoDamage,
            (false, false) => Self::DamagedControl,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Damaged => "DAMAGED",
            Self::NotRefused => "NOT REFUSED",
            Self::DamagedControl => "damaged, as expected",
            Self::NoDamage => "NO DAMAGE, proves nothing",
            Self::Incomplete => "INCOMPLETE",
        }
    }
}

impl Told {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            stale_writes: self.stale_writes + other.stale_writes,
            refused: self.refused + other.refused,
            other: self.other.or(other.other),
        }
    }
}

impl Row {
    /// Its place in words, for a line of its own.
    pub fn name(&self) -> String {
        let (database, version, level) = (&self.database, &self.version, self.isolation);
        let (adapter, form) = (&self.adapter, self.form);
        format!("{database} {version}, {level}, {adapter}, {form}")
    }

    /// All of it in one line.
    pub fn summary(&self) -> String {
        let (name, rounds, verdict) = (self.name(), self.rounds, self.verdict.words());
        let Some(counts) = self.counts else {
            return format!("{name}: {verdict}");
        };
        let Counts {
            stale_writes,
            refused,
            lost,
            doubled,
        } = counts;
        format!(
            "{name}: {rounds} rounds, {refused} of {stale_writes} stale writes refused, {lost} units \
             lost, {doubled} doubled: {verdict}"
        )
    }

    /// What is wrong with it, if something is.
    pub fn complaint(&self) -> Option<String> {
        if self.verdict.is_as_it_must_be() {
            return None;
        }
        let reason = match (&self.reason, self.verdict) {
            (Some(reason), _) => format!(": {reason}"),
            (None, Verdict::NoDamage) => {
                ": the rounds are harmless, so no row means anything".into()
            }
            (None, _) => String::new(),
        };
        Some(format!("{}: {}{reason}", self.name(), self.verdict.words()))
    }
}

impl Report {
    pub(super) fn new(seed: u64, rows: Vec<Row>) -> Self {
        let proof = !rows.is_empty() && rows.iter().all(|row| row.verdict.is_as_it_must_be());
        Self { seed, proof, rows }
    }

    /// Whether every fenced row is exact and every control is damaged.
    pub fn is_proof(&self) -> bool {
        self.proof
    }

    /// The rows that are not as they must be, in words.
    pub fn complaints(&self) -> Vec<String> {
        self.rows.iter().filter_map(Row::complaint).collect()
    }

    /// As a table in Markdown.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(HEADER);
        for row in &self.rows {
            let cell = |show: fn(Counts) -> String| row.counts.map_or("-".to_owned(), show);
            table.add_row([
                row.database.clone(),
                row.version.clone(),
                row.isolation.to_string(),
                row.adapter.clone(),
                row.form.to_string(),
                row.rounds.to_string(),
                cell(|counts| format!("{} of {}", counts.refused, counts.stale_writes)),
                cell(|counts| counts.lost.to_string()),
                cell(|counts| counts.doubled.to_string()),
                row.verdict.words().to_owned(),
            ]);
        }
        for column in 5..9 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that is known: all of it is numbers and text.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

const HEADER: [&str; 10] = [
    "database",
    "version",
    "isolation",
    "adapter",
    "form",
    "rounds",
    "stale writes refused",
    "lost units",
    "doubled units",
    "verdict",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(stale_writes: u32, refused: u32, lost: i64, doubled: i64) -> Option<Counts> {
        Some(Counts {
            stale_writes,
            refused,
            lost,
            doubled,
        })
    }

    #[test]
    fn a_fenced_row_must_be_exact_and_must_have_refused_every_stale_write() {
        let of = |counts| Verdict::of(Form::Guard, counts);
        assert_eq!(of(counted(3, 3, 0, 0)), Verdict::Exact);
        assert_eq!(of(counted(3, 3, 1, 0)), Verdict::Damaged);
        assert_eq!(of(counted(3, 3, 0, 1)), Verdict::Damaged);
        assert_eq!(of(counted(3, 2, 0, 0)), Verdict::NotRefused);
        assert_eq!(of(counted(0, 0, 0, 0)), Verdict::NotRefused);
        assert_eq!(of(None), Verdict::Incomplete);
    }

    #[test]
    fn a_control_without_damage_is_no_proof() {
        let of = |counts| Verdict::of(Form::Plain, counts);
        assert_eq!(of(counted(3, 0, 0, 0)), Verdict::NoDamage);
        assert_eq!(of(counted(3, 0, 1, 0)), Verdict::DamagedControl);
        assert_eq!(of(counted(3, 0, 0, 1)), Verdict::DamagedControl);
    }

    fn row(form: Form, verdict: Verdict) -> Row {
        Row {
            position: 0,
            database: "SQLite".to_owned(),
            version: "3.51.0".to_owned(),
            isolation: Level::Serializable,
            adapter: "sqlx".to_owned(),
            form,
            rounds: 3,
            counts: counted(3, 3, 0, 0),
            verdict,
            reason: None,
        }
    }

    #[test]
    fn one_wrong_row_spoils_the_proof_and_is_named() {
        let exact = row(Form::Closure, Verdict::Exact);
        let control = row(Form::Plain, Verdict::DamagedControl);
        let good = Report::new(1, vec![exact.clone(), control]);
        assert!(good.is_proof() && good.complaints().is_empty());

        let harmless = row(Form::Plain, Verdict::NoDamage);
        let bad = Report::new(1, vec![exact, harmless]);
        assert!(!bad.is_proof());
        let [complaint] = &bad.complaints()[..] else {
            panic!("one complaint");
        };
        assert!(complaint.contains("NO DAMAGE"), "{complaint}");
        assert!(bad.json().unwrap().contains("\"no-damage\""));
        assert!(!Report::new(1, Vec::new()).is_proof());
    }

    #[test]
    fn a_row_without_counts_has_none_in_any_output() {
        let mut row = row(Form::Guard, Verdict::Incomplete);
        row.counts = None;
        row.reason = Some("the power went out".to_owned());
        let report = Report::new(1, vec![row]);
        let table = report.table();
        let cells: Vec<_> = table
            .lines()
            .last()
            .unwrap()
            .split('|')
            .map(str::trim)
            .collect();
        assert_eq!(cells[7..10], ["-", "-", "-"], "{table}");
        assert!(!report.json().unwrap().contains("lost"));
        assert!(report.complaints()[0].ends_with("INCOMPLETE: the power went out"));
    }
}

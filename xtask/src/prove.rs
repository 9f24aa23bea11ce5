//! `cargo xtask prove`: `highwater prove` on every database release that claims are made about, and
//! one table of all.
//!
//! A release that cannot be had is a row of the table too, with the reason.

use std::env;
use std::fs;

use crate::Result;
use crate::features::Features;
use crate::interop;
use crate::run::{Command, Steps};
use crate::test;

/// What the table has, and the middle of the variables `HIGHWATER_TEST_…_URL` and `_SKIP_…`.
const RELEASES: [(&str, &str); 6] = [
    ("PostgreSQL 15", "POSTGRES"),
    ("PostgreSQL 17", "POSTGRES_17"),
    ("PostgreSQL 18", "POSTGRES_18"),
    ("MySQL 9", "MYSQL"),
    ("MariaDB 10.11", "MARIADB"),
    ("MariaDB 11.8", "MARIADB_11_8"),
];

/// Every form runs on one level only: that is where forms could differ, and it saves minutes.
const OPTIONS: [&str; 4] = ["--rounds", "6", "--other-forms-on", "repeatable-read"];

/// Starts all servers, and runs everything on them.
pub(crate) fn run() -> Result<()> {
    let metadata = interop::metadata()?;
    let features = Features::of(&metadata);
    features.tell();
    // The selection of the tests, so that nothing is compiled twice. A small test is among it, because what tests alone
    // depend on asks for more of libc, and most crates depend on that.
    Command::cargo()
        .args(["build", "--workspace", "--locked"])
        .args([
            "--bin",
            "highwater",
            "--bin",
            "with-databases",
            "--test",
            "words",
        ])
        .args(features.arguments())
        .run()?;
    let servers = metadata.target_directory.join("debug/with-databases");
    let here = Command::cargo().args(["xtask", "prove", "--here"]);
    let images = test::images();
    let with_servers = Command::new(servers).args(["--all"]).args(here.words());
    let with_servers = images
        .iter()
        .fold(with_servers, |command, (variable, image)| {
            command.env(variable, image)
        });
    with_servers.run()
}

/// Runs on SQLite and on the servers that the environment names.
pub(crate) fn run_here() -> Result<()> {
    let metadata = interop::metadata()?;
    let lacking = Features::of(&metadata).lack_mysql_client();
    let target = metadata.target_directory;
    let folder = target.join("proof");
    // Left behind by a run that was killed.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let mut steps = Steps::default();
    let mut table = Table::default();
    let prove = |name: &str| {
        let json = folder.join(format!("{}.json", name.to_lowercase()));
        Command::new(target.join("debug/highwater"))
            .args(["prove"])
            .args(OPTIONS)
            .args(["--json", json.as_str()])
    };
    let file = format!("sqlite://{}?mode=rwc", folder.join("proof.db"));
    let on_sqlite = prove("sqlite").env("DATABASE_URL", &file);
    let done = table.take(&on_sqlite, &test::adapters_on("sqlite", lacking));
    steps.note("proof on SQLite", done);
    for (release, name) in RELEASES {
        let variable = format!("HIGHWATER_TEST_{name}_URL");
        let outcome = if is_set(&variable) {
            let on_server = prove(name).env_from("DATABASE_URL", &variable);
            let kind = name.split('_').next().unwrap_or(name).to_lowercase();
            table.take(&on_server, &test::adapters_on(&kind, lacking))
        } else {
            let skip = env::var(format!("HIGHWATER_TEST_SKIP_{name}"));
            let reason = skip.ok().filter(|reason| !reason.is_empty());
            table.missing(release, reason.as_deref().unwrap_or("no server"));
            match reason {
                Some(_) => Ok(()),
                None => Err(format!("{variable} is not set").into()),
            }
        };
        steps.note(&format!("proof on {release}"), outcome);
    }
    let table = table.text();
    println!("\n{table}");
    fs::write(folder.join("table.md"), table)?;
    println!("in {folder}: this table, and a JSON file per database");
    steps.finish()
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// The tables of all runs, one after the other.
#[derive(Debug, Default)]
struct Table {
    /// The head first.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Runs a proof and takes its rows.
    ///
    /// # Errors
    /// It failed, or one of the adapters has no row: the program may be of a build without it.
    fn take(&mut self, proof: &Command, adapters: &[&str]) -> Result<()> {
        let first = self.rows.len();
        proof.run_and_read(|line| self.read(line))?;
        self.has_all(first, adapters)
    }

    /// Looks for the adapters in the rows from `first` on.
    fn has_all(&self, first: usize, adapters: &[&str]) -> Result<()> {
        let rows = self.rows.get(first..).unwrap_or_default();
        let cells: Vec<&str> = rows.iter().flatten().map(String::as_str).collect();
        let missing: Vec<&str> = (adapters.iter().copied())
            .filter(|adapter| !cells.contains(adapter))
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!("no row of {}", missing.join(", ")).into()),
        }
    }

    /// Takes a line that is a row; a head only once.
    fn read(&mut self, line: &str) {
        let Some(cells) = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'))
        else {
            return;
        };
        let cells: Vec<String> = cells
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect();
        let is_rule = |cell: &String| cell.chars().all(|char| "-:".contains(char));
        if !cells.iter().all(is_rule) && self.rows.first() != Some(&cells) {
            self.rows.push(cells);
        }
    }

    fn missing(&mut self, release: &str, reason: &str) {
        let (database, version) = release.split_once(' ').unwrap_or((release, ""));
        let width = self.rows.first().map_or(3, Vec::len);
        let mut row = vec!["-".to_owned(); width];
        row[0] = database.to_owned();
        row[1] = version.to_owned();
        row[width - 1] = format!("MISSING: {reason}");
        self.rows.push(row);
    }

    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                text += &format!("| {cell:<width$} ", width = width(column));
            }
            text += "|\n";
            if number == 0 {
                for column in 0..row.len() {
                    text += &format!("|{}", "-".repeat(width(column) + 2));
                }
                text += "|\n";
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_all_databases_become_one() {
        let mut table = Table::default();
        for line in [
            "| database | version | verdict |",
            "|----------|---------|---------|",
            "| SQLite   | 3.51.3  | exact   |",
            "(2 s)",
            "| database   | version | verdict |",
            "|------------|---------|---------|",
            "| PostgreSQL | 15.18   | exact   |",
        ] {
            table.read(line);
        }
        table.missing("MySQL 9", "gone");
        let expected = "\
| database   | version | verdict       |
|------------|---------|---------------|
| SQLite     | 3.51.3  | exact         |
| PostgreSQL | 15.18   | exact         |
| MySQL      | 9       | MISSING: gone |
";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn an_adapter_without_a_row_of_this_run_is_missed() {
        let mut table = Table::default();
        let head = "| database | version | isolation | adapter |";
        for line in [head, "| SQLite | 3 | SERIALIZABLE | sqlx |"] {
            table.read(line);
        }
        table.has_all(0, &["sqlx"]).unwrap();
        assert!(table.has_all(0, &["sqlx", "diesel"]).is_err());
        let first = table.rows.len();
        for line in [head, "| MySQL | 9 | SERIALIZABLE | mysql-async |"] {
            table.read(line);
        }
        table.has_all(first, &["mysql-async"]).unwrap();
        assert!(table.has_all(first, &["sqlx"]).is_err(), "of another run");
    }
}

//! `cargo xtask test`: every test there is, in tiers, and a summary at the end.
//!
//! All tiers select the same packages and features, so each crate is compiled once. What a tier
//! needs stands in the manifests (`required-features`); here they only decide the order.

use std::collections::{BTreeMap, VecDeque};

use cargo_metadata::{Metadata, TargetKind};

use crate::Result;
use crate::chaos;
use crate::features::Features;
use crate::interop;
use crate::prove;
use crate::run::{Command, Steps, root};

/// What every run of Cargo selects, besides the features.
const SELECTION: [&str; 4] = ["test", "--workspace", "--locked", "--no-fail-fast"];
/// What the conformance suite has to have run over: the adapters, and the databases of each.
const ADAPTERS: [(&str, &[&str]); 8] = [
    ("sqlx", &["sqlite", "postgres", "mysql", "mariadb"]),
    ("tokio-postgres", &["postgres"]),
    ("tokio-postgres (bb8)", &["postgres"]),
    ("diesel", &["sqlite", "postgres", "mysql", "mariadb"]),
    ("diesel-async", &["postgres", "mysql", "mariadb"]),
    ("rusqlite", &["sqlite"]),
    ("mysql-async", &["mysql", "mariadb"]),
    ("sea-orm", &["sqlite", "postgres", "mysql", "mariadb"]),
];

/// Runs all tiers and prints the summary.
pub(crate) fn run() -> Result<()> {
    let metadata = interop::metadata()?;
    let targets = Targets::of(&metadata);
    let features = Features::of(&metadata);
    let mut steps = Steps::default();
    let mut totals = Totals::default();

    features.tell();
    let images = images();
    for (variable, image) in &images {
        println!("using the image {image} (as if {variable} were set)");
    }
    let cargo = |words: &[String]| {
        let command = selected(&features).args(words.iter().cloned());
        images.iter().fold(command, |command, (variable, image)| {
            command.env(variable, image)
        })
    };
    // Cargo builds the examples of a package before its tests, but not where targets are chosen.
    let examples = Command::cargo().args(["build", "--workspace", "--locked"]);
    let examples = examples.args(features.arguments()).args(targets.examples);
    steps.note("examples", examples.run());
    steps.note("fast tier", totals.run(&cargo(&targets.fast)));
    steps.note("documentation", totals.run(&cargo(&["--doc".into()])));

    steps.note("databases", totals.run(&cargo(&targets.databases)));
    let with_servers = |command: Command| {
        // Built with the tests of its package. `cargo run` would select other features, and build
        // everything again.
        let holder = metadata.target_directory.join("debug/with-databases");
        let command = Command::new(holder).args(command.words());
        images.iter().fold(command, |command, (variable, image)| {
            command.env(variable, image)
        })
    };
    let on_servers = selected(&features).args(targets.servers);
    steps.note("databases", totals.run(&with_servers(on_servers)));
    let demo = Command::cargo().args(["xtask", "demo"]);
    steps.note("main job", with_servers(demo).run());
    println!("\n$ cargo xtask prove");
    steps.note("proof", prove::run());
    let left_out = chaos::run_bounded(&metadata);
    let left_out = left_out.unwrap_or_else(|error| {
        steps.note("chaos", Err(error));
        None
    });

    steps.note("interop", totals.run(&cargo(&targets.interop)));
    println!("\n$ cargo xtask interop, not optimized");
    steps.note("interop", interop::run(interop::Profile::Dev));

    let lacking = features.lack_mysql_client();
    steps.note("conformance", totals.print(expected(lacking)));
    let (passed, failed) = (totals.passed, totals.failed);
    features.tell();
    if let Some(note) = left_out {
        println!("NOTE: {note}");
    }
    let outcome = steps.finish();
    let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
    totals.failures.print();
    println!("total: {verdict}, {passed} tests passed, {failed} failed");
    outcome
}

/// Tests of the workspace; the words that choose among them follow.
fn selected(features: &Features) -> Command {
    Command::cargo().args(SELECTION).args(features.arguments())
}

/// The images of `cargo xtask images`, for each database that the environment says nothing about.
pub(crate) fn images() -> Vec<(String, String)> {
    let build = root().join("tests/images/build");
    let names = Command::new(build)
        .args(["--names"])
        .output()
        .unwrap_or_default();
    let pairs = names.lines().filter_map(|line| line.split_once(' '));
    let unset = |variable: &str| std::env::var_os(variable).is_none_or(|value| value.is_empty());
    pairs
        .filter_map(|(database, image)| {
            let database = database.to_uppercase().replace(['-', '.'], "_");
            let variable = |what| format!("HIGHWATER_TEST_{database}_{what}");
            let is_free = unset(&variable("URL")) && unset(&variable("IMAGE"));
            let inspect = Command::new("docker").args(["image", "inspect", image]);
            (is_free && inspect.output().is_some()).then(|| (variable("IMAGE"), image.to_owned()))
        })
        .collect()
}

/// The arguments that select the targets of each tier.
#[derive(Debug, Default)]
struct Targets {
    /// Examples that are no tests themselves: tests start them.
    examples: Vec<String>,
    fast: Vec<String>,
    databases: Vec<String>,
    /// Tests that take the URLs of running servers from the environment.
    servers: Vec<String>,
    interop: Vec<String>,
}

impl Targets {
    fn of(metadata: &Metadata) -> Self {
        let mut found = Self {
            fast: vec!["--lib".into(), "--bins".into()],
            ..Self::default()
        };
        for package in metadata.workspace_packages() {
            for target in &package.targets {
                let needs = |feature: &str| target.required_features.iter().any(|is| is == feature);
                let flag = match target.kind.first() {
                    Some(TargetKind::Test) => "--test",
                    Some(TargetKind::Example) => "--example",
                    _ => continue,
                };
                let tier = if !target.test {
                    &mut found.examples
                } else if needs("databases") {
                    &mut found.databases
                } else if needs("interop") {
                    &mut found.interop
                } else if needs("__servers") {
                    &mut found.servers
                } else {
                    &mut found.fast
                };
                tier.extend([flag.to_owned(), target.name.clone()]);
            }
        }
        found
    }
}

/// What the test binaries said.
#[derive(Debug, Default)]
struct Totals {
    passed: u32,
    failed: u32,
    failures: Failures,
    /// The lines of the conformance suite, by `ADAPTER on DATABASE`.
    conformance: BTreeMap<String, Conformance>,
}

#[derive(Debug, PartialEq, Eq)]
struct Conformance {
    cases: u32,
    passed: u32,
    failed: u32,
    /// Cases that ask for what the adapter or the database does not have.
    not_applicable: u32,
    server: String,
}

impl Totals {
    fn run(&mut self, command: &Command) -> Result<()> {
        command.run_and_read(|line| self.read(line))
    }

    fn read(&mut self, line: &str) {
        self.failures.read(line);
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.passed += number_before(summary, " passed").unwrap_or(0);
            self.failed += number_before(summary, " failed").unwrap_or(0);
        }
        if let Some((name, said)) = line
            .strip_prefix("conformance: ")
            .and_then(|line| line.split_once(": "))
        {
            let (numbers, server) = said.split_once("; ").unwrap_or((said, ""));
            let number = |what| number_before(numbers, what).unwrap_or(0);
            let line = Conformance {
                cases: number(" cases"),
                passed: number(" passed"),
                failed: number(" failed"),
                not_applicable: number(" n/a"),
                server: server.to_owned(),
            };
            self.conformance.insert(name.to_owned(), line);
        }
    }

    /// Prints the table of the conformance suite.
    ///
    /// # Errors
    /// An adapter or a database is missing, the numbers of cases differ, or not all cases passed.
    fn print(&self, expected: impl Iterator<Item = String>) -> Result<()> {
        println!(
            "\n{:<26} {:>6} {:>7} {:>7} {:>4}  server",
            "conformance", "cases", "passed", "failed", "n/a"
        );
        for (name, line) in &self.conformance {
            println!(
                "{name:<26} {:>6} {:>7} {:>7} {:>4}  {}",
                line.cases, line.passed, line.failed, line.not_applicable, line.server
            );
        }
        println!();
        let lines = self.conformance.values();
        let cases = lines.map(|line| line.cases).max().unwrap_or(0);
        let mut wrong = Vec::new();
        for name in expected {
            if !self.conformance.contains_key(&name) {
                wrong.push(format!("{name} did not run"));
            }
        }
        for (name, line) in &self.conformance {
            let settled = line.passed + line.not_applicable;
            if line.cases != cases {
                wrong.push(format!("{name} has {} cases, not {cases}", line.cases));
            } else if line.server.starts_with("SKIPPED") {
                println!("note: {name} {}", line.server);
            } else if settled != cases || line.failed != 0 {
                wrong.push(format!("{name}: {settled} of {cases} cases passed"));
            } else if line.passed == 0 {
                wrong.push(format!("{name}: no case passed"));
            }
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("; ").into()),
        }
    }
}

/// What the tests that failed printed, so that it stands at the end of the output too: of a long run, often nothing
/// but the end is kept.
#[derive(Debug, Default)]
struct Failures {
    /// The name of a test and the last lines of what it printed.
    tests: Vec<(String, VecDeque<String>)>,
    /// Whether the lines that come belong to the last of them.
    is_inside: bool,
}

impl Failures {
    /// How many of the last lines of a test are kept, and of how many tests.
    const LINES: usize = 40;
    const TESTS: usize = 10;

    /// The harness prints `---- NAME stdout ----` and the output of each test, then the list of their names after a
    /// line `failures:`.
    fn read(&mut self, line: &str) {
        let head = line.strip_prefix("---- ");
        if let Some(name) = head.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.tests.push((name.to_owned(), VecDeque::new()));
            self.is_inside = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.is_inside = false;
        } else if self.is_inside
            && let Some((_, lines)) = self.tests.last_mut()
        {
            if lines.len() == Self::LINES {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
        }
    }

    fn print(&self) {
        for (name, lines) in self.tests.iter().take(Self::TESTS) {
            println!("\nfailed: {name}");
            for line in lines {
                println!("  {line}");
            }
        }
        for (name, _) in self.tests.iter().skip(Self::TESTS) {
            println!("failed: {name}");
        }
    }
}

/// The adapters that have to have run on a database.
pub(crate) fn adapters_on(database: &str, lacks_mysql_client: bool) -> Vec<&'static str> {
    let expected: Vec<String> = expected(lacks_mysql_client).collect();
    let runs = |adapter: &&str| expected.contains(&format!("{adapter} on {database}"));
    ADAPTERS
        .map(|(adapter, _)| adapter)
        .into_iter()
        .filter(runs)
        .collect()
}

/// Everything that has to have run, as `ADAPTER on DATABASE`.
fn expected(lacks_mysql_client: bool) -> impl Iterator<Item = String> {
    let all = ADAPTERS.into_iter().flat_map(|(adapter, databases)| {
        let name = move |database| format!("{adapter} on {database}");
        databases.iter().map(name)
    });
    all.filter(move |name| {
        !lacks_mysql_client || !["diesel on mysql", "diesel on mariadb"].contains(&&**name)
    })
}

/// The number right before the word.
fn number_before(text: &str, word: &str) -> Option<u32> {
    let before = text.split_once(word)?.0;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Totals {
        let mut totals = Totals::default();
        lines.iter().for_each(|line| totals.read(line));
        totals
    }

    /// What a good run says.
    fn good() -> Vec<String> {
        let line = |name: String| {
            let said = match &*name {
                "sqlx on mysql" => "7 cases, 0 passed, 0 failed, 0 n/a; SKIPPED: sid is broken",
                "rusqlite on sqlite" => "7 cases, 5 passed, 0 failed, 2 n/a; a file",
                _ => "7 cases, 7 passed, 0 failed, 0 n/a; 15.18 (image x:15)",
            };
            format!("conformance: {name}: {said}")
        };
        expected(false).map(line).collect()
    }

    #[test]
    fn results_are_added_up() {
        let totals = read(&[
            "test result: ok. 12 passed; 0 failed; 0 ignored",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored",
            "test a ... ok",
        ]);
        assert_eq!((totals.passed, totals.failed), (15, 2));
    }

    #[test]
    fn what_a_failed_test_printed_is_kept() {
        let mut lines = vec![
            "test a::b ... FAILED",
            "failures:",
            "",
            "---- a::b stdout ----",
            "early",
        ];
        lines.extend([""; Failures::LINES]);
        lines.extend([
            "late",
            "failures:",
            "    a::b",
            "test result: FAILED. 0 passed",
        ]);
        lines.extend(["failures:", "---- c stdout ----", "more", "failures:"]);
        let failures = read(&lines).failures;
        let [(first, said), (second, more)] = &failures.tests[..] else {
            panic!("{failures:?}");
        };
        assert_eq!((&**first, said.len()), ("a::b", Failures::LINES));
        assert_eq!(said.back().map(String::as_str), Some("late"));
        assert!(!said.contains(&"early".to_owned()), "{said:?}");
        assert_eq!((&**second, more.len()), ("c", 1));
    }

    #[test]
    fn every_adapter_must_have_passed_the_same_number_of_cases_everywhere() {
        let check = |lines: &[String]| {
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            read(&lines).print(expected(false))
        };
        check(&good()).unwrap();
        let spoiled = [
            "conformance: sqlx on postgres: 7 cases, 6 passed, 1 failed, 0 n/a; x",
            "conformance: sqlx on postgres: 6 cases, 6 passed, 0 failed, 0 n/a; x",
            "conformance: sqlx on postgres: 7 cases, 3 passed, 0 failed, 3 n/a; x",
            "conformance: sqlx on postgres: 7 cases, 0 passed, 0 failed, 7 n/a; x",
            "conformance: sqlx on sqlite: 8 cases, 8 passed, 0 failed, 0 n/a; a file",
            "conformance: another on sqlite: 7 cases, 6 passed, 1 failed, 0 n/a; a file",
        ];
        for line in spoiled {
            let mut lines = good();
            lines.push(line.to_owned());
            assert!(check(&lines).is_err(), "{line}");
        }
        for missing in 0..good().len() {
            let mut lines = good();
            let line = lines.remove(missing);
            assert!(check(&lines).is_err(), "missing: {line}");
        }
        assert!(check(&[]).is_err());
    }

    #[test]
    fn every_database_has_its_adapters() {
        let sqlite = ["sqlx", "diesel", "rusqlite", "sea-orm"];
        assert_eq!(adapters_on("sqlite", false), sqlite);
        let on = |lacking| adapters_on("mysql", lacking).contains(&"diesel");
        assert_eq!((on(false), on(true)), (true, false));
        assert!(adapters_on("mariadb", true).contains(&"mysql-async"));
    }

    #[test]
    fn diesel_need_not_run_where_its_client_library_is_missing() {
        let lines: Vec<_> = good()
            .into_iter()
            .filter(|line| !line.contains("diesel on m"))
            .collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        read(&lines).print(expected(true)).unwrap();
        assert!(read(&lines).print(expected(false)).is_err());
    }
}

//! The fencing conformance suite: one table of cases, run over every adapter on every database.
//!
//! A case gets a `World` of its own. Everything under test goes through the adapter of that
//! world, so the suite is written once and the number of cases is the same everywhere. The
//! binaries in `tests/tests/` choose the databases; [`Suite`] runs the cases and counts.

#[expect(clippy::unwrap_used, reason = "a case fails by a panic")]
mod cases;
mod database;
mod observer;
mod proxy;
mod servers;
#[expect(clippy::unwrap_used, reason = "a case fails by a panic")]
mod world;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use highwater_proof::adapter::{self, Adapter};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

pub use database::Database;
use servers::Servers;
use world::World;

/// The longest that one case may take.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// One line of the table of cases.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    run: fn(Arc<World>) -> LocalBoxFuture<'static, ()>,
}

/// An adapter on a database.
#[derive(Clone, Copy)]
struct Subject {
    adapter: &'static dyn Adapter,
    database: &'static Database,
}

/// Cases over adapters and databases, and how they went.
pub struct Suite {
    arguments: Arguments,
    runtime: Arc<Runtime>,
    servers: Arc<Servers>,
    trials: Vec<Trial>,
    subjects: Vec<(Subject, Arc<Mutex<Tally>>)>,
}

#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    /// Names of cases that ask for what is not there, by the reason.
    not_applicable: BTreeMap<&'static str, Vec<&'static str>>,
}

impl Suite {
    /// All cases over all adapters of this build, on the databases that are chosen; reads the
    /// arguments of a test binary.
    ///
    /// # Panics
    /// There is no runtime to be had.
    pub fn from_arguments(chosen: fn(&Database) -> bool) -> Self {
        let mut arguments = Arguments::from_args();
        // The cases wait for locks and servers most of the time.
        arguments.test_threads.get_or_insert(8);
        let mut suite = Self {
            arguments,
            runtime: Arc::new(Runtime::new().expect("a runtime can be started")),
            servers: Arc::default(),
            trials: Vec::new(),
            subjects: Vec::new(),
        };
        for database in Database::ALL
            .into_iter()
            .filter(|database| chosen(database))
        {
            for adapter in adapter::all() {
                if adapter.dialect() == database.dialect {
                    suite.add(Subject { adapter, database });
                }
            }
        }
        suite
    }

    /// Adds all cases for one adapter on one database.
    fn add(&mut self, subject: Subject) {
        let tally = Arc::<Mutex<Tally>>::default();
        let Subject { adapter, database } = subject;
        let skip = skip_reason(database).is_some();
        for &case in cases::ALL {
            let (runtime, servers) = (self.runtime.clone(), self.servers.clone());
            let tally = tally.clone();
            let name = format!("{}/{}::{}", database.name, adapter.name(), case.name);
            let run = move || {
                let result = runtime.block_on(run_case(case, subject, &servers));
                let mut tally = tally.lock().expect("nothing panics while it is locked");
                match result {
                    Ok(None) => tally.passed += 1,
                    Ok(Some(reason)) => {
                        tally
                            .not_applicable
                            .entry(reason)
                            .or_default()
                            .push(case.name);
                    }
                    Err(_) => tally.failed += 1,
                }
                result.map(drop).map_err(Failed::from)
            };
            self.trials
                .push(Trial::test(name, run).with_ignored_flag(skip));
        }
        self.subjects.push((subject, tally));
    }

    /// Runs what the arguments select, stops the servers, and prints one line per adapter and
    /// database: `conformance: ADAPTER on DATABASE: CASES cases, PASSED passed, FAILED failed,
    /// NUMBER n/a; SERVER`. What is not applicable is named before, with the reason.
    pub fn run(self) -> ExitCode {
        let listing = self.arguments.list;
        let conclusion = libtest_mimic::run(&self.arguments, self.trials);
        if listing {
            return conclusion.exit_code();
        }
        for (Subject { adapter, database }, tally) in self.subjects {
            let tally = tally.lock().expect("the cases have ended");
            let subject = format!("{} on {}", adapter.name(), database.name);
            for (reason, cases) in &tally.not_applicable {
                println!("not applicable: {subject}: {reason}: {}", cases.join(", "));
            }
            let detail = match (skip_reason(database), database.release()) {
                (Some(reason), _) => format!("SKIPPED: {reason}"),
                (None, None) => "a file".to_owned(),
                (None, Some(release)) => {
                    let server = self.servers.describe(release);
                    server.unwrap_or_else(|| "no server".to_owned())
                }
            };
            let not_applicable: usize = tally.not_applicable.values().map(Vec::len).sum();
            println!(
                "conformance: {subject}: {} cases, {} passed, {} failed, {not_applicable} n/a; \
                 {detail}",
                cases::ALL.len(),
                tally.passed,
                tally.failed,
            );
        }
        // Stops the servers before the process ends; the clients are gone by now.
        self.runtime.block_on(async move { drop(self.servers) });
        conclusion.exit_code()
    }
}

/// Why the server of this database must not be used, if so.
fn skip_reason(database: &Database) -> Option<String> {
    database.release()?.skip_reason()
}

/// Runs one case in a new world and removes the world, whatever happens. Gives the reason if the
/// case is not applicable.
async fn run_case(
    case: Case,
    Subject { adapter, database }: Subject,
    servers: &Servers,
) -> Result<Option<&'static str>, String> {
    let world = Arc::new(World::create(adapter, database, servers).await?);
    let run = AssertUnwindSafe((case.run)(world.clone())).catch_unwind();
    let result = match tokio::time::timeout(CASE_LIMIT, run).await {
        Ok(Ok(())) => Ok(world.why_not_applicable()),
        Ok(Err(panic)) => Err(said(&*panic)),
        Err(_) => Err(format!("not done after {CASE_LIMIT:?}")),
    };
    // Tasks of the case may still hold the world if it failed; then its database is left to the
    // end of the server.
    let removed = match Arc::try_unwrap(world) {
        Ok(world) => world.remove().await,
        Err(_) if result.is_err() => Ok(()),
        Err(_) => Err("the case left a task behind".to_owned()),
    };
    let said = result?;
    removed.map(|()| said)
}

/// The text of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the case panicked").to_owned()
}

//! The fencing conformance suite: one table of cases, run against every database.
//!
//! A case gets a [`World`] of its own and knows the database only as the type parameter `D`, so the
//! suite is written once and the number of cases is the same everywhere. The binaries in
//! `tests/tests/` choose the databases; [`Suite`] runs the cases and counts.

mod backend;
#[expect(clippy::unwrap_used, reason = "a case fails by a panic")]
mod cases;
mod database;
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
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

pub use backend::Backend;
pub use database::{Database, OnMariaDb, OnMySql, OnPostgres, OnSqlite};
use servers::Servers;
pub use world::World;

/// The longest that one case may take.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// One line of the table of cases.
struct Case<D: Database> {
    name: &'static str,
    run: fn(Arc<World<D>>) -> LocalBoxFuture<'static, ()>,
}

/// Cases against databases, and how they went.
pub struct Suite {
    arguments: Arguments,
    runtime: Arc<Runtime>,
    servers: Arc<Servers>,
    skipped: BTreeMap<&'static str, String>,
    trials: Vec<Trial>,
    tallies: Arc<Mutex<BTreeMap<&'static str, Tally>>>,
    databases: Vec<(&'static str, Option<crate::databases::Kind>, usize)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Suite {
    /// A suite without databases; reads the arguments of a test binary.
    ///
    /// # Panics
    /// There is no runtime to be had.
    pub fn from_arguments() -> Self {
        let mut arguments = Arguments::from_args();
        // The cases wait for locks and servers most of the time.
        arguments.test_threads.get_or_insert(6);
        Self {
            arguments,
            runtime: Arc::new(Runtime::new().expect("a runtime can be started")),
            servers: Arc::default(),
            skipped: Servers::skipped(),
            trials: Vec::new(),
            tallies: Arc::default(),
            databases: Vec::new(),
        }
    }

    /// Adds all cases for one database.
    #[must_use]
    pub fn on<D: Database>(mut self) -> Self {
        let cases = cases::all::<D>();
        self.databases.push((D::NAME, D::SERVER, cases.len()));
        let skip = self.skipped.contains_key(D::NAME);
        for case in cases {
            let (runtime, servers) = (self.runtime.clone(), self.servers.clone());
            let tallies = self.tallies.clone();
            let name = format!("{}::{}", D::NAME, case.name);
            let run = move || {
                let result = runtime.block_on(run_case(case, &servers));
                let mut tallies = tallies.lock().expect("nothing panics while it is locked");
                let tally = tallies.entry(D::NAME).or_default();
                match result {
                    Ok(()) => tally.passed += 1,
                    Err(_) => tally.failed += 1,
                }
                result.map_err(Failed::from)
            };
            self.trials
                .push(Trial::test(name, run).with_ignored_flag(skip));
        }
        self
    }

    /// Runs what the arguments select, stops the servers, and prints one line per database:
    /// `conformance: NAME: CASES cases, PASSED passed, FAILED failed; SERVER`.
    pub fn run(self) -> ExitCode {
        let listing = self.arguments.list;
        let conclusion = libtest_mimic::run(&self.arguments, self.trials);
        if listing {
            return conclusion.exit_code();
        }
        let tallies = self.tallies.lock().expect("the cases have ended");
        for (name, kind, cases) in self.databases {
            let Tally { passed, failed } = tallies.get(name).copied().unwrap_or_default();
            let detail = match (self.skipped.get(name), kind) {
                (Some(reason), _) => format!("SKIPPED: {reason}"),
                (None, None) => "a file".to_owned(),
                (None, Some(kind)) => {
                    let server = self.servers.describe(kind);
                    server.unwrap_or_else(|| "no server".to_owned())
                }
            };
            println!(
                "conformance: {name}: {cases} cases, {passed} passed, {failed} failed; {detail}"
            );
        }
        // Stops the servers before the process ends; the clients are gone by now.
        self.runtime.block_on(async move { drop(self.servers) });
        conclusion.exit_code()
    }
}

/// Runs one case in a new world and removes the world, whatever happens.
async fn run_case<D: Database>(case: Case<D>, servers: &Arc<Servers>) -> Result<(), String> {
    let world = Arc::new(World::<D>::create(servers).await?);
    let run = AssertUnwindSafe((case.run)(world.clone())).catch_unwind();
    let result = match tokio::time::timeout(CASE_LIMIT, run).await {
        Ok(Ok(())) => Ok(()),
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
    result.and(removed)
}

/// The text of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the case panicked").to_owned()
}

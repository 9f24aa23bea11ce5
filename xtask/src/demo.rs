//! `cargo xtask demo`: the main job, `examples/inventory`, on SQLite and on every database server
//! whose URL the environment has; and `examples/leader_job`, on SQLite.
//!
//! The examples themselves decide by their exit status: the first is exact with fencing and damaged
//! without, in the second each leader that was replaced is refused.

use crate::Result;
use crate::run::{Command, Steps};

/// The variables that can hold the URL of a server.
const URLS: [&str; 3] = [
    "HIGHWATER_TEST_POSTGRES_URL",
    "HIGHWATER_TEST_MYSQL_URL",
    "HIGHWATER_TEST_MARIADB_URL",
];

const EXAMPLES: &str = "highwater-examples";

/// Runs the example as the README says, then on each server.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::default();
    // Of the whole workspace, every adapter would be compiled for it.
    let release = ["run", "--release", "--locked", "--package", EXAMPLES];
    let run = |name| Command::cargo().args(release).args(["--example", name]);
    let example = || run("inventory");
    steps.note("main job on SQLite", example().run());
    steps.note("job with a leader on SQLite", run("leader_job").run());
    for variable in URLS {
        if std::env::var_os(variable).is_none_or(|url| url.is_empty()) {
            println!("\n{variable} is not set: not run there");
            continue;
        }
        let on_server = example().env_from("HIGHWATER_EXAMPLE_DATABASE_URL", variable);
        steps.note(&format!("main job with {variable}"), on_server.run());
    }
    steps.finish()
}

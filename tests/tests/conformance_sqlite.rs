//! The fencing conformance suite on SQLite: in the fast tier, since it needs no server.

use std::process::ExitCode;

use highwater_tests::conformance::{OnSqlite, Suite};

fn main() -> ExitCode {
    Suite::from_arguments().on::<OnSqlite>().run()
}

//! The fencing conformance suite on SQLite, over all adapters of the build: in the fast tier, since
//! it needs no server.

use std::process::ExitCode;

use highwater_tests::conformance::Suite;

fn main() -> ExitCode {
    Suite::from_arguments(|database| database.server.is_none()).run()
}

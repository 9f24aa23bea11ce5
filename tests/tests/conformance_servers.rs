//! The fencing conformance suite on the database servers, over all adapters of the build; see
//! `highwater_tests::databases` for where the servers come from.

use std::process::ExitCode;

use highwater_tests::conformance::Suite;

fn main() -> ExitCode {
    Suite::from_arguments(|database| database.server.is_some()).run()
}

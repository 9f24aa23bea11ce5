//! The fencing conformance suite on the database servers; see `highwater_tests::databases` for
//! where they come from.

use std::process::ExitCode;

use highwater_tests::conformance::{OnMariaDb, OnMySql, OnPostgres, Suite};

fn main() -> ExitCode {
    Suite::from_arguments()
        .on::<OnPostgres>()
        .on::<OnMySql>()
        .on::<OnMariaDb>()
        .run()
}

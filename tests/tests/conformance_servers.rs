//! The fencing conformance suite on the database servers, over all adapters of the build; see
//! `highwater_tests::databases` for where the servers come from. With `HIGHWATER_TEST_RELEASES=all`
//! it is every release that claims are made about.

use std::process::ExitCode;

use highwater_tests::conformance::Suite;

fn main() -> ExitCode {
    let suite = Suite::from_arguments(|database| {
        let all = std::env::var("HIGHWATER_TEST_RELEASES").is_ok_and(|chosen| chosen == "all");
        database.server.is_some() && (all || database.further.is_none())
    });
    suite.run()
}

//! Development tasks: `cargo xtask test | verify | tidy | simulate | chaos | interop | demo | prove | images`.
//!
//! Every command that is run is printed first, and a failed one again with the line that repeats
//! it. `test` is everything there is to run, `verify` everything that only reads.

mod chaos;
mod demo;
mod features;
mod interop;
mod licences;
mod prove;
mod run;
mod simulate;
mod test;
mod tidy;
mod verify;

use std::error::Error;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "\
usage: cargo xtask TASK

  test      all tests: the fast ones, those that need database servers, chaos where it can run, interop
  verify    the gate: format, lints, docs, licences, the core without std, tidiness
  tidy      the rules about files and dependencies alone
  simulate  the lock core on replicas in a simulated world: --seed N for one, --seeds N for many
  chaos     a real cluster in network namespaces (as root), killed, frozen, cut off, replaced, and
            what its clients saw, checked: --scenario NAME, --seconds N, --seed N; docs/chaos.md
  interop   the published client's own network tests against our server, and against a cluster while
            its nodes are replaced one after the other (--dev: with the server that the tests have built)
  demo      the example `inventory`, on SQLite and on the servers named by HIGHWATER_TEST_*_URL, and
            the example `leader_job`
  prove     stale writers against every database release: a table (--here: no server is started)
  images    builds the database images of the tests from Debian packages (as root)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let task: fn() -> Result<()> = match words[..] {
        ["simulate", ref options @ ..] => return ended(simulate::run(options)),
        ["chaos", ref options @ ..] => return ended(chaos::run(options)),
        ["test"] => test::run,
        ["verify"] => verify::run,
        ["tidy"] => tidy::run,
        ["demo"] => demo::run,
        ["interop"] => || interop::run(interop::Profile::Release),
        ["interop", "--dev"] => || interop::run(interop::Profile::Dev),
        ["prove"] => prove::run,
        ["prove", "--here"] => prove::run_here,
        ["images"] => images,
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    ended(task())
}

fn ended(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn images() -> Result<()> {
    run::Command::new(run::root().join("tests/images/build")).run()
}

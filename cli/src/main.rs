//! The `highwater` command.
//!
//! One module per subcommand; each reads its options, does its work through the libraries and
//! returns an error for the user. Nothing here decides anything about locks or fences.

mod access;
mod bench;
mod cluster;
mod config;
mod data;
mod database;
mod fence;
#[cfg(unix)]
mod lock;
mod locks;
mod migrate;
mod protect;
#[cfg(all(unix, feature = "prove-sqlx"))]
mod prove;
mod serve;
#[cfg(unix)]
mod service;
mod shell;
mod signals;
mod test_clock;
mod token;
mod words;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Locks that hand out fencing tokens, and databases that check them.
#[derive(Parser)]
#[command(name = "highwater", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Options),
    Config(config::Options),
    Cluster(cluster::Options),
    Restore(data::RestoreOptions),
    #[cfg(unix)]
    Lock(Box<lock::Options>),
    Locks(locks::Options),
    Release(locks::ReleaseOptions),
    Bench(bench::Options),
    /// The echo server of `bench`, which starts it itself.
    #[command(hide = true)]
    BenchEcho,
    Migrate(migrate::Options),
    Protect(protect::Options),
    Unprotect(protect::RemoveOptions),
    Fence(fence::Options),
    Token(token::Options),
    Completions(shell::CompletionOptions),
    Man(shell::ManOptions),
    #[cfg(all(unix, feature = "prove-sqlx"))]
    Prove(Box<prove::Options>),
    /// One holder of `prove`, which starts it itself.
    #[cfg(all(unix, feature = "prove-sqlx"))]
    #[command(hide = true)]
    ProveWorker,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(options) => serve::run(options).map_err(Into::into),
        Command::Config(options) => config::run(options).map_err(Into::into),
        Command::Cluster(options) => cluster::run(options).map_err(Into::into),
        Command::Restore(options) => data::run_restore(options).map_err(Into::into),
        #[cfg(unix)]
        Command::Lock(options) => match lock::run(&options) {
            Ok(status) => return status,
            Err(error) => {
                let status = error.status(&options);
                complain(error.into());
                return status.into();
            }
        },
        Command::Locks(options) => locks::run(options).map_err(Into::into),
        Command::Release(options) => locks::run_release(options).map_err(Into::into),
        Command::Bench(options) => bench::run(options).map_err(Into::into),
        Command::BenchEcho => bench::run_echo().map_err(Into::into),
        Command::Migrate(options) => migrate::run(options).map_err(Into::into),
        Command::Protect(options) => protect::run(options).map_err(Into::into),
        Command::Unprotect(options) => protect::run_remove(options).map_err(Into::into),
        Command::Fence(options) => fence::run(options).map_err(Into::into),
        Command::Token(options) => token::run(options).map_err(Into::into),
        Command::Completions(options) => {
            shell::run_completions(options, Arguments::command()).map_err(Into::into)
        }
        Command::Man(options) => shell::run_man(options, Arguments::command()).map_err(Into::into),
        #[cfg(all(unix, feature = "prove-sqlx"))]
        Command::Prove(options) => prove::run(*options).map_err(Into::into),
        #[cfg(all(unix, feature = "prove-sqlx"))]
        Command::ProveWorker => prove::work().map_err(Into::into),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

/// Writes an error with all its causes as one line.
fn complain(error: Box<dyn Error>) {
    let mut line = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some say their cause themselves.
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(&format!(": {text}"));
        }
        cause = error.source();
    }
    // Where nobody listens there is nobody to tell; the exit code says it.
    let _ = writeln!(std::io::stderr(), "{line}");
}

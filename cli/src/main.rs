//! The `highwater` command.
//!
//! One module per subcommand; each reads its options, does its work through the libraries and
//! returns an error for the user. Nothing here decides anything about locks or fences.

mod config;
mod data;
mod database;
mod fence;
mod migrate;
mod protect;
#[cfg(all(unix, feature = "prove-sqlx"))]
mod prove;
mod serve;
mod signals;
mod words;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Restore(data::RestoreOptions),
    Migrate(migrate::Options),
    Protect(protect::Options),
    Unprotect(protect::RemoveOptions),
    Fence(fence::Options),
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
        Command::Restore(options) => data::run_restore(options).map_err(Into::into),
        Command::Migrate(options) => migrate::run(options).map_err(Into::into),
        Command::Protect(options) => protect::run(options).map_err(Into::into),
        Command::Unprotect(options) => protect::run_remove(options).map_err(Into::into),
        Command::Fence(options) => fence::run(options).map_err(Into::into),
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

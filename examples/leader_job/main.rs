//! A periodic job on three processes: the leader runs it, and whatever happens to the leader, another one
//! takes over, and the database refuses what the old one still writes.
//!
//! `cargo run --release -p highwater-examples --example leader_job` needs nothing else: it starts a lock server, a SQLite file
//! and three processes of itself. The leader is killed (SIGKILL), the next one frozen past its lease
//! (SIGSTOP), the next one cut off from the lock server. Exit status: 0 if everything went as it is promised,
//! 1 if not.
//!
//! Read `worker.rs`: it is the part to take home.

#[cfg(not(unix))]
compile_error!("the example stops a process with SIGSTOP, which needs a Unix system");

mod ledger;
mod node;
mod proxy;
mod story;
mod worker;

use std::io::{Write as _, stderr};
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let told = if std::env::var_os(worker::setting::NODE).is_some() {
        worker::work().await
    } else {
        tokio::select! {
            told = story::tell() => told,
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        }
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(stderr(), "leader_job: {failure}");
            ExitCode::FAILURE
        }
    }
}

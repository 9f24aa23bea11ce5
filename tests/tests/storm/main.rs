//! Many peers at once, and what is left of them: nothing.
//!
//! What is counted here (open files, memory) belongs to the whole process, so these run one after
//! the other, in a binary of their own. Where both ends of ten thousand connections would be too
//! many open files for one process, a copy of this binary is the clients.

mod clients;
mod flood;
mod leaks;
#[expect(dead_code, reason = "shared with the other tests of the server")]
#[path = "../server/wire.rs"]
mod wire;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(address) = clients::asked_for() {
        clients::run(address);
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        trial("ten_thousand_connections", flood::ten_thousand_connections),
        trial("connections_come_and_go", flood::connections_come_and_go),
        trial("no_file_is_left_to_accept_with", leaks::no_file_is_left),
        trial("hostile_peers_take_no_memory", leaks::hostile_peers),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A failure of it is a panic, as everywhere.
fn trial(name: &str, test: impl AsyncFnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        runtime.block_on(test());
        Ok(())
    })
}

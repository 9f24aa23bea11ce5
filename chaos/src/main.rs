//! `cargo xtask chaos`: a real cluster, broken in every way, and what its clients saw, checked.
//!
//! The outer process makes network namespaces with a bridge between them, runs itself again in the
//! one for clients, and takes everything away at the end, however that came. The inner one starts
//! the nodes, lets clients contend for a few keys and write to a database under the fence, breaks
//! the cluster and mends it, and gives what was seen to the checker. `docs/chaos.md` is the guide.

#[cfg(target_os = "linux")]
mod client_worker;
#[cfg(target_os = "linux")]
mod connection;
#[cfg(target_os = "linux")]
mod database;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod nodes;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod outer;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod random;
#[cfg(target_os = "linux")]
mod record;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod trace;
#[cfg(target_os = "linux")]
mod wire_worker;
#[cfg(target_os = "linux")]
mod workload;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options = match options::Options::parse(&words) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done = runtime.map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            match (&options.inside, &options.proxy) {
                (_, Some(file)) => proxy::run(file).await,
                (None, None) => outer::run(&options).await,
                (Some(inside), None) => run::run(&options, inside).await,
            }
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("chaos: it needs the network namespaces of Linux");
    ExitCode::FAILURE
}

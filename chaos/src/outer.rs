//! The outer process: makes the network, runs the inner one in it, and takes everything away.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failure;
use crate::faults::Fault;
use crate::network::{self, Network};
use crate::options::Options;
use crate::process;

/// Runs what was asked for.
///
/// # Errors
/// It cannot be run on this machine, a signal ended it, or a promise was broken; the inner process
/// has told which, and how to repeat it.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    if options.list {
        for fault in Fault::ALL {
            println!("{:<24} {}", fault.name(), fault.what());
        }
        return Ok(());
    }
    let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
    let mut signals = (signal(terminate)?, signal(interrupt)?);
    possible().await?;
    sweep().await?;
    let network = Network::new(std::process::id());
    let work = tokio::select! {
        work = within(&network, options) => work,
        () = either(&mut signals) => Err("a signal has ended it".into()),
    };
    network.take_away().await;
    let _ = std::fs::remove_dir_all(folder(std::process::id()));
    work
}

async fn either((first, second): &mut (Signal, Signal)) {
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
    }
}

/// Whether this machine has what is needed.
async fn possible() -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err("it needs root, for network namespaces".into());
    }
    for (program, words) in [("ip", &["-V"][..]), ("nft", &["--version"])] {
        let there = process::run(&[&[program], words].concat()).await;
        there.map_err(|error| format!("it needs iproute2 and nftables: {error}"))?;
    }
    let clock = ["unshare", "--time", "--monotonic", "1", "true"];
    let there = process::run(&clock).await;
    there.map_err(|error| format!("it needs time namespaces: {error}"))?;
    Ok(())
}

async fn within(network: &Network, options: &Options) -> Result<(), Failure> {
    network.make().await?;
    if options.probe {
        let rules = network::Rules {
            loss: 1,
            ..network::Rules::default()
        };
        return network.drop_at(0, &rules).await;
    }
    if !options.program.is_file() {
        return Err(format!("{} is not a program", options.program.display()).into());
    }
    let first = options.seed.unwrap_or_else(made_up);
    for seed in (first..).take(usize::try_from(options.seeds)?) {
        let work = folder(std::process::id());
        if work.exists() {
            std::fs::remove_dir_all(&work)?;
        }
        std::fs::create_dir_all(&work)?;
        inner(network, options, seed, &work).await?;
    }
    Ok(())
}

/// A number that nobody chose. Small, so that it can be typed.
fn made_up() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()) % 1_000_000)
}

/// Where an outer process and its inner ones work.
fn folder(outer: u32) -> PathBuf {
    std::env::temp_dir().join(format!("highwater-chaos-{outer}"))
}

/// Takes away what outer processes left behind that were killed.
async fn sweep() -> Result<(), Failure> {
    for outer in network::left_behind().await? {
        println!("taking away what process {outer} has left behind");
        Network::new(outer).take_away().await;
        let _ = std::fs::remove_dir_all(folder(outer));
    }
    Ok(())
}

async fn inner(
    network: &Network,
    options: &Options,
    seed: u64,
    work: &Path,
) -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &network.clients()]);
    command.arg(std::env::current_exe()?).args(words);
    command.args(["--seed", &seed.to_string()]);
    command.args(["--inside", &std::process::id().to_string()]);
    command.env("HIGHWATER_CHAOS_WORK", work).kill_on_drop(true);
    let mut child = command.spawn()?;
    // Longer than it can take; a run that hangs is a failure too.
    let limit = Duration::from_secs(options.seconds * 3 + 300);
    let status = match tokio::time::timeout(limit, wait(&mut child)).await {
        Ok(status) => status?,
        Err(_) => return Err(format!("seed {seed} does not come to an end").into()),
    };
    match status.success() {
        true => Ok(()),
        false => Err(format!(
            "seed {seed} failed; to repeat it: {}",
            repeat(options, seed)
        )
        .into()),
    }
}

async fn wait(child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
    child.wait().await
}

fn repeat(options: &Options, seed: u64) -> String {
    let Options {
        scenario,
        seconds,
        nodes,
        volatile,
        ..
    } = options;
    let volatile = if *volatile { " --volatile" } else { "" };
    format!(
        "cargo xtask chaos --scenario {scenario} --seconds {seconds} --nodes {nodes}{volatile} --seed {seed}"
    )
}

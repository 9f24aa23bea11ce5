//! `highwater bench`: what the lock server costs, beside an echo server and Redis.
//!
//! The load is the internal crate `highwater-bench`'s. Here its targets are started, each as a process
//! of its own, and its figures written.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use highwater_bench::process::{self, ProcessError};
use highwater_bench::{
    BenchError, Kept, Kind, Nodes, Pattern, Report, Settings, Target, echo, measure,
};
use highwater_client::{Client, Domain};
use tokio::io::AsyncReadExt as _;

use crate::access::{ClientToken, TokenError};

/// Measure how fast locks are taken and given back.
///
/// A cycle is an acquire and its acknowledged release. As many tasks as are told run one after the
/// other, on keys that they share (contended), on a key of their own (uncontended) or on another key
/// of their own in each cycle (scattered). The targets take turns within
/// each round; figures are medians of the rounds, and ratios are to the first target.
///
/// Every target but a server that is named with --server is started for the measurement, on a free
/// port of the loopback interface, and ended with it: `echo` answers every request at once and keeps
/// nothing, so it shows what the client and the system cost by themselves. While it locks, every grant
/// is checked: nobody else may hold the key, and its token has to be higher than the one before.
/// `cluster` is three nodes on this machine, which share its processors and its disk;
/// `cluster-volatile` is the same with nothing on disk.
/// `redis` takes the key with SET NX PX and then a token with INCR; `redis-one-message` sends both at
/// once. Either way a script checks the owner and deletes the key.
///
/// Examples:
///   highwater bench
///   highwater bench --target echo,highwater,redis --json figures.json
///   highwater bench --tasks 1 --keys 1 --pattern uncontended
///   highwater bench --target highwater,cluster
///   highwater bench --target highwater --held 1000,1000000 --pattern uncontended,scattered
///   HIGHWATER_CLIENT_TOKEN=… highwater bench --target highwater --server locks.internal:5225
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// What to measure, in this order; the first is what the others are compared with.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "echo,highwater"
    )]
    target: Vec<TargetName>,
    /// Measure the server at this address instead of one of its own; with --identity the cluster at
    /// these addresses, in the order of the slots, with commas between them.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    server: Vec<String>,
    /// The identity of the cluster that is named with --server: 64 hexadecimal digits.
    #[arg(long, value_name = "HEX", requires = "server")]
    identity: Option<Domain>,
    #[command(flatten)]
    token: ClientToken,
    /// The options of the server that is started: durable in a temporary directory, or in memory.
    #[arg(long, value_enum, default_value = "memory", conflicts_with = "server")]
    storage: Storage,
    /// Have the server that is started hold so many other keys meanwhile, for an hour at most. Each
    /// number of a list is a target of its own.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0",
        conflicts_with = "server"
    )]
    held: Vec<u64>,
    /// Redis at this URL instead of a `redis-server` of its own.
    #[arg(
        long,
        value_name = "URL",
        env = "HIGHWATER_BENCH_REDIS_URL",
        hide_env_values = true
    )]
    redis_url: Option<String>,
    /// How many cycles run at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count(65_536))]
    tasks: u64,
    /// How many keys the tasks share when they contend.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = count(65_536))]
    keys: u64,
    /// Which keys the tasks use.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "contended,uncontended"
    )]
    pattern: Vec<PatternName>,
    /// How often every target has its turn.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(10_000))]
    rounds: u64,
    /// How long a turn is, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = count(3_600_000))]
    time: u64,
    /// Write the figures as JSON to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TargetName {
    Echo,
    Highwater,
    Cluster,
    ClusterVolatile,
    Redis,
    RedisOneMessage,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PatternName {
    Contended,
    Uncontended,
    Scattered,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storage {
    Memory,
    Disk,
}

fn count(most: u64) -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=most)
}

/// Measures, and prints the table.
pub(crate) fn run(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let report = runtime.block_on(report(&options))?;
    let mut stdout = io::stdout().lock();
    write!(stdout, "{report}").map_err(Error::Output)?;
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report).map_err(Error::Json)?;
        std::fs::write(path, json + "\n").map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
    }
    Ok(())
}

async fn report(options: &Options) -> Result<Report, Error> {
    let program = std::env::current_exe().map_err(Error::Program)?;
    // Ended when they are dropped.
    let (mut processes, mut clusters) = (Vec::new(), Vec::new());
    let mut targets = Vec::new();
    for name in &options.target {
        targets.push(match name {
            TargetName::Echo => {
                let (child, address) = process::echo(&program).await?;
                processes.push(child);
                Target::highwater(Kind::Echo, &address, None).await?
            }
            TargetName::Cluster | TargetName::ClusterVolatile => {
                let (kind, kept) = match name {
                    TargetName::Cluster => (Kind::Cluster, Kept::Durable),
                    _ => (Kind::ClusterVolatile, Kept::Volatile),
                };
                let nodes = Nodes::start(&program, kept).await?;
                let target = Target::connect(kind, nodes.client()).await?;
                clusters.push(nodes);
                target
            }
            TargetName::Highwater => match (&*options.server, options.identity) {
                (servers @ [_, ..], Some(identity)) => {
                    let mut builder = Client::cluster(servers, identity);
                    if let Some(secret) = options.token.secret()? {
                        builder = builder.token(secret);
                    }
                    Target::connect(Kind::Highwater, builder).await?
                }
                ([address], None) => {
                    let secret = options.token.secret()?;
                    Target::highwater(Kind::Highwater, address, secret).await?
                }
                ([_, ..], None) => return Err(Error::NoIdentity),
                ([], _) => {
                    let storage = match options.storage {
                        Storage::Memory => process::Storage::Memory,
                        Storage::Disk => process::Storage::Disk,
                    };
                    for &held in &options.held {
                        let (child, address) = process::server(&program, storage).await?;
                        processes.push(child);
                        let target = Target::highwater(Kind::Highwater, &address, None).await?;
                        targets.push(target.holding(held));
                    }
                    continue;
                }
            },
            TargetName::Redis | TargetName::RedisOneMessage => {
                let kind = match name {
                    TargetName::Redis => Kind::Redis,
                    _ => Kind::RedisOneMessage,
                };
                match &options.redis_url {
                    Some(url) => Target::redis(kind, url).await?,
                    None => {
                        let (child, url) = process::redis().await?;
                        processes.push(child);
                        Target::redis(kind, &url).await?
                    }
                }
            }
        });
    }
    let pattern = |name: &PatternName| match name {
        PatternName::Contended => Pattern::Contended,
        PatternName::Uncontended => Pattern::Uncontended,
        PatternName::Scattered => Pattern::Scattered,
    };
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let settings = Settings {
        tasks: size(options.tasks),
        keys: size(options.keys),
        patterns: options.pattern.iter().map(pattern).collect(),
        rounds: size(options.rounds),
        time: Duration::from_millis(options.time),
        progress: io::stderr().is_terminal(),
    };
    Ok(measure(targets, &settings).await?)
}

/// The echo server, as a process that `run` starts.
pub(crate) fn run_echo() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(Error::Echo)?;
        let address = listener.local_addr().map_err(Error::Echo)?;
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "highwater listens on {address}").map_err(Error::Output)?;
        stdout.flush().map_err(Error::Output)?;
        drop(stdout);
        let (mut stdin, mut byte) = (tokio::io::stdin(), [0]);
        tokio::select! {
            served = echo::serve(listener) => served.map_err(Error::Echo),
            _ = stdin.read(&mut byte) => Ok(()),
        }
    })
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("the system refuses what the measurement needs")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("this program cannot be found")]
    Program(#[source] io::Error),
    #[error("the echo server has failed")]
    Echo(#[source] io::Error),
    #[error("several servers are a cluster: its --identity is missing")]
    NoIdentity,
    #[error("standard output takes nothing")]
    Output(#[source] io::Error),
    #[error("the figures cannot be written as JSON")]
    Json(#[source] serde_json::Error),
    #[error("{} cannot be written", path.display())]
    File { path: PathBuf, source: io::Error },
}

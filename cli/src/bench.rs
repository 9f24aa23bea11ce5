//! `highwater bench`: what the lock server costs, beside an echo server and Redis.
//!
//! The load is the internal crate `highwater-bench`'s. Here its targets are started, each as a process
//! of its own, and its figures written.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, ValueEnum};
use highwater_bench::{BenchError, Kind, Pattern, Report, Settings, Target, echo, measure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

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
/// `redis` takes the key with SET NX PX and then a token with INCR; `redis-one-message` sends both at
/// once. Either way a script checks the owner and deletes the key.
///
/// Examples:
///   highwater bench
///   highwater bench --target echo,highwater,redis --json figures.json
///   highwater bench --tasks 1 --keys 1 --pattern uncontended
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
    /// Measure the server at this address instead of one of its own.
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
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
    // Ended when they are dropped.
    let mut processes = Vec::new();
    let mut targets = Vec::new();
    for name in &options.target {
        targets.push(match name {
            TargetName::Echo => {
                let (child, address) = announced(["bench-echo"]).await?;
                processes.push(child);
                Target::highwater(Kind::Echo, &address, None).await?
            }
            TargetName::Highwater => match &options.server {
                Some(address) => {
                    let secret = options.token.secret()?;
                    Target::highwater(Kind::Highwater, address, secret).await?
                }
                None => {
                    for &held in &options.held {
                        let (child, address) = server(options.storage).await?;
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
                        let (child, url) = redis().await?;
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

/// Starts a lock server of this program.
async fn server(storage: Storage) -> Result<(Process, String), Error> {
    let mut words: Vec<OsString> = ["serve", "--listen", "127.0.0.1:0", "--no-auth"]
        .map(OsString::from)
        .into();
    let mut directory = None;
    match storage {
        Storage::Memory => words.push("--in-memory".into()),
        Storage::Disk => {
            let made = Directory::new()?;
            words.push("--data-dir".into());
            words.push(made.0.clone().into());
            directory = Some(made);
        }
    }
    let (mut process, address) = announced(words).await?;
    process.directory = directory;
    Ok((process, address))
}

/// Starts this program so that it tells its address on its first line.
async fn announced<W: Into<OsString>>(
    words: impl IntoIterator<Item = W>,
) -> Result<(Process, String), Error> {
    let program = std::env::current_exe().map_err(Error::Process)?;
    let mut command = Command::new(program);
    // What the environment says is for other servers.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HIGHWATER_") {
            command.env_remove(name);
        }
    }
    let mut child = command
        .args(words.into_iter().map(Into::into))
        // Its log would tear the bar of progress apart.
        .env("RUST_LOG", "error")
        // Ends the echo with this process, however that ends.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(Error::Process)?;
    let stdout = child.stdout.take().ok_or(Error::Silent)?;
    let mut lines = BufReader::new(stdout).lines();
    let line = lines.next_line().await.map_err(Error::Process)?;
    let line = line.ok_or(Error::Silent)?;
    let address = line
        .strip_prefix("highwater listens on ")
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or(Error::Silent)?;
    Ok((Process::new(child), address.to_owned()))
}

/// Starts a Redis that keeps nothing on disk.
async fn redis() -> Result<(Process, String), Error> {
    for _ in 0..REDIS_TRIES {
        // Redis does not choose a port by itself; another program may take this one first.
        let free = std::net::TcpListener::bind("127.0.0.1:0").map_err(Error::Process)?;
        let port = free.local_addr().map_err(Error::Process)?.port();
        drop(free);
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::NoRedis)?;
        let stdout = child.stdout.take().ok_or(Error::Silent)?;
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await.map_err(Error::Process)? {
            if line.contains("eady to accept connections") {
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok((Process::new(child), format!("redis://127.0.0.1:{port}/")));
            }
        }
    }
    Err(Error::Silent)
}

/// A process that ends when this is dropped.
struct Process {
    _child: Child,
    directory: Option<Directory>,
}

impl Process {
    fn new(child: Child) -> Self {
        Self {
            _child: child,
            directory: None,
        }
    }
}

/// A directory for the data of a server, removed in the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Error> {
        let mut number = 0;
        loop {
            let name = format!("highwater-bench-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // That of another server.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(Error::Process(error)),
            }
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left in a temporary directory does no harm.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The echo server, as a process that `run` starts.
pub(crate) fn run_echo() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(Error::Process)?;
        let address = listener.local_addr().map_err(Error::Process)?;
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "highwater listens on {address}").map_err(Error::Output)?;
        stdout.flush().map_err(Error::Output)?;
        drop(stdout);
        let (mut stdin, mut byte) = (tokio::io::stdin(), [0]);
        tokio::select! {
            served = echo::serve(listener) => served.map_err(Error::Process),
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
    #[error("a target cannot be started")]
    Process(#[source] io::Error),
    #[error("redis-server cannot be started (install it, or name one that runs with --redis-url)")]
    NoRedis(#[source] io::Error),
    #[error("a target ended before it told its address; see what it wrote")]
    Silent,
    #[error("standard output takes nothing")]
    Output(#[source] io::Error),
    #[error("the figures cannot be written as JSON")]
    Json(#[source] serde_json::Error),
    #[error("{} cannot be written", path.display())]
    File { path: PathBuf, source: io::Error },
}

const REDIS_TRIES: u32 = 5;

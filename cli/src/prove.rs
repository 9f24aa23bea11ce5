//! `highwater prove`: shows on a database that stale writers are refused, and that it matters.
//!
//! The proof is the internal crate `highwater-proof`'s; here are its options, its output and its end.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use highwater_proof::prove::{self, Choice, Form, Level, ProveError, WorkerError};
use tokio::signal::unix::{SignalKind, signal};

/// Prove on a database that stale lock holders cannot write.
///
/// Holders are processes with real locks. In each round one of them is stopped past its lease, before
/// its transaction or inside of it, or killed, or cut off from the lock server; another takes over and
/// writes, and then the first goes on writing. Afterwards every unit is counted. The same rounds without a fence are the control:
/// they must do damage, or nothing is proven.
///
/// Exit status: 0 if every fenced row is exact and every control is damaged.
///
/// The tables highwater_prove_stock, highwater_prove_orders and highwater_prove_fence are created
/// for it and dropped afterwards; if one exists already, nothing is touched. The role needs the
/// right to create, index, write and drop tables (PostgreSQL: CREATE on the schema).
#[derive(Args)]
pub(crate) struct Options {
    /// The database: postgres://…, mysql://…, mariadb://… or sqlite://… (with ?mode=rwc the file
    /// is created).
    ///
    /// A URL with a password should come from the environment instead: other users of the machine
    /// can read arguments.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// Only this adapter, such as sqlx; can be repeated. All of this build by default.
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// Only this level: read-committed, repeatable-read or serializable; can be repeated.
    #[arg(long, value_name = "LEVEL")]
    isolation: Vec<Level>,
    /// Only this form: closure, guard or join; can be repeated. The control always runs.
    #[arg(long, value_name = "FORM")]
    form: Vec<Form>,
    /// Forms besides the closure run on this level only. Saves time.
    #[arg(long, value_name = "LEVEL")]
    other_forms_on: Option<Level>,
    /// Rounds of every row of the table.
    #[arg(long, value_name = "N", default_value_t = 6,
        value_parser = clap::value_parser!(u32).range(i64::from(prove::Options::FEWEST_ROUNDS)..=i64::from(prove::Options::MOST_ROUNDS)))]
    rounds: u32,
    /// Repeats the rounds of an earlier run [default: a new one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many rounds run at once, each with two processes and two connections.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    at_once: u32,
    /// Write the table as JSON to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the proof and prints its table.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    let seed = match options.seed {
        Some(seed) => seed,
        // A short one is easier to type.
        None => getrandom::u64().map_err(Failure::Random)? >> 44,
    };
    let json = options.json.clone();
    // What cannot be written is said before the work.
    let file = json.as_ref().map(std::fs::File::create).transpose();
    let mut file =
        file.map_err(|source| Failure::Json(json.clone().unwrap_or_default(), source))?;
    let holder = std::env::current_exe().map_err(Failure::System)?;
    let options = prove::Options {
        database_url: options.database_url,
        choice: Choice {
            adapters: options.adapter,
            levels: options.isolation,
            forms: options.form,
            other_forms_on: options.other_forms_on,
        },
        rounds: options.rounds,
        seed,
        at_once: options.at_once,
        holder: (holder, vec!["prove-worker".into()]),
    };
    note(&format!("seed {seed}"));
    let report = runtime()?.block_on(async {
        let interrupted = interrupt().map_err(Failure::System)?;
        let progress = |row: &prove::Row| note(&row.summary());
        Ok::<_, Failure>(prove::run(&options, interrupted, progress).await?)
    })?;
    if let Some(file) = &mut file {
        let written = report
            .json()
            .map_err(io::Error::from)
            .and_then(|text| file.write_all(text.as_bytes()));
        written.map_err(|source| Failure::Json(json.unwrap_or_default(), source))?;
    }
    // A reader that goes away, such as `head`, is no reason to hide the exit status.
    let _ = writeln!(io::stdout(), "{}", report.table());
    if report.is_proof() {
        return Ok(());
    }
    Err(Failure::NoProof {
        seed,
        rows: report.complaints().join("\n  "),
    })
}

/// One holder.
pub(crate) fn work() -> Result<(), Failure> {
    let runtime = runtime()?;
    let worked = runtime.block_on(prove::work());
    // A driver may still block a thread; the process ends all the same.
    runtime.shutdown_timeout(Duration::ZERO);
    Ok(worked?)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::System)
}

fn interrupt() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A line for whoever watches.
fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Why there is no proof.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Prove(#[from] ProveError),
    #[error("the proof failed (--seed {seed} repeats its rounds):\n  {rows}")]
    NoProof { seed: u64, rows: String },
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("{}", .0.display())]
    Json(PathBuf, #[source] io::Error),
    #[error("the system gives no random seed: choose one with --seed")]
    Random(#[source] getrandom::Error),
    #[error("the system refuses what the command needs")]
    System(#[source] io::Error),
}

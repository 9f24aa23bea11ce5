//! The main job, end to end: an inventory deduction that a stale holder cannot corrupt.
//!
//! `cargo run --release -p highwater-examples --example inventory` needs nothing else: it starts a lock server and a
//! SQLite file of its own. Worker processes take orders, lock the SKU, and deduct. One of them is
//! stopped (SIGSTOP) while it holds the lock, until its lease is over and others have sold from
//! the same shelf; then it wakes up and writes. First with fencing, then, as the control, without.
//!
//! Read `sell.rs`: it is the part to take home. Nothing else here is about fencing.

#![expect(
    clippy::duplicate_mod,
    reason = "the lesson is one file, loaded once per database"
)]

#[cfg(not(unix))]
compile_error!("the example stops a process with SIGSTOP, which needs a Unix system");

mod database;
mod orders;
mod payment;
mod progress;
mod report;
mod run;
mod sale;
mod worker;

use std::fs::File;
use std::io::{self, Write as _, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use highwater_server::Server;
use tokio::time::timeout;

use crate::database::Shop;
use crate::orders::{BadLine, Order, Stock};
use crate::progress::{Progress, tell};
use crate::report::Report;
use crate::run::{Interrupt, Setup};
use crate::worker::setting;

/// Sells orders from a stock with several workers, freezes one of them past its lease, and counts.
///
/// Exit status: 0 if the fenced run is exact AND the run without fencing shows the damage, 1 if
/// not, 2 if it could not run.
#[derive(Parser)]
#[command(name = "inventory")]
struct Arguments {
    /// postgres://…, mysql://…, mariadb://… or sqlite://FILE [default: SQLite in a temporary folder].
    /// The tables highwater_example_* are dropped and created there: one run at a time. A SQLite
    /// file is switched to WAL
    #[arg(long, env = setting::DATABASE_URL, hide_env_values = true)]
    database_url: Option<String>,

    /// A running lock server [default: one of its own]
    #[arg(long, value_name = "ADDR")]
    server: Option<String>,

    /// The file with that server's client token (or set HIGHWATER_CLIENT_TOKEN)
    #[arg(long, value_name = "FILE", requires = "server")]
    client_token_file: Option<PathBuf>,

    /// CSV file `order_id,sku,quantity` [default: a bundled one]
    #[arg(long, value_name = "FILE.csv")]
    orders: Option<PathBuf>,

    /// CSV file `sku,quantity` [default: a bundled one]
    #[arg(long, value_name = "FILE.csv")]
    stock: Option<PathBuf>,

    /// Worker processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=64))]
    workers: u64,

    /// Lease of a lock in seconds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    lease: u64,

    /// Keep one worker frozen until the others have sold this many later orders of its SKU [default:
    /// all of them]; 0 freezes nobody
    #[arg(long, value_name = "ORDERS")]
    freeze: Option<usize>,

    /// Only the run without fencing; the exit status is 1, since nothing is exact
    #[arg(long)]
    no_fencing: bool,
}

/// How long the example's tables may take to go.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// Why the demonstration could not run.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("nothing to demonstrate: no order can be used")]
    NoOrders,
    #[error("no SKU has enough orders to freeze a worker in between: use a longer order file")]
    NothingToFreeze,
    #[error("the environment variable {0} is missing")]
    MissingSetting(&'static str),
    #[error("{0}")]
    Worker(String),
    #[error(transparent)]
    Connect(#[from] database::ConnectError),
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("migration: {0}")]
    Migrate(#[from] highwater_fencing::migrate::Error),
    #[error("lock server: {0}")]
    Server(#[from] highwater_server::StartError),
    #[error("lock server {server}: {source}")]
    Client {
        server: String,
        source: highwater_client::ConnectError,
    },
    #[error("interrupted")]
    Interrupted,
    #[error("client token: {0}")]
    Secret(#[from] highwater_protocol::SecretError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = if std::env::var_os(setting::WORKER).is_some() {
        worker::work().await.map(|()| true)
    } else {
        demonstrate(Arguments::parse()).await
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            tell(&format!("inventory: {failure}"));
            ExitCode::from(2)
        }
    }
}

async fn demonstrate(arguments: Arguments) -> Result<bool, Failure> {
    let (stock, orders) = read_files(&arguments)?;
    let client_token = client_token(&arguments)?;
    let folder = tempfile::tempdir()?;
    let database_url = arguments
        .database_url
        .clone()
        .unwrap_or_else(|| format!("sqlite://{}/inventory.db", folder.path().display()));
    let shop = Shop::connect(&database_url).await?;
    shop.migrate().await?;
    let mut interrupt = Interrupt::new()?;

    let embedded = match &arguments.server {
        Some(_) => None,
        None => {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            Some(
                Server::builder()
                    .in_memory()
                    .listen(listen)
                    .no_auth()
                    .start()
                    .await?,
            )
        }
    };
    let server = match (&arguments.server, &embedded) {
        (Some(address), _) => address.clone(),
        (None, Some(server)) => server.local_addr().to_string(),
        (None, None) => return Err(Failure::MissingSetting("server")),
    };
    if embedded.is_none() {
        // What is wrong with its address or the token is said here, before a table is touched.
        let client = worker::connect(&server, client_token.clone()).await?;
        client.close().await;
    }
    writeln!(
        stdout(),
        "database: {}, lock server: {server}\n{} orders, {} workers, lease {} s; {}\n",
        shop.name(),
        orders.len(),
        arguments.workers,
        arguments.lease,
        match arguments.freeze {
            Some(0) => "no worker is frozen",
            _ => "one worker is frozen past its lease",
        }
    )?;

    let control = Run {
        title: "without fencing",
        fencing: false,
    };
    let fenced = Run {
        title: "with fencing",
        fencing: true,
    };
    let runs = if arguments.no_fencing {
        vec![control]
    } else {
        vec![fenced, control]
    };
    let mut demonstrated = !arguments.no_fencing;
    for run in runs {
        let setup = Setup {
            database_url: database_url.clone(),
            server: server.clone(),
            client_token: client_token.clone(),
            key_prefix: key_prefix()?,
            lease_seconds: arguments.lease,
            workers: usize::try_from(arguments.workers).unwrap_or(usize::MAX),
            freeze: arguments.freeze,
            fencing: run.fencing,
        };
        let prefix = setup.key_prefix.clone();
        let report = run.report(setup, &shop, &stock, &orders, &mut interrupt);
        let report = report.await;
        // Also after a failure nothing stays behind, unless the database does not answer.
        let cleaned = timeout(CLEAN_UP, shop.clean_up(&prefix)).await;
        let report = report?;
        cleaned.map_err(io::Error::from)??;
        let (as_claimed, verdict) = run.verdict(&report);
        let (title, table) = (run.title, report.print());
        writeln!(stdout(), "== {title} ==\n{table}\n{verdict}\n")?;
        demonstrated &= as_claimed;
    }
    if let Some(server) = embedded {
        server.shutdown().await;
    }
    Ok(demonstrated)
}

/// One half of the demonstration.
struct Run {
    title: &'static str,
    fencing: bool,
}

impl Run {
    /// Fills the shelves, sells everything, and counts.
    async fn report(
        &self,
        setup: Setup,
        shop: &Shop,
        stock: &Stock,
        orders: &[Order],
        interrupt: &mut Interrupt,
    ) -> Result<Report, Failure> {
        shop.reset(stock).await?;
        let progress = Progress::new(self.title, orders.len());
        let told = run::run(setup, orders, progress, interrupt).await?;
        Ok(Report::read(shop, stock, orders, told).await?)
    }

    /// Whether the run showed what it has to show, and a sentence on it.
    fn verdict(&self, report: &Report) -> (bool, String) {
        let refused = report.told.refused.len();
        let froze = report.told.frozen.is_some();
        match (self.fencing, report.exact(), report.oversold()) {
            (true, true, _) if froze && refused > 0 => (
                true,
                "EXACT: the stale holder was refused, every order is in once, the stock is right."
                    .to_owned(),
            ),
            (true, true, _) => (
                false,
                "exact, but no stale writer was there to be refused.".to_owned(),
            ),
            (true, false, _) => (
                false,
                "WRONG: fencing did not keep the stock exact.".to_owned(),
            ),
            (false, false, units) if units > 0 => (
                true,
                format!(
                    "CORRUPTED: the stale write got through; {units} sold units are on offer again."
                ),
            ),
            (false, ..) => (
                false,
                "no damage: the run without fencing shows nothing.".to_owned(),
            ),
        }
    }
}

fn client_token(arguments: &Arguments) -> Result<Option<String>, Failure> {
    match &arguments.client_token_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|source| Failure::File {
                path: path.clone(),
                source,
            })?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
        None if arguments.server.is_some() => Ok(std::env::var(setting::CLIENT_TOKEN).ok()),
        None => Ok(None),
    }
}

/// Every run has keys of its own: its marks meet those of no other run and no other server.
fn key_prefix() -> Result<String, Failure> {
    let run = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("example-{run:016x}/"))
}

fn read_files(arguments: &Arguments) -> Result<(Stock, Vec<Order>), Failure> {
    let (stock, bad) = orders::read_stock(open(&arguments.stock, include_str!("stock.csv"))?);
    report_bad_lines(&arguments.stock, "stock.csv", &bad);
    let file = open(&arguments.orders, include_str!("orders.csv"))?;
    let (orders, bad) = orders::read_orders(file, &stock);
    report_bad_lines(&arguments.orders, "orders.csv", &bad);
    if orders.is_empty() {
        return Err(Failure::NoOrders);
    }
    if arguments.freeze != Some(0) && !run::can_freeze(&orders, arguments.freeze) {
        return Err(Failure::NothingToFreeze);
    }
    Ok((stock, orders))
}

fn open(path: &Option<PathBuf>, bundled: &'static str) -> Result<Box<dyn io::Read>, Failure> {
    match path {
        None => Ok(Box::new(bundled.as_bytes())),
        Some(path) => match File::open(path) {
            Ok(file) => Ok(Box::new(file)),
            Err(source) => Err(Failure::File {
                path: path.clone(),
                source,
            }),
        },
    }
}

fn report_bad_lines(path: &Option<PathBuf>, bundled: &str, bad: &[BadLine]) {
    let name = path
        .as_ref()
        .map_or_else(|| bundled.to_owned(), |path| path.display().to_string());
    for BadLine { line, reason } in bad {
        tell(&format!("{name}:{line}: {reason}; the line is not used"));
    }
}

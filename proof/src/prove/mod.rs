//! The stale-writer proof: what a paused, killed or partitioned lock holder can do to a database,
//! with the fence and, as the control, without it.
//!
//! [`run`] puts every adapter through the same seeded rounds, one row of the report per isolation
//! level and form. Holders are processes of their own that run [`work`], and their locks come from a
//! real lock server. What happened is read from the database afterwards, never from what a holder
//! said. The path of a run: `choice` and `plan` (what will happen), `cell` and `round` (making it
//! happen), `holder` and `worker` (the two ends of a process), `observer` and `count` (what is true),
//! `report`.

mod cell;
mod choice;
mod count;
mod holder;
mod inside;
mod observer;
mod pipe;
mod plan;
mod proxy;
mod report;
mod round;
mod words;
mod worker;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use highwater_server::{Server, StartError};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::adapter::{Adapter, Dialect};
use cell::{Cell, Stage};
use holder::{Crew, Launch};
use observer::Observer;

pub use choice::{Choice, ChoiceError};
pub use holder::HolderError;
pub use observer::ObserverError;
pub use report::{Counts, Report, Row, Verdict};
pub use words::{Form, Level};
pub use worker::{WorkerError, work};

/// What to prove, and how much of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database. Holders get it through their environment.
    pub database_url: String,
    /// The rows of the report.
    pub choice: Choice,
    /// Rounds of every row; from [`Options::FEWEST_ROUNDS`] on each kind of round occurs.
    pub rounds: u32,
    /// Decides what happens in a round. Every row has the same rounds.
    pub seed: u64,
    /// How many rounds run at once. Each of them has two processes and two connections.
    pub at_once: u32,
    /// The program and the arguments of a process that calls [`work`].
    pub holder: (PathBuf, Vec<OsString>),
}

impl Options {
    /// With fewer rounds than kinds of rounds the control may have no damage to show.
    pub const FEWEST_ROUNDS: u32 = 5;
    /// More would not fit the numbers of orders into a database's integers.
    pub const MOST_ROUNDS: u32 = 10_000;
}

/// Runs everything and counts. The tables that it needs are created, and dropped at the end, also
/// when `interrupted` completes first.
///
/// `progress` is called with each row as soon as it is there.
///
/// # Errors
/// Nothing could be run. That a row failed is no error; see [`Report::is_proof`].
pub async fn run(
    options: &Options,
    interrupted: impl Future<Output = ()>,
    mut progress: impl FnMut(&Row),
) -> Result<Report, ProveError> {
    let url = choice::plain_url(&options.database_url)?;
    let dialect = choice::dialect_of(&url)?;
    let choice = options.choice.resolve(dialect)?;
    let observer = Arc::new(Observer::connect(dialect, &url).await?);
    let plans = plan::plans(options.seed, options.rounds);
    let cells = cell::cells(&choice, &plans);
    observer.create(cells.len() * plans.len()).await?;
    let proven = tokio::select! {
        report = all(options, dialect, &url, &observer, cells, &mut progress) => report,
        () = interrupted => Err(ProveError::Interrupted),
    };
    // After an interruption the holders are being killed, and what they have locked is waited for.
    let dropped = timeout(CLEAN_UP, observer.drop_tables()).await;
    end(proven, dropped.map_err(|_| ProveError::NotCleanedUp))
}

/// What a run comes to. That tables are left behind is told instead of an interruption, of which the
/// user knows; any other failure comes first.
fn end(
    proven: Result<Report, ProveError>,
    dropped: Result<Result<(), ObserverError>, ProveError>,
) -> Result<Report, ProveError> {
    let dropped = dropped.and_then(|dropped| Ok(dropped?));
    match proven {
        Ok(report) => dropped.map(|()| report),
        Err(ProveError::Interrupted) => Err(dropped.err().unwrap_or(ProveError::Interrupted)),
        Err(error) => Err(error),
    }
}

async fn all(
    options: &Options,
    dialect: Dialect,
    url: &str,
    observer: &Arc<Observer>,
    cells: Vec<Cell>,
    progress: &mut impl FnMut(&Row),
) -> Result<Report, ProveError> {
    let version = observer.version().await?;
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::builder().in_memory().listen(listen).no_auth();
    let server = server.start().await?;
    let slots = Arc::new(Semaphore::new(options.at_once as usize));
    let mut rows = Vec::new();
    for adapter in adapters(&cells) {
        let crew = Crew::new(Launch {
            program: options.holder.0.clone(),
            arguments: options.holder.1.clone(),
            database_url: url.to_owned(),
            adapter: adapter.name().to_owned(),
        });
        let stage = Arc::new(Stage {
            crew,
            server: server.local_addr(),
            slots: slots.clone(),
            observer: observer.clone(),
        });
        let of_adapter = cells
            .iter()
            .filter(|cell| cell.adapter.name() == adapter.name());
        let mut running = tokio::task::JoinSet::new();
        for cell in of_adapter {
            running.spawn(cell::play(stage.clone(), cell.clone()));
        }
        while let Some(played) = running.join_next().await {
            let played = played.map_err(ProveError::Panicked)?;
            let row = played.row(observer, dialect, &version).await?;
            progress(&row);
            rows.push(row);
        }
    }
    server.shutdown().await;
    rows.sort_by_key(|row| row.position);
    Ok(Report::new(options.seed, rows))
}

/// Each adapter once, in order.
fn adapters(cells: &[Cell]) -> Vec<&'static dyn Adapter> {
    let mut adapters: Vec<&'static dyn Adapter> = Vec::new();
    for cell in cells {
        if adapters
            .iter()
            .all(|adapter| adapter.name() != cell.adapter.name())
        {
            adapters.push(cell.adapter);
        }
    }
    adapters
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProveError {
    /// What was asked for does not exist, or not in this build.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The database does not do what the proof needs beside the adapters.
    #[error(transparent)]
    Observer(#[from] ObserverError),
    /// The lock server of the proof did not start.
    #[error("the lock server of the proof did not start")]
    Server(#[from] StartError),
    /// A defect of the proof itself.
    #[error("a task of the proof ended early")]
    Panicked(#[source] tokio::task::JoinError),
    /// Somebody asked for an end.
    #[error("interrupted; the tables of the proof are dropped")]
    Interrupted,
    /// The database stopped answering.
    #[error(
        "the tables of the proof could not be dropped in {} s: drop {} by hand",
        CLEAN_UP.as_secs(),
        observer::TABLES.join(", ")
    )]
    NotCleanedUp,
}

/// How long dropping the tables may take.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// The shortest lease of the protocol.
const LEASE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_are_left_behind_are_not_said_to_be_dropped() {
        let interrupted = || Err(ProveError::Interrupted);
        let ended = end(interrupted(), Ok(Ok(())));
        assert!(matches!(ended, Err(ProveError::Interrupted)), "{ended:?}");
        let ended = end(interrupted(), Err(ProveError::NotCleanedUp));
        assert!(matches!(ended, Err(ProveError::NotCleanedUp)), "{ended:?}");
        let refused = || ObserverError::Unreachable;
        let ended = end(interrupted(), Ok(Err(refused())));
        assert!(matches!(ended, Err(ProveError::Observer(_))), "{ended:?}");
        let ended = end(Ok(Report::new(1, Vec::new())), Ok(Err(refused())));
        assert!(matches!(ended, Err(ProveError::Observer(_))), "{ended:?}");
    }
}

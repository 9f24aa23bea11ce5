//! `highwater lock`: runs a command while a lock is held.
//!
//! This process takes the lock, starts the command and stays beside it: it passes signals on, tells
//! the command when the lock is lost, and ends as the command ended.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use highwater_client::{
    AcquireError, AcquireOptions, Client, Key, KeyError, Lost, Release, Ticket,
};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

use crate::service::{Service, ServiceError};
use crate::words::{digits, duration};

mod signals;

use signals::{Forwarded, send};

/// Run a command under a lock.
///
/// Waits for its turn, runs the command, and gives the lock back when it ends. The command finds in its
/// environment HIGHWATER_LOCK_KEY, HIGHWATER_FENCING_TOKEN and HIGHWATER_FENCING_DOMAIN (64
/// hexadecimal digits): what it writes is safe only if the database compares that token, because a
/// command that is paused for longer than its lease notices nothing.
///
/// When the lock is lost, the command gets SIGTERM, and SIGKILL if it has not ended by then after
/// --kill-after. With --extend that happens only if the server cannot be reached in time or does not
/// know the lock any more, without it when the lease is over. Signals are passed on to the command.
///
/// Exit status: that of the command (128 and the number of the signal that ended it); 76 if the lock was
/// lost before it ended; 75 if the lock was not acquired in time; 69 if the lock service cannot be
/// used; 74 if it is unknown whether the lock was acquired; 126 or 127 if the command cannot be started or
/// found; 2 for wrong options. --not-acquired-status and --lost-status set others.
///
/// Examples:
///   highwater lock jobs/nightly --wait 0s --extend -- ./nightly.sh
///   highwater lock stock/apple --lease 10s -- sh -c 'restock --token "$HIGHWATER_FENCING_TOKEN"'
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// What to lock: 1 to 128 bytes.
    key: String,
    /// How long to wait for it, such as 5s or 1m; 0s is one try.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    wait: Duration,
    /// How long the lock lasts without an extension.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    lease: Duration,
    /// Extend the lease for as long as the command runs.
    #[arg(long)]
    extend: bool,
    /// With --extend, the longest time to hold the lock.
    #[arg(long, value_name = "TIME", requires = "extend", value_parser = duration)]
    max_hold: Option<Duration>,
    /// How long the command has to end by itself after the lock is lost.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    kill_after: Duration,
    /// The exit status if the lock was not acquired in time.
    #[arg(long, value_name = "STATUS", default_value_t = NOT_ACQUIRED)]
    not_acquired_status: u8,
    /// The exit status if the lock was lost.
    #[arg(long, value_name = "STATUS", default_value_t = LOST)]
    lost_status: u8,
    #[command(flatten)]
    service: Service,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command; gives the status to exit with.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Error> {
    let key = Key::new(options.key.clone()).map_err(|source| Error::Key {
        key: options.key.clone(),
        source,
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    runtime.block_on(under(&key, options)).map(ExitCode::from)
}

async fn under(key: &Key, options: &Options) -> Result<u8, Error> {
    // Before the lock is taken, so that no signal is missed that should reach the command.
    let mut signals = Forwarded::listen().map_err(Error::Runtime)?;
    let time = options.wait.max(CONNECT_TIME);
    let client = tokio::select! {
        client = options.service.connect(time) => client?,
        signal = signals.next() => return Ok(of_signal(signal)),
    };
    let taken = tokio::select! {
        taken = take(&client, key, options) => taken,
        // Nothing runs yet that could be told. Dropping it gives the place in the queue up.
        signal = signals.next() => {
            client.close().await;
            return Ok(of_signal(signal));
        }
    };
    let status = match taken {
        Ok(Some(ticket)) => with(ticket, key, options, &mut signals).await,
        Ok(None) => Ok(options.not_acquired_status),
        Err(error) => Err(error),
    };
    client.close().await;
    status
}

/// Takes the lock; `None` if others have it.
async fn take(client: &Client, key: &Key, options: &Options) -> Result<Option<Ticket>, Error> {
    let mut wanted = AcquireOptions::new().lease(options.lease);
    if options.extend {
        wanted = wanted.auto_extend(options.max_hold.unwrap_or(Duration::MAX));
    }
    let started = Instant::now();
    loop {
        // A server knows no wait as long as one may want here. The place in the queue is new then.
        let left = options.wait.saturating_sub(started.elapsed());
        let wait = left.min(LONGEST_WAIT);
        match client.acquire(key, wanted.clone().wait(wait)).await {
            Ok(ticket) => return Ok(Some(ticket)),
            Err(AcquireError::TimedOut) if left > LONGEST_WAIT => {}
            Err(AcquireError::TimedOut) => {
                complain(&format!("{key} was not free within {:?}", options.wait));
                return Ok(None);
            }
            Err(source) => {
                let key = key.to_string();
                return Err(Error::Acquire { key, source });
            }
        }
    }
}

/// Runs the command, and gives the lock back.
async fn with(
    ticket: Ticket,
    key: &Key,
    options: &Options,
    signals: &mut Forwarded,
) -> Result<u8, Error> {
    let ended = beside(&ticket, options, signals).await;
    let released = ticket.release().await;
    let Ended { status, lost } = ended?;
    if let Some(lost) = lost {
        complain(&format!(
            "the lock on {key} was lost while the command ran: {lost}"
        ));
        return Ok(options.lost_status);
    }
    match released {
        Ok(Release::Released) => Ok(of(status)),
        // Whether the command was alone to its end is not certain.
        Ok(_) => {
            complain(&format!(
                "the lock on {key} was gone when the command ended"
            ));
            Ok(options.lost_status)
        }
        Err(error) => {
            complain(&format!(
                "{error}; the lease of {key} ends the lock at the latest"
            ));
            Ok(of(status))
        }
    }
}

struct Ended {
    status: ExitStatus,
    /// Why the lock was no longer held, if that came first.
    lost: Option<Lost>,
}

/// Runs the command until it ends.
async fn beside(
    ticket: &Ticket,
    options: &Options,
    signals: &mut Forwarded,
) -> Result<Ended, Error> {
    let mut child = start(ticket, options)?;
    let lost = ticket.lost();
    tokio::pin!(lost);
    loop {
        tokio::select! {
            status = child.wait() => return ended(status, None),
            signal = signals.next_for_command() => send(&child, signal),
            why = &mut lost => {
                let status = end(&mut child, options.kill_after, signals).await;
                return ended(status, Some(why));
            }
        }
    }
}

fn ended(status: io::Result<ExitStatus>, lost: Option<Lost>) -> Result<Ended, Error> {
    let status = status.map_err(Error::Runtime)?;
    Ok(Ended { status, lost })
}

fn start(ticket: &Ticket, options: &Options) -> Result<Child, Error> {
    let (program, arguments) = options
        .command
        .split_first()
        .expect("the command line has to have one");
    let child = Command::new(program)
        .args(arguments)
        .env("HIGHWATER_LOCK_KEY", &options.key)
        .env("HIGHWATER_FENCING_TOKEN", ticket.token().to_string())
        .env(
            "HIGHWATER_FENCING_DOMAIN",
            digits(ticket.domain().as_bytes()),
        )
        .spawn();
    child.map_err(|source| Error::Start {
        program: program.clone(),
        source,
    })
}

/// Tells the command to end, and ends it if it does not.
async fn end(
    child: &mut Child,
    kill_after: Duration,
    signals: &mut Forwarded,
) -> io::Result<ExitStatus> {
    send(child, signals::TERMINATE);
    let kill = Instant::now() + kill_after;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = signals.next_for_command() => send(child, signal),
            () = sleep_until(kill) => break,
        }
    }
    child.start_kill()?;
    child.wait().await
}

fn of(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(of_signal);
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(signal).unwrap_or(u8::MAX)
}

fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| 128 | signal)
}

fn complain(line: &str) {
    crate::complain(line.to_owned().into());
}

/// Why the command did not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{key:?} cannot be locked")]
    Key { key: String, source: KeyError },
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("{key} was not locked")]
    Acquire { key: String, source: AcquireError },
    #[error("{} cannot be started", program.display())]
    Start {
        program: OsString,
        source: io::Error,
    },
    #[error("the system refuses what it needs")]
    Runtime(#[source] io::Error),
}

impl Error {
    /// The status to exit with.
    pub(crate) fn status(&self, options: &Options) -> u8 {
        match self {
            Self::Key { .. } => USAGE,
            Self::Acquire { source, .. } => match source {
                AcquireError::Busy => options.not_acquired_status,
                AcquireError::Indeterminate => UNKNOWN,
                AcquireError::InvalidWait { .. }
                | AcquireError::InvalidLease { .. }
                | AcquireError::LeaseTooShortToExtend { .. } => USAGE,
                _ => UNAVAILABLE,
            },
            Self::Service(error) if error.is_usage() => USAGE,
            Self::Service(_) | Self::Runtime(_) => UNAVAILABLE,
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Start { .. } => NOT_EXECUTABLE,
        }
    }
}

// The numbers of sysexits.h where they have one, and of the shell for a command that does not start.
const USAGE: u8 = 2;
/// EX_UNAVAILABLE
const UNAVAILABLE: u8 = 69;
/// EX_PROTOCOL, which nothing else here uses.
const LOST: u8 = 76;
/// EX_IOERR
const UNKNOWN: u8 = 74;
/// EX_TEMPFAIL
const NOT_ACQUIRED: u8 = 75;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// At least so long to reach the server, also for a single try.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The longest wait that a server knows.
const LONGEST_WAIT: Duration = Duration::from_secs(255);

//! A holder process from outside: what it is told, what it answers, and what is done to it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command as Process};
use tokio::time::timeout;

use super::words::{Answer, Command};
use super::worker::setting;

/// How a holder process is started.
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) database_url: String,
    pub(super) adapter: String,
}

/// The holders of one adapter. They serve one round after another, and end with the crew.
pub(super) struct Crew {
    launch: Launch,
    idle: Mutex<Vec<Holder>>,
}

impl Crew {
    pub(super) fn new(launch: Launch) -> Self {
        Self {
            launch,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// A holder that holds nothing.
    pub(super) async fn take(&self) -> Result<Holder, HolderError> {
        let idle = self.idle().pop();
        match idle {
            Some(holder) => Ok(holder),
            None => Holder::start(&self.launch).await,
        }
    }

    /// Takes a holder back. Only one that answered everything and holds nothing.
    pub(super) fn give(&self, holder: Holder) {
        self.idle().push(holder);
    }

    /// A panic elsewhere does not make the list wrong.
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Holder>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One process and its pipes. It is killed when this is dropped, stopped or not.
pub(super) struct Holder {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    async fn start(launch: &Launch) -> Result<Self, HolderError> {
        let mut command = Process::new(&launch.program);
        command
            .args(&launch.arguments)
            .env(setting::DATABASE_URL, &launch.database_url)
            .env(setting::ADAPTER, &launch.adapter)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which then ends its holders. And should the parent be killed,
            // the system wakes and ends a stopped process that is alone in its group.
            .process_group(0)
            .kill_on_drop(true);
        let mut process = command.spawn().map_err(HolderError::Start)?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(HolderError::Ended);
        };
        let mut holder = Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        };
        match holder.hear().await? {
            Answer::Ready => Ok(holder),
            Answer::Failed { reason } => Err(HolderError::Open { reason }),
            other => Err(HolderError::unexpected("start", other)),
        }
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn ask(&mut self, command: &Command) -> Result<Answer, HolderError> {
        self.say(command).await?;
        self.hear().await
    }

    /// Sends a command.
    pub(super) async fn say(&mut self, command: &Command) -> Result<(), HolderError> {
        let mut line = serde_json::to_string(command).map_err(HolderError::Garbled)?;
        line.push('\n');
        let written = self.input.write_all(line.as_bytes()).await;
        written.map_err(HolderError::Pipe)
    }

    /// Waits for the next answer.
    pub(super) async fn hear(&mut self) -> Result<Answer, HolderError> {
        let line = timeout(PATIENCE, self.output.next_line()).await;
        let line = line.map_err(|_| HolderError::Silent)?;
        let line = line.map_err(HolderError::Pipe)?.ok_or(HolderError::Ended)?;
        serde_json::from_str(&line).map_err(HolderError::Garbled)
    }

    /// Stops the process, and returns when it has stopped.
    pub(super) async fn freeze(&self) -> Result<(), HolderError> {
        let pid = self.signal(Signal::SIGSTOP)?;
        let status =
            tokio::task::spawn_blocking(move || waitpid(pid, Some(WaitPidFlag::WUNTRACED)))
                .await
                .map_err(|error| HolderError::Pipe(io::Error::other(error)))?;
        match status {
            Ok(WaitStatus::Stopped(..)) => Ok(()),
            Ok(_) => Err(HolderError::Ended),
            Err(error) => Err(HolderError::Signal(error.into())),
        }
    }

    /// Continues a stopped process.
    pub(super) fn wake(&self) -> Result<(), HolderError> {
        self.signal(Signal::SIGCONT).map(drop)
    }

    /// Ends the process where it is, and returns when it has ended.
    pub(super) async fn kill(mut self) -> Result<(), HolderError> {
        self.signal(Signal::SIGKILL)?;
        let ended = self.process.wait().await;
        ended.map(drop).map_err(HolderError::Signal)
    }

    fn signal(&self, signal: Signal) -> Result<Pid, HolderError> {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = Pid::from_raw(pid.ok_or(HolderError::Ended)?);
        kill(pid, signal).map_err(|error| HolderError::Signal(error.into()))?;
        Ok(pid)
    }
}

/// Why a round could not be played to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HolderError {
    /// The system starts no more processes, or not this program.
    #[error("a holder process does not start")]
    Start(#[source] io::Error),
    /// The process is gone before its time. What it wrote to standard error says why.
    #[error("a holder process has ended")]
    Ended,
    /// Nothing came for a long time: a lock of the database that is never released, for example.
    #[error("a holder process has said nothing for {} s", PATIENCE.as_secs())]
    Silent,
    /// The pipe is broken.
    #[error("a holder process cannot be talked to")]
    Pipe(#[source] io::Error),
    /// The process cannot be stopped, continued or killed.
    #[error("a holder process does not take signals")]
    Signal(#[source] io::Error),
    /// Both sides are of the same build, so this is a defect of it.
    #[error("a holder process and the proof do not understand each other")]
    Garbled(#[source] serde_json::Error),
    /// The link through which a holder is partitioned.
    #[error("the link to the lock server does not start")]
    Link(#[source] io::Error),
    /// The adapter of a holder got no connection.
    #[error(
        "a holder could not open the database; rounds at once take two connections each: {reason}"
    )]
    Open {
        /// What it said.
        reason: String,
    },
    /// A holder that had every right could not do its work.
    #[error("a holder could not {wanted}: {reason}")]
    Failed {
        /// What it was to do.
        wanted: &'static str,
        /// What it said.
        reason: String,
    },
    /// The server does not end a session of the role that asks for it.
    #[error("the session of a holder was not ended")]
    End(#[source] sqlx::Error),
    /// The lock server gave two holders the same token, or a lower one to the later.
    #[error("the later holder has token {later}, the earlier one {earlier}")]
    TokenOrder {
        /// Of the holder that lost the lock.
        earlier: u64,
        /// Of its successor.
        later: u64,
    },
}

impl HolderError {
    pub(super) fn unexpected(wanted: &'static str, answer: Answer) -> Self {
        let reason = match answer {
            Answer::Failed { reason } => reason,
            other => format!("it said {other:?}"),
        };
        Self::Failed { wanted, reason }
    }
}

/// The longest time without an answer. A database that waits for a lock has its own, shorter limits.
const PATIENCE: Duration = Duration::from_secs(60);

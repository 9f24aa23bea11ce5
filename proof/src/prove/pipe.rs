//! How a holder process hears the proof and answers it, and where it stops on the way.

use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, mpsc};

use crate::adapter::{BoxError, Dialect, Statements};

use super::words::{Answer, Command, Stop};

/// Standard input and output.
pub(super) struct Pipe {
    lines: Mutex<mpsc::UnboundedReceiver<io::Result<String>>>,
}

impl Pipe {
    /// Reads on a thread of its own, which ends with the input or with the process.
    pub(super) fn open() -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            lines: Mutex::new(lines),
        }
    }

    pub(super) async fn hear(&self) -> io::Result<Option<Command>> {
        match self.lines.lock().await.recv().await {
            Some(line) => Ok(Some(serde_json::from_str(&line?)?)),
            None => Ok(None),
        }
    }

    /// An answer is far smaller than a pipe, so this does not wait for the proof to read.
    pub(super) async fn say(&self, answer: &Answer) -> io::Result<()> {
        let line = serde_json::to_string(answer)? + "\n";
        let mut output = io::stdout().lock();
        output.write_all(line.as_bytes())?;
        output.flush()
    }

    /// Says where it stops, and waits to be told to go on or to be killed, at most until the input
    /// ends.
    async fn stop(&self, at: Stop, session: Option<i64>) -> io::Result<()> {
        self.say(&Answer::Stopped { at, session }).await?;
        match self.hear().await? {
            Some(Command::GoOn) => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Where a write stops, however often it is tried again.
pub(super) struct Stopping {
    at: Stop,
    done: AtomicBool,
    /// Reads how the server calls the session.
    session: Option<&'static str>,
    pipe: Arc<Pipe>,
}

impl Stopping {
    pub(super) fn new(at: Stop, dialect: Dialect, pipe: Arc<Pipe>) -> Self {
        Self {
            at,
            done: AtomicBool::new(false),
            session: match dialect {
                Dialect::Postgres => Some("SELECT pg_backend_pid()::bigint"),
                Dialect::MySql => Some("SELECT CAST(CONNECTION_ID() AS SIGNED)"),
                Dialect::Sqlite => None,
            },
            pipe,
        }
    }

    fn is_due(&self, at: Stop) -> bool {
        at == self.at && !self.done.swap(true, Ordering::Relaxed)
    }

    /// Stops in the transaction, if it is to.
    pub(super) async fn inside(&self, at: Stop, tx: &mut dyn Statements) -> Result<(), BoxError> {
        if !self.is_due(at) {
            return Ok(());
        }
        let session = match self.session {
            Some(sql) => tx.number(sql).await?,
            None => None,
        };
        Ok(self.pipe.stop(at, session).await?)
    }

    /// Stops after the commit, if it is to.
    pub(super) async fn behind_the_commit(&self) -> io::Result<()> {
        if self.is_due(Stop::Committed) {
            self.pipe.stop(Stop::Committed, None).await?;
        }
        Ok(())
    }
}

//! Guards that block, on a thread that owns the connection.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{Command, Door, Handle, Past, open, opened, session};
use crate::adapter::{Body, BoxError, DriverError, Tx, Verdict};

/// Statements of a driver that blocks.
pub(crate) trait Blocking {
    /// See [`Statements::run`].
    fn run(&mut self, sql: &str) -> Result<u64, DriverError>;
    /// See [`Statements::number`].
    fn number(&mut self, sql: &str) -> Result<Option<i64>, DriverError>;
    /// See [`Statements::run_past`].
    fn run_past(&mut self, sql: &str) -> Result<u64, DriverError>;
    /// See [`Statements::number_past`].
    fn number_past(&mut self, sql: &str) -> Result<Option<i64>, DriverError>;
    /// See [`Statements::nested`].
    fn nested(&mut self, sql: &str, keep: bool) -> Result<(), DriverError> {
        self.run_past("SAVEPOINT nested")?;
        self.run_past(sql)?;
        if !keep {
            self.run_past("ROLLBACK TO SAVEPOINT nested")?;
        }
        self.run_past("RELEASE SAVEPOINT nested").map(drop)
    }
}

/// A guard of a driver that blocks.
pub(crate) trait BlockingGuard: Blocking + Sized {
    /// Commits.
    fn commit(self) -> Result<(), Verdict>;
    /// Rolls back.
    fn rollback(self) -> Result<(), Verdict>;
}

/// Starts a session on a thread: `start` gets the connection, begins, and ends with
/// [`Door::serve_blocking`].
pub(crate) async fn on_thread<S>(start: S) -> Result<Box<dyn Tx>, Verdict>
where
    S: FnOnce(Door) + Send + 'static,
{
    let (door, handle, opened) = session();
    tokio::task::spawn_blocking(move || start(door));
    open(handle, opened).await
}

impl Door {
    /// Says how beginning went, and serves the guard until it ends or its handle is dropped.
    pub(crate) fn serve_blocking<G: BlockingGuard>(mut self, begun: Result<G, Verdict>) {
        let Some(mut guard) = opened(self.opened, begun) else {
            return;
        };
        while let Some(command) = self.commands.blocking_recv() {
            match obey(&mut guard, command) {
                None => {}
                Some(Ending::Commit(reply)) => return drop(reply.send(guard.commit())),
                Some(Ending::Rollback(reply)) => return drop(reply.send(guard.rollback())),
            }
        }
    }
}

/// What a command asks of a guard that it consumes.
enum Ending {
    Commit(oneshot::Sender<Result<(), Verdict>>),
    Rollback(oneshot::Sender<Result<(), Verdict>>),
}

/// Does what a command says, unless it is to end.
fn obey(guard: &mut impl Blocking, command: Command) -> Option<Ending> {
    match command {
        Command::Run(sql, Past::No, reply) => drop(reply.send(guard.run(&sql))),
        Command::Run(sql, Past::Yes, reply) => drop(reply.send(guard.run_past(&sql))),
        Command::Number(sql, Past::No, reply) => drop(reply.send(guard.number(&sql))),
        Command::Number(sql, Past::Yes, reply) => drop(reply.send(guard.number_past(&sql))),
        Command::Nested(sql, keep, reply) => drop(reply.send(guard.nested(&sql, keep))),
        Command::Commit(reply) => return Some(Ending::Commit(reply)),
        Command::Rollback(reply) => return Some(Ending::Rollback(reply)),
    }
    None
}

/// Runs the body of a closure form over a guard that blocks and cannot leave its thread: the body
/// runs as a task, and its statements are done here.
pub(crate) fn run_body(guard: &mut impl Blocking, body: &Body) -> Result<i64, BoxError> {
    let (sender, mut commands) = mpsc::unbounded_channel();
    let body = Arc::clone(body);
    let runtime = tokio::runtime::Handle::current();
    let task = runtime.spawn(async move { body(&mut Handle(sender)).await });
    while let Some(command) = commands.blocking_recv() {
        let ending = obey(guard, command);
        assert!(ending.is_none(), "a body has statements only");
    }
    match runtime.block_on(task) {
        Ok(result) => result,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

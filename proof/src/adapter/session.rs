//! Guards that borrow their connection, or block their thread, behind the owned and asynchronous
//! face that the suites want.
//!
//! Such a guard lives on a task or on a thread of its own, which also owns the connection, and is
//! sent what to do. When the handle is dropped the guard is dropped, and then the connection.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::{Body, BoxError, DriverError, Statements, Tx, Verdict};

/// What a guard is asked to do.
enum Command {
    Run(String, Past, oneshot::Sender<Result<u64, DriverError>>),
    Number(
        String,
        Past,
        oneshot::Sender<Result<Option<i64>, DriverError>>,
    ),
    Nested(String, bool, oneshot::Sender<Result<(), DriverError>>),
    Commit(oneshot::Sender<Result<(), Verdict>>),
    Rollback(oneshot::Sender<Result<(), Verdict>>),
}

/// Whether it goes past the guard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    No,
    Yes,
}

/// The end of a session on the side of the guard.
pub(crate) struct Door {
    opened: oneshot::Sender<Result<(), Verdict>>,
    commands: mpsc::UnboundedReceiver<Command>,
}

/// The end of a session on the side of the suite.
struct Handle(mpsc::UnboundedSender<Command>);

/// A guard that is driven asynchronously, on a task.
pub(crate) trait Guard: Statements + Sized {
    /// Commits.
    fn commit<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g;
    /// Rolls back.
    fn rollback<'g>(self) -> BoxFuture<'g, Result<(), Verdict>>
    where
        Self: 'g;
}

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

/// Starts a session on a task: `start` gets the connection, begins, and ends with
/// [`Door::serve`].
pub(crate) async fn on_task<S, F>(start: S) -> Result<Box<dyn Tx>, Verdict>
where
    S: FnOnce(Door) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let (door, handle, opened) = session();
    tokio::spawn(start(door));
    open(handle, opened).await
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

fn session() -> (Door, Handle, oneshot::Receiver<Result<(), Verdict>>) {
    let (opened, is_open) = oneshot::channel();
    let (sender, commands) = mpsc::unbounded_channel();
    (Door { opened, commands }, Handle(sender), is_open)
}

async fn open(
    handle: Handle,
    opened: oneshot::Receiver<Result<(), Verdict>>,
) -> Result<Box<dyn Tx>, Verdict> {
    match opened.await {
        Ok(Ok(())) => Ok(Box::new(handle)),
        Ok(Err(verdict)) => Err(verdict),
        Err(_) => Err(Verdict::Database(gone())),
    }
}

impl Door {
    /// Says how beginning went, and serves the guard until it ends or its handle is dropped.
    pub(crate) async fn serve<G: Guard>(mut self, begun: Result<G, Verdict>) {
        let Some(mut guard) = opened(self.opened, begun) else {
            return;
        };
        while let Some(command) = self.commands.recv().await {
            match command {
                Command::Run(sql, Past::No, reply) => drop(reply.send(guard.run(&sql).await)),
                Command::Run(sql, Past::Yes, reply) => drop(reply.send(guard.run_past(&sql).await)),
                Command::Number(sql, Past::No, reply) => drop(reply.send(guard.number(&sql).await)),
                Command::Number(sql, Past::Yes, reply) => {
                    drop(reply.send(guard.number_past(&sql).await));
                }
                Command::Nested(sql, keep, reply) => {
                    drop(reply.send(guard.nested(&sql, keep).await));
                }
                Command::Commit(reply) => return drop(reply.send(guard.commit().await)),
                Command::Rollback(reply) => return drop(reply.send(guard.rollback().await)),
            }
        }
    }

    /// The same for a guard that blocks.
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

/// Tells the suite, and gives the guard if there is one and somebody wants it.
fn opened<G>(opened: oneshot::Sender<Result<(), Verdict>>, begun: Result<G, Verdict>) -> Option<G> {
    match begun {
        Ok(guard) => opened.send(Ok(())).is_ok().then_some(guard),
        Err(verdict) => {
            let _ = opened.send(Err(verdict));
            None
        }
    }
}

impl Handle {
    fn ask<'a, T: Send + 'static>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, DriverError>>) -> Command,
    ) -> BoxFuture<'a, Result<T, DriverError>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(command(reply));
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(gone())) })
    }

    fn end(
        self,
        command: impl FnOnce(oneshot::Sender<Result<(), Verdict>>) -> Command,
    ) -> BoxFuture<'static, Result<(), Verdict>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(command(reply));
        Box::pin(async move {
            let answered = answer.await;
            answered.unwrap_or_else(|_| Err(Verdict::Database(gone())))
        })
    }
}

impl Statements for Handle {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        self.ask(|reply| Command::Run(sql.to_owned(), Past::No, reply))
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        self.ask(|reply| Command::Number(sql.to_owned(), Past::No, reply))
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        self.ask(|reply| Command::Run(sql.to_owned(), Past::Yes, reply))
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        self.ask(|reply| Command::Number(sql.to_owned(), Past::Yes, reply))
    }

    fn nested<'a>(
        &'a mut self,
        sql: &'a str,
        keep: bool,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        self.ask(|reply| Command::Nested(sql.to_owned(), keep, reply))
    }
}

impl Tx for Handle {
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        self.end(Command::Commit)
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<(), Verdict>> {
        self.end(Command::Rollback)
    }
}

/// Statements of a blocking driver as the body of a closure form sees them. Each future is ready at
/// once; run the body with `tokio::runtime::Handle::block_on` on the thread of the driver.
pub(crate) struct InBody<'t, B>(pub(crate) &'t mut B);

impl<B: Blocking + Send> Statements for InBody<'_, B> {
    fn run<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        let done = self.0.run(sql);
        Box::pin(async move { done })
    }

    fn number<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        let number = self.0.number(sql);
        Box::pin(async move { number })
    }

    fn run_past<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<u64, DriverError>> {
        let done = self.0.run_past(sql);
        Box::pin(async move { done })
    }

    fn number_past<'a>(
        &'a mut self,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<Option<i64>, DriverError>> {
        let number = self.0.number_past(sql);
        Box::pin(async move { number })
    }

    fn nested<'a>(
        &'a mut self,
        sql: &'a str,
        keep: bool,
    ) -> BoxFuture<'a, Result<(), DriverError>> {
        let done = self.0.nested(sql, keep);
        Box::pin(async move { done })
    }
}

fn gone() -> DriverError {
    DriverError::text("the session of the guard has ended")
}

//! Guards that borrow their connection, or block their thread, behind the owned and asynchronous
//! face that the suites want.
//!
//! Such a guard lives on a task or on a thread of its own, which also owns the connection, and is
//! sent what to do. When the handle is dropped the guard is dropped, and then the connection.

#[cfg(any(
    feature = "diesel-async",
    feature = "mysql-async",
    feature = "sqlx",
    feature = "tokio-postgres"
))]
mod on_task;
#[cfg(any(
    feature = "diesel-mysql",
    feature = "diesel-postgres",
    feature = "diesel-sqlite",
    feature = "rusqlite"
))]
mod on_thread;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

#[cfg(any(
    feature = "diesel-async",
    feature = "mysql-async",
    feature = "sqlx",
    feature = "tokio-postgres"
))]
pub(crate) use on_task::{Guard, on_task};
#[cfg(any(
    feature = "diesel-mysql",
    feature = "diesel-postgres",
    feature = "diesel-sqlite",
    feature = "rusqlite"
))]
pub(crate) use on_thread::{Blocking, BlockingGuard, on_thread, run_body};

use super::{DriverError, Statements, Tx, Verdict};

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

fn gone() -> DriverError {
    DriverError::text("the session of the guard has ended")
}

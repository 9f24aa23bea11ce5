//! Guards that borrow their connection, on a task that owns it.

use futures_util::future::BoxFuture;

use super::{Command, Door, Past, open, opened, session};
use crate::adapter::{Statements, Tx, Verdict};

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
}

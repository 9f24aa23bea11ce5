//! The thread in which a blocking client does everything.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

use crate::leader::caught;

/// A thread with an async runtime, which ends when this is dropped and what it stays for is over.
///
/// The runtime itself never leaves the thread: dropped inside of another runtime, it would panic.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    /// The thread ends when the last copy is gone; every task that it stays for has one.
    stays: watch::Sender<()>,
}

impl Runtime {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, started) = mpsc::sync_channel(1);
        let stays = watch::Sender::new(());
        let mut ends = stays.subscribe();
        thread::Builder::new()
            .name("highwater-client".into())
            .spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        let _ = sender.send(Err(error));
                        return;
                    }
                };
                if sender.send(Ok(runtime.handle().clone())).is_ok() {
                    // Fails when every sender is gone: this value, and what is stayed for.
                    runtime.block_on(async { while ends.changed().await.is_ok() {} });
                }
                // A look-up of a name that still hangs is left behind.
                runtime.shutdown_background();
            })?;
        let handle = started.recv().map_err(|_| io::ErrorKind::Other)??;
        Ok(Self { handle, stays })
    }

    /// Keeps the thread until this is over, also when the value is dropped before.
    pub(crate) fn stays_for(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stays = self.stays.clone();
        self.handle.spawn(async move {
            work.await;
            drop(stays);
        });
    }

    /// Runs the future in the thread and waits for it, for so long at most; then it is dropped.
    ///
    /// Neither needs nor minds an async runtime around it. What the future panics with goes on here.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        bound: Duration,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, outcome) = mpsc::sync_channel(1);
        let task = self.handle.spawn(async move {
            let _ = sender.send(caught(future).await);
        });
        match outcome.recv_timeout(bound) {
            Ok(Ok(value)) => Some(value),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => {
                task.abort();
                None
            }
        }
    }
}

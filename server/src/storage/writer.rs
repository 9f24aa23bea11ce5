//! The thread that waits for the disk, so that nobody else has to.

use std::sync::mpsc;
use std::thread;

use tokio::sync::oneshot;

use super::StorageError;
use super::disk::Disk;
use super::record::Record;
use super::store::Store;

/// A store on a thread of its own. Dropping it ends the thread after what it is writing.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    record: Record,
    /// The store is closed afterwards.
    last: bool,
    done: oneshot::Sender<Result<u64, StorageError>>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start<D: Disk>(store: Store<D>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let builder = thread::Builder::new().name("highwater-state".to_owned());
        builder.spawn(move || write(store, &queue))?;
        Ok(Self { jobs })
    }

    /// Makes a record durable and gives the number of syncs so far. The store is closed after the
    /// `last` one, before this returns. Cancelling does not stop the write.
    pub(crate) async fn commit(&self, record: Record, last: bool) -> Result<u64, WriteError> {
        let (done, result) = oneshot::channel();
        let job = Job { record, last, done };
        self.jobs.send(job).map_err(|_| WriteError::ThreadEnded)?;
        let result = result.await.map_err(|_| WriteError::ThreadEnded)?;
        result.map_err(WriteError::Storage)
    }
}

fn write<D: Disk>(mut store: Store<D>, jobs: &mpsc::Receiver<Job>) {
    while let Ok(Job { record, last, done }) = jobs.recv() {
        let result = store.commit(&record).map(|()| store.syncs());
        if last {
            drop(store);
            let _ = done.send(result);
            return;
        }
        // Nobody waits for it any more: the server is being dropped.
        let _ = done.send(result);
    }
}

/// Why a record may not be durable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("the state was not stored")]
    Storage(#[source] StorageError),
    #[error("the thread that writes the state has ended")]
    ThreadEnded,
}

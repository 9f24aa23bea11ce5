//! The engine's log: in memory to read from, and in a [`Journal`] where it has to survive.
//!
//! A log that lives in memory only is stored as soon as it is there. Of one with a journal, one
//! thread writes. Everything that was asked for while it was busy becomes one block with one
//! sync. After one error it writes nothing any more and says so to all who ask, which ends the
//! node: nobody knows what a disk holds that has failed a sync.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::{oneshot, watch};

use super::journal::{Contents, Journal, Records};
use super::types::{Entry, LogId, Types, Vote};
use crate::metrics::{SharedHistogram, micros};
use crate::system;

/// See the module's description. Clones are the same log.
#[derive(Clone, Debug)]
pub(super) struct Log {
    contents: Arc<Mutex<Contents>>,
    /// None for a log that lives in memory only.
    writer: Option<Sender<Job>>,
    /// How long each write with its sync took, in microseconds.
    pub(super) writes: Arc<SharedHistogram>,
}

struct Job {
    records: Records,
    /// All that the log has with these records, if the file may be worth writing anew.
    whole: Option<Contents>,
    done: Done,
}

enum Done {
    Nobody,
    Appended(IOFlushed<Types>),
    Voted(oneshot::Sender<io::Result<()>>),
}

impl Done {
    fn tell(self, result: io::Result<()>) {
        match self {
            Self::Nobody => {}
            Self::Appended(callback) => callback.io_completed(result),
            Self::Voted(sender) => drop(sender.send(result)),
        }
    }
}

impl Log {
    /// Starts the thread that writes. It ends with the last clone.
    ///
    /// What is given beside the log is closed when the thread has ended, and the directory is free.
    pub(super) fn start(
        journal: Journal,
        contents: Contents,
    ) -> io::Result<(Self, watch::Receiver<()>)> {
        let contents = Arc::new(Mutex::new(contents));
        let (writer, jobs) = channel();
        let (ending, ended) = watch::channel(());
        let writes = Arc::new(SharedHistogram::new(WRITE_MICROS));
        let times = Arc::clone(&writes);
        std::thread::Builder::new()
            .name("highwater-log".to_owned())
            .spawn(move || {
                let _ending = ending;
                write(journal, &jobs, &times);
            })?;
        let log = Self {
            contents,
            writer: Some(writer),
            writes,
        };
        Ok((log, ended))
    }

    /// An empty log that ends with the process.
    pub(super) fn in_memory() -> Self {
        Self {
            contents: Arc::default(),
            writer: None,
            writes: Arc::new(SharedHistogram::new(WRITE_MICROS)),
        }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has records written. To be called under the lock of the contents: the file has everything in
/// the order in which memory has it.
fn ask(
    writer: &Sender<Job>,
    records: Records,
    whole: Option<Contents>,
    done: Done,
) -> io::Result<()> {
    let job = Job {
        records,
        whole,
        done,
    };
    writer.send(job).map_err(|_| stopped())
}

fn stopped() -> io::Error {
    io::Error::other("the log is not written any more")
}

/// Writes until the last log is dropped.
fn write(mut journal: Journal, jobs: &Receiver<Job>, times: &SharedHistogram) {
    let mut failed: Option<io::Error> = None;
    while let Ok(job) = jobs.recv() {
        let mut batch = vec![job];
        let mut bytes = batch[0].records.len();
        while bytes < MOST_AT_ONCE
            && let Ok(job) = jobs.try_recv()
        {
            bytes += job.records.len();
            batch.push(job);
        }
        if failed.is_none() {
            let begun = system::now();
            failed = store(&mut journal, &batch).err();
            times.record(micros(begun.elapsed()));
            if let Some(error) = &failed {
                tracing::error!(%error, "the log cannot be written: this node steps out");
            }
        }
        for job in batch {
            job.done.tell(match &failed {
                None => Ok(()),
                Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            });
        }
    }
}

fn store(journal: &mut Journal, batch: &[Job]) -> io::Result<()> {
    let mut records = Records::default();
    // A whole new file has everything that was asked for before it.
    let whole = batch.iter().rposition(|job| job.whole.is_some());
    batch.iter().for_each(|job| records.and(&job.records));
    match whole.and_then(|at| Some((at, batch[at].whole.as_ref()?))) {
        Some((at, contents)) if journal.is_wasteful() => {
            journal.rewrite(contents)?;
            let mut later = Records::default();
            batch[at + 1..]
                .iter()
                .for_each(|job| later.and(&job.records));
            journal.store(&later)
        }
        _ => journal.store(&records),
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R>(&mut self, range: R) -> Result<Vec<Entry>, io::Error>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let contents = self.contents();
        let entries = contents.entries.range(range);
        Ok(entries.map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.contents().vote)
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let contents = self.contents();
        let last = contents.entries.last_key_value();
        let last = last.map(|(_, entry)| entry.log_id);
        Ok(LogState {
            last_purged_log_id: contents.purged,
            last_log_id: last.or(contents.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let stored = {
            let mut contents = self.contents();
            contents.vote = Some(*vote);
            let Some(writer) = &self.writer else {
                return Ok(());
            };
            let mut records = Records::default();
            records.vote(vote);
            let (done, stored) = oneshot::channel();
            ask(writer, records, None, Done::Voted(done))?;
            stored
        };
        stored.await.map_err(|_| stopped())?
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut contents = self.contents();
        let Some(writer) = &self.writer else {
            for entry in entries {
                contents.append(entry);
            }
            drop(contents);
            callback.io_completed(Ok(()));
            return Ok(());
        };
        let mut records = Records::default();
        for entry in entries {
            records.entry(&entry);
            contents.append(entry);
        }
        ask(writer, records, None, Done::Appended(callback))
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let mut contents = self.contents();
        contents.truncate_after(last.as_ref());
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let mut records = Records::default();
        records.truncate_after(last.as_ref());
        ask(writer, records, None, Done::Nobody)
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let mut contents = self.contents();
        contents.purge(upto);
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let mut records = Records::default();
        records.purge(&upto);
        ask(writer, records, Some(contents.clone()), Done::Nobody)
    }
}

/// How many bytes become one block at most, if no single request has more.
const MOST_AT_ONCE: usize = 4 * 1024 * 1024;
const WRITE_MICROS: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000,
];

#[cfg(test)]
mod tests {
    use highwater_lock::Domain;
    use openraft::type_config::TypeConfigExt as _;
    use openraft::vote::RaftLeaderId as _;
    use openraft::vote::leader_id_std::LeaderId;

    use super::*;
    use crate::cluster::types::Payload;

    /// A journal whose file takes nothing, as that of a full disk.
    fn broken(folder: &std::path::Path) -> (Journal, Contents) {
        let lock = Arc::new(tempfile::tempfile().unwrap());
        let domain = Domain::from_bytes([1; 32]);
        let (mut journal, contents) = Journal::open(folder, domain, 1, lock).unwrap();
        journal.break_for_test();
        (journal, contents)
    }

    #[tokio::test]
    async fn a_log_in_memory_has_stored_what_it_was_given() {
        let mut log = Log::in_memory();
        let vote = Vote {
            leader_id: LeaderId::new(1, 1),
            committed: true,
        };
        log.save_vote(&vote).await.unwrap();
        let id = |index| LogId::new_term_index(1, index);
        let entries = (0..5).map(|index| Entry {
            log_id: id(index),
            payload: Payload::Blank,
        });
        let (done, stored) = Types::oneshot();
        log.append(entries, IOFlushed::signal(done)).await.unwrap();
        stored.await.unwrap().unwrap();
        log.truncate_after(Some(id(3))).await.unwrap();
        log.purge(id(1)).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(vote));
        let state = log.get_log_state().await.unwrap();
        assert_eq!(state.last_purged_log_id, Some(id(1)));
        assert_eq!(state.last_log_id, Some(id(3)));
        let left = log.try_get_log_entries(0..).await.unwrap();
        let left: Vec<_> = left.iter().map(|entry| entry.log_id).collect();
        assert_eq!(left, [id(2), id(3)]);
    }

    #[tokio::test]
    async fn after_a_failed_write_nothing_is_reported_as_stored() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, contents) = broken(folder.path());
        let (mut log, _ended) = Log::start(journal, contents).unwrap();
        let leader_id = LeaderId::new(1, 1);
        let vote = Vote {
            leader_id,
            committed: false,
        };
        for index in 0..2 {
            assert!(log.save_vote(&vote).await.is_err());
            let (done, stored) = Types::oneshot();
            let entry = Entry {
                log_id: LogId::new_term_index(1, index),
                payload: Payload::Blank,
            };
            log.append([entry], IOFlushed::signal(done)).await.unwrap();
            assert!(stored.await.unwrap().is_err());
        }
    }
}

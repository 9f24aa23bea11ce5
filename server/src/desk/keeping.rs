//! What the desk and the disk have to tell each other.
//!
//! The desk says what is worth storing and goes on; when it is stored, what had to wait for it
//! goes on too. A disk that fails once ends all granting: nobody knows any more what it holds.

use highwater_lock::Timestamp;

use super::{Desk, State};
use crate::readiness::Readiness;
use crate::storage::{Record, StorageCounts, WriteError, Writer};

impl Desk {
    pub(crate) fn readiness(&self) -> Readiness {
        let state = self.state();
        let now = self.clock.timestamp();
        if state.draining {
            return Readiness::Draining;
        }
        if state.storage_failed {
            return Readiness::StorageFailed;
        }
        match state.held_back.map(|end| end.saturating_since(now)) {
            Some(remaining) if !remaining.is_zero() => Readiness::OldLeases { remaining },
            _ => Readiness::Ready,
        }
    }

    pub(crate) fn storage_counts(&self) -> StorageCounts {
        let state = self.state();
        let reserve = state.reserve.as_ref();
        reserve.map(|reserve| reserve.counts()).unwrap_or_default()
    }

    /// Stores what has to be stored, until the desk is sealed and its last record is written, or
    /// the disk fails.
    pub(crate) async fn keep_store(&self, writer: Writer) {
        loop {
            let unstored = self.unstored.notified();
            let Some((record, last)) = self.record() else {
                unstored.await;
                continue;
            };
            let stored = writer.commit(record, last).await;
            let goes_on = stored.is_ok() && !last;
            self.stored(record, stored);
            if !goes_on {
                return;
            }
        }
    }

    /// The record to write now, and whether it is the last one.
    pub(super) fn record(&self) -> Option<(Record, bool)> {
        let mut state = self.state();
        let now = self.clock.timestamp();
        let State {
            machine,
            reserve,
            sealed,
            storage_failed,
            ..
        } = &mut *state;
        let reserve = reserve.as_mut().filter(|_| !*storage_failed)?;
        if *sealed {
            return Some((reserve.last_record(now, machine), true));
        }
        Some((reserve.next_record(now, machine)?, false))
    }

    /// What became of a record.
    pub(super) fn stored(&self, record: Record, result: Result<u64, WriteError>) {
        let mut state = self.state();
        let now = self.clock.timestamp();
        match (result, &mut state.reserve) {
            (Ok(syncs), Some(reserve)) => {
                reserve.stored(record, syncs);
                state.let_in(now);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "nothing is granted any more; releases are served until the end",
                );
                state.storage_failed = true;
                state.stop_granting(now);
            }
        }
        self.after_change(state);
    }

    /// Nothing is granted, extended or retained from now on, so that the last record is exact.
    pub(crate) fn seal(&self) {
        let mut state = self.state();
        state.draining = true;
        state.sealed = true;
        state.stop_granting(self.clock.timestamp());
        self.after_change(state);
        self.unstored.notify_one();
    }

    /// Lets another server have the data directory. To be called when nothing is granted any more.
    pub(crate) fn leave_folder(&self) {
        // With a broken machine nothing is granted either, and its end unlocks the directory.
        if let Ok(mut state) = self.state.lock() {
            assert!(state.draining, "a server that grants keeps its directory");
            state.folder = None;
        }
    }
}

impl State {
    pub(super) fn wants_to_store(&self, now: Timestamp) -> bool {
        let reserve = self.reserve.as_ref().filter(|_| !self.storage_failed);
        reserve.is_some_and(|reserve| reserve.wants(now, &self.machine))
    }
}

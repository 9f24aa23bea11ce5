//! What was: one record for each term that is over.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::Key;

use super::{NodeId, TermOutcome, TermReport};
use crate::Lost;

/// Is told of each term of an elector when it is over; see [`Elector::record_to`](super::Elector::record_to).
///
/// It is called in the task that gave the lease back, after the answer, once for each term; so it must
/// not wait for long. One that panics is left alone.
pub trait HistorySink: Send + Sync + 'static {
    /// One term is over.
    fn record(&self, record: TermRecord);
}

/// A term that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermRecord {
    /// What was led, with its tenant.
    pub name: Key,
    /// Who led.
    pub node: NodeId,
    /// When it was elected, on the clock of the backend. The default clock starts when the elector is
    /// made, so this does not put the records of different processes in order; the tokens do.
    pub began: Duration,
    /// How the action ended.
    pub outcome: TermOutcome,
    /// Why the lease was lost, if it was.
    pub lost: Option<Lost>,
    /// Token, slot, how long it lasted, and what came of the release.
    pub term: TermReport,
}

/// Keeps the last records in memory.
#[derive(Debug)]
pub struct MemoryHistory {
    most: usize,
    records: Mutex<VecDeque<TermRecord>>,
}

impl MemoryHistory {
    /// Keeps so many; older ones are forgotten.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            records: Mutex::default(),
        }
    }

    /// What is kept, oldest first.
    pub fn records(&self) -> Vec<TermRecord> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.iter().cloned().collect()
    }
}

impl HistorySink for MemoryHistory {
    fn record(&self, record: TermRecord) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.push_back(record);
        while records.len() > self.most {
            records.pop_front();
        }
    }
}

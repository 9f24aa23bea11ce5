//! The requests of one connection that have no reply yet.

use std::collections::{BTreeSet, HashMap};

use highwater_protocol::{RequestKind, RequestNumber};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::asked::WantedGrant;
use crate::call::Answer;
use crate::shared::Busy;

/// A request that has no reply yet.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) kind: RequestKind,
    pub(super) answer: Option<oneshot::Sender<Answer>>,
    /// Without a reply at this moment the connection counts as broken.
    pub(super) answer_by: Instant,
    /// The offset of its first byte among all bytes of the connection.
    pub(super) starts_at: u64,
    pub(super) grant: Option<ExpectedGrant>,
}

/// What to make of a grant.
#[derive(Debug)]
pub(super) struct ExpectedGrant {
    pub(super) grant: WantedGrant,
    /// A closing client waits for it.
    pub(super) busy: Busy,
}

/// All requests that have no reply yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    entries: HashMap<RequestNumber, Entry>,
    deadlines: BTreeSet<(Instant, RequestNumber)>,
    pub(super) acquires: usize,
}

impl Pending {
    pub(super) fn insert(&mut self, id: RequestNumber, entry: Entry) {
        self.acquires += usize::from(entry.grant.is_some());
        self.deadlines.insert((entry.answer_by, id));
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: RequestNumber) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.acquires -= usize::from(entry.grant.is_some());
        self.deadlines.remove(&(entry.answer_by, id));
        Some(entry)
    }

    pub(super) fn is_acquire(&self, id: RequestNumber) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| entry.grant.is_some())
    }

    /// Whether several calls are under way.
    pub(super) fn is_shared(&self) -> bool {
        self.entries.len() > 1
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(by, _)| *by)
    }

    /// Tells those of whose request certainly not one byte was written; the others learn from the end of
    /// their channel that the outcome is unknown.
    pub(super) fn give_up(&mut self, written: u64) {
        for (_, entry) in self.entries.drain() {
            if entry.starts_at >= written
                && let Some(sender) = entry.answer
            {
                let _ = sender.send(Answer::NotSent);
            }
        }
    }
}

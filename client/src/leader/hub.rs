//! Who is told: those who read along, those who look at levels, the counters, and the history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::Key;
use tokio::sync::{broadcast, watch};

use super::events::{Events, LeaderEvent, Occurrence};
use super::gate::caught;
use super::level::LeaderWatch;
use super::stats::Counts;
use super::term::Term;
use super::{BackendError, HistorySink, LeaseEnd, NodeId, TermOutcome, TermRecord, TermReport};
use crate::{Lost, trace};

/// Everything that an elector and its clones tell.
pub(super) struct Hub {
    events: broadcast::Sender<LeaderEvent>,
    levels: Mutex<BTreeMap<Key, watch::Sender<Vec<Arc<Term>>>>>,
    history: Mutex<Vec<Arc<dyn HistorySink>>>,
    pub(super) counts: Counts,
}

impl Hub {
    pub(super) fn new() -> Self {
        Self {
            events: broadcast::Sender::new(EVENTS),
            levels: Mutex::default(),
            history: Mutex::default(),
            counts: Counts::default(),
        }
    }

    pub(super) fn subscribe(&self) -> Events {
        Events::new(self.events.subscribe())
    }

    pub(super) fn watch(self: &Arc<Self>, name: &Key) -> LeaderWatch {
        let level = self.levels(|levels| {
            levels.retain(|_, level| level.receiver_count() > 0 || !level.borrow().is_empty());
            levels.entry(name.clone()).or_default().subscribe()
        });
        LeaderWatch {
            level,
            _hub: Arc::clone(self),
        }
    }

    fn levels<T>(
        &self,
        work: impl FnOnce(&mut BTreeMap<Key, watch::Sender<Vec<Arc<Term>>>>) -> T,
    ) -> T {
        // Nothing in here panics halfway.
        work(&mut self.levels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, name: &Key, node: &NodeId, what: Occurrence) {
        let event = LeaderEvent {
            name: name.clone(),
            node: node.clone(),
            what,
        };
        trace::leader(&event);
        // Nobody listening is not an error.
        let _ = self.events.send(event);
    }

    pub(super) fn record_to(&self, sink: Arc<dyn HistorySink>) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.push(sink);
    }

    pub(super) fn record(&self, record: &TermRecord) {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let sinks = history.clone();
        drop(history);
        for sink in sinks {
            // A sink that panics is no reason to fail a release.
            let _ = caught(|| sink.record(record.clone()));
        }
    }

    /// The terms of this process that are not over, by name and token.
    pub(super) fn terms(&self) -> Vec<Arc<Term>> {
        self.levels(|levels| {
            let terms = levels.values().flat_map(|level| level.borrow().clone());
            terms.collect()
        })
    }

    pub(super) fn skipped(&self, name: &Key, node: &NodeId) {
        self.counts.skipped.add();
        self.tell(name, node, Occurrence::Skipped);
    }

    pub(super) fn failed(&self, name: &Key, node: &NodeId, error: &BackendError) {
        self.counts.failed.add();
        let error = error.clone();
        self.tell(name, node, Occurrence::Failed { error });
    }

    pub(super) fn unprotected(&self, name: &Key, node: &NodeId) {
        self.counts.unprotected.add();
        self.tell(name, node, Occurrence::Unprotected);
    }

    pub(super) fn elected(&self, term: &Arc<Term>) {
        self.counts.elected.add();
        self.levels(|levels| {
            let level = levels.entry(term.name().clone()).or_default();
            level.send_modify(|terms| terms.push(Arc::clone(term)));
        });
        let (token, slot) = (term.grant().token, term.grant().slot);
        self.tell(
            term.name(),
            term.node(),
            Occurrence::Elected { token, slot },
        );
    }

    pub(super) fn extended(&self, term: &Term, remaining: Duration) {
        self.counts.extended.add();
        let token = term.grant().token;
        self.tell(
            term.name(),
            term.node(),
            Occurrence::Extended { token, remaining },
        );
    }

    pub(super) fn not_extended(&self, term: &Term, error: &BackendError) {
        self.counts.extensions_failed.add();
        let (token, error) = (term.grant().token, error.clone());
        self.tell(
            term.name(),
            term.node(),
            Occurrence::ExtensionFailed { token, error },
        );
    }

    /// The level, before anything else is told or sent.
    pub(super) fn leave(&self, term: &Term) {
        self.levels(|levels| {
            let Some(level) = levels.get(term.name()) else {
                return;
            };
            level.send_if_modified(|terms| {
                let before = terms.len();
                terms.retain(|other| !std::ptr::eq(&**other, term));
                terms.len() < before
            });
            if level.receiver_count() == 0 && level.borrow().is_empty() {
                levels.remove(term.name());
            }
        });
    }

    pub(super) fn revoked(&self, term: &Term, reason: Lost) {
        self.counts.revoked.add();
        let token = term.grant().token;
        self.tell(
            term.name(),
            term.node(),
            Occurrence::Revoked { token, reason },
        );
    }

    /// After the answer to the release. A lost lease was told before.
    pub(super) fn ended(&self, term: &Term, outcome: TermOutcome, report: &TermReport) {
        match outcome {
            TermOutcome::Failed => self.counts.actions_failed.add(),
            TermOutcome::Panicked => self.counts.panicked.add(),
            TermOutcome::Cancelled => self.counts.cancelled.add(),
            TermOutcome::Completed | TermOutcome::Lost => {}
        }
        if term.was_lost().is_some() {
            return;
        }
        match report.end {
            LeaseEnd::Released => self.counts.released.add(),
            LeaseEnd::Retained { .. } => self.counts.retained.add(),
            LeaseEnd::Unknown { .. } => self.counts.release_unknown.add(),
            LeaseEnd::NotHeld => {}
        }
        let (token, end) = (report.token, report.end.clone());
        let ended = Occurrence::Ended {
            token,
            outcome,
            end,
        };
        self.tell(term.name(), term.node(), ended);
    }
}

/// Events that are kept for a slow reader.
const EVENTS: usize = 256;

//! Who is told: events for whoever reads along, levels for whoever asks, counters, the history.
//!
//! An event can be missed, and says how many were. A level cannot: it is what is so now, and it
//! looks at the clock when it is read, so it never shows a leader whose time is over.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::{FencingToken, Key};
use tokio::sync::{broadcast, watch};

use super::stats::Counts;
use super::term::Term;
use super::{BackendError, HistorySink, LeaseEnd, NodeId, TermOutcome, TermRecord, TermReport};
use crate::{Lost, trace};

/// Something that happened to one name at one elector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderEvent {
    /// The name, with its tenant.
    pub name: Key,
    /// The candidate of this elector.
    pub node: NodeId,
    /// What happened.
    pub what: Occurrence,
}

/// What happened. Each [`Elected`](Occurrence::Elected) is followed by exactly one
/// [`Revoked`](Occurrence::Revoked) or [`Ended`](Occurrence::Ended) of the same token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occurrence {
    /// A term began.
    Elected {
        /// Its token.
        token: FencingToken,
        /// Which slot, for a group.
        slot: Option<u32>,
    },
    /// Others led for the whole wait.
    Skipped,
    /// The lock service failed before anybody was elected.
    Failed {
        /// How.
        error: BackendError,
    },
    /// An action runs without a lock, because its policy is to fail open.
    Unprotected,
    /// A lease was extended, by itself or by hand.
    Extended {
        /// Of the term.
        token: FencingToken,
        /// What is left of the lease now.
        remaining: Duration,
    },
    /// A lease was not extended. It is tried again while the lease lasts.
    ExtensionFailed {
        /// Of the term.
        token: FencingToken,
        /// Why.
        error: BackendError,
    },
    /// A lease was lost: this leadership is over, at once.
    Revoked {
        /// Of the term.
        token: FencingToken,
        /// Why.
        reason: Lost,
    },
    /// A lease was given back: this leadership is over. Told after the answer of the lock service.
    Ended {
        /// Of the term.
        token: FencingToken,
        /// How the action ended.
        outcome: TermOutcome,
        /// What came of the release.
        end: LeaseEnd,
    },
}

/// Reads along, from the moment it was made. At most 256 events are kept for it.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<LeaderEvent>);

impl Events {
    /// Waits for the next event; `None` when the elector and all its clones and terms are gone.
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// So many events were missed. Look at [`LeaderWatch::leading`] for what is so now; the next call
    /// goes on with the oldest event that is left.
    pub async fn next(&mut self) -> Option<Result<LeaderEvent, Lagged>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(Lagged { missed })),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// A reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missed} events were missed")]
pub struct Lagged {
    /// How many events were dropped.
    pub missed: u64,
}

/// The level of one name: whether this elector leads it now.
#[derive(Clone)]
pub struct LeaderWatch {
    level: watch::Receiver<Vec<Arc<Term>>>,
    // The level lives as long as somebody may look at it.
    _hub: Arc<Hub>,
}

/// One leadership of this elector, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Its token.
    pub token: FencingToken,
    /// Which slot, for a group.
    pub slot: Option<u32>,
    /// What is left until it is over, if it is not extended.
    pub remaining: Duration,
}

impl LeaderWatch {
    /// The leaderships of this elector that are good at this moment; in a group it can have several.
    pub fn leading(&self) -> Vec<Leading> {
        let terms = self.level.borrow().clone();
        terms.iter().filter_map(|term| term.leading()).collect()
    }

    /// Whether this elector leads the name at this moment.
    pub fn is_leader(&self) -> bool {
        !self.leading().is_empty()
    }

    /// Completes when a leadership began or ended since the last call. Several changes may be told
    /// as one. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        let changed = self.level.changed().await;
        changed.expect("a level lives as long as somebody watches it");
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaderWatch").field(&self.leading()).finish()
    }
}

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
        Events(self.events.subscribe())
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
            let _ = catch_unwind(AssertUnwindSafe(|| sink.record(record.clone())));
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
            level.send_modify(|terms| terms.retain(|other| !std::ptr::eq(&**other, term)));
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

//! The registry of the candidates of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::Key;

use super::{
    BackendError, BoxFuture, Candidate, CandidateRegistry, Clock, Field, NodeId, TokioClock,
};

/// The candidates of this process, for tests and for programs of a single process. Clones are the
/// same registry.
#[derive(Clone, Debug)]
pub struct Candidates(Arc<Table>);

#[derive(Debug)]
struct Table {
    clock: Arc<dyn Clock>,
    forget_after: Duration,
    names: Mutex<BTreeMap<Key, Names>>,
}

#[derive(Debug, Default)]
struct Names {
    round: u64,
    next_place: u64,
    candidates: BTreeMap<NodeId, Entry>,
}

#[derive(Debug)]
struct Entry {
    score: i64,
    place: u64,
    heard: Duration,
}

impl Names {
    fn forget(&mut self, now: Duration, after: Duration) {
        let candidates = &mut self.candidates;
        candidates.retain(|_, entry| now.saturating_sub(entry.heard) <= after);
    }

    fn place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }
}

impl Candidates {
    /// A registry that leaves out who was not heard of for so long.
    pub fn new(forget_after: Duration) -> Self {
        Self::with_clock(forget_after, TokioClock::new())
    }

    /// The same on another clock.
    pub fn with_clock(forget_after: Duration, clock: impl Clock) -> Self {
        Self(Arc::new(Table {
            clock: Arc::new(clock),
            forget_after,
            names: Mutex::default(),
        }))
    }

    fn with<T>(&self, name: Key, work: impl FnOnce(&mut Names, Duration) -> T) -> T {
        let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.clock.elapsed();
        if !names.contains_key(&name) {
            // Names come and go; those that nobody wants to lead are forgotten with the next new one.
            names.retain(|_, field| {
                field.forget(now, self.0.forget_after);
                !field.candidates.is_empty()
            });
        }
        let entry = names.entry(name).or_default();
        entry.forget(now, self.0.forget_after);
        work(entry, now)
    }
}

impl CandidateRegistry for Candidates {
    fn announce(
        &self,
        name: Key,
        node: NodeId,
        score: i64,
    ) -> BoxFuture<Result<Field, BackendError>> {
        let field = self.with(name, |names, heard| {
            let place = match names.candidates.get(&node) {
                Some(entry) => entry.place,
                None => names.place(),
            };
            names.candidates.insert(
                node,
                Entry {
                    score,
                    place,
                    heard,
                },
            );
            let candidates = names.candidates.iter();
            let candidates = candidates
                .map(|(node, entry)| Candidate::new(node.clone(), entry.score, entry.place));
            Field::new(names.round, candidates.collect())
        });
        Box::pin(async move { Ok(field) })
    }

    fn led(&self, name: Key, node: NodeId) -> BoxFuture<Result<(), BackendError>> {
        self.with(name, |names, _| {
            names.round += 1;
            let place = names.place();
            if let Some(entry) = names.candidates.get_mut(&node) {
                entry.place = place;
            }
        });
        Box::pin(async { Ok(()) })
    }

    fn withdraw(&self, name: Key, node: NodeId) -> BoxFuture<Result<(), BackendError>> {
        self.with(name, |names, _| names.candidates.remove(&node));
        Box::pin(async { Ok(()) })
    }
}

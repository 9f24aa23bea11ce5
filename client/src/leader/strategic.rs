//! Elects by choice: the candidates are compared before one of them takes the lock.
//!
//! The choice is about preference and not about safety. Views of the candidates may differ, so the
//! chosen one still has to take the real lock, and only that makes it the leader.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::Key;

use super::{
    BackendError, BoxFuture, Clock, LeaderContext, LeaderElector, LeaderError, LeaderResult,
    NodeId, TokioClock,
};

/// One of those who want to lead a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Who.
    pub node: NodeId,
    /// How well suited; higher is better. For [`Scored`].
    pub score: i64,
    /// The place in the line: lower has waited for longer. For [`Fifo`].
    pub place: u64,
}

/// The candidates of one name, as a registry knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// How many terms are over: the same for all candidates. For [`Random`].
    pub round: u64,
    /// Those who were heard of lately, by name.
    pub candidates: Vec<Candidate>,
}

impl Field {
    /// A field of so many rounds with these candidates.
    pub fn new(round: u64, candidates: Vec<Candidate>) -> Self {
        Self { round, candidates }
    }
}

impl Candidate {
    /// A candidate.
    pub fn new(node: NodeId, score: i64, place: u64) -> Self {
        Self { node, score, place }
    }
}

/// Where candidates are known to each other. Its failures are those of an election.
pub trait CandidateRegistry: Send + Sync + 'static {
    /// Says that this candidate is there, and gives all who are. One who does not say so again for
    /// some time is left out.
    fn announce(
        &self,
        name: Key,
        node: NodeId,
        score: i64,
    ) -> BoxFuture<Result<Field, BackendError>>;

    /// Says that a term of this candidate is over: it goes to the end of the line, and a new round
    /// begins.
    fn led(&self, name: Key, node: NodeId) -> BoxFuture<Result<(), BackendError>>;

    /// Says that this candidate does not want to lead any more.
    fn withdraw(&self, name: Key, node: NodeId) -> BoxFuture<Result<(), BackendError>>;
}

/// Chooses one of the candidates. The same field must always give the same choice, or they do not
/// agree and wait for each other.
pub trait Strategy: Send + Sync + 'static {
    /// The one who shall lead; `None` for nobody.
    fn choose<'a>(&self, field: &'a Field) -> Option<&'a Candidate>;
}

/// Who has waited for longest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Strategy for Fifo {
    fn choose<'a>(&self, field: &'a Field) -> Option<&'a Candidate> {
        field
            .candidates
            .iter()
            .min_by_key(|candidate| (candidate.place, &candidate.node))
    }
}

/// Who has the highest score; of those, who has waited for longest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scored;

impl Strategy for Scored {
    fn choose<'a>(&self, field: &'a Field) -> Option<&'a Candidate> {
        let better = |candidate: &&Candidate| {
            (
                std::cmp::Reverse(candidate.score),
                candidate.place,
                candidate.node.clone(),
            )
        };
        field.candidates.iter().min_by_key(better)
    }
}

/// Anybody, another one in each round. All candidates need the same seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random {
    seed: u64,
}

impl Random {
    /// The choices of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Strategy for Random {
    fn choose<'a>(&self, field: &'a Field) -> Option<&'a Candidate> {
        let count = u64::try_from(field.candidates.len())
            .ok()
            .filter(|count| *count > 0)?;
        let mut candidates: Vec<_> = field.candidates.iter().collect();
        candidates.sort_by_key(|candidate| &candidate.node);
        let chosen = mix(self.seed ^ mix(field.round)) % count;
        candidates.get(usize::try_from(chosen).ok()?).copied()
    }
}

/// Spreads the bits of a number: the finalizer of MurmurHash3.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ (number >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ (number >> 33)
}

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

/// A [`LeaderElector`] that runs for election only if a [`Strategy`] chooses it.
///
/// A chosen candidate that is not there any more keeps the others from it until the registry has
/// forgotten it. So this is for work that can wait for that long.
#[derive(Clone)]
pub struct StrategicElector {
    elector: LeaderElector,
    registry: Arc<dyn CandidateRegistry>,
    strategy: Arc<dyn Strategy>,
    score: i64,
}

impl StrategicElector {
    /// This elector, with the candidates of this registry and this choice among them.
    pub fn new(
        elector: LeaderElector,
        registry: impl CandidateRegistry,
        strategy: impl Strategy,
    ) -> Self {
        Self {
            elector,
            registry: Arc::new(registry),
            strategy: Arc::new(strategy),
            score: 0,
        }
    }

    /// The same with this score.
    #[must_use]
    pub fn with_score(mut self, score: i64) -> Self {
        self.score = score;
        self
    }

    /// The elector, for its events, levels and counters.
    pub fn elector(&self) -> &LeaderElector {
        &self.elector
    }

    /// Runs the action if this candidate is chosen and then elected; see
    /// [`run_if_leader_result`](super::Elector::run_if_leader_result). Not being chosen is
    /// [`LeaderResult::Skipped`].
    ///
    /// # Errors
    /// The registry or the election failed; the action did not run.
    pub async fn run_if_leader_result<T, E, F, Fut>(
        &self,
        name: impl AsRef<str>,
        action: F,
    ) -> Result<LeaderResult<T, E>, LeaderError>
    where
        F: FnOnce(LeaderContext) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let name = name.as_ref();
        let (key, node) = (self.elector.key(name)?, self.elector.node().clone());
        let field = self
            .registry
            .announce(key.clone(), node.clone(), self.score);
        let field = field.await.map_err(LeaderError::Backend)?;
        let chosen = self.strategy.choose(&field).map(|chosen| &chosen.node);
        if chosen != Some(&node) {
            self.elector.core().hub.skipped(&key, &node);
            return Ok(LeaderResult::Skipped);
        }
        let result = self.elector.run_if_leader_result(name, action).await?;
        if !result.is_skipped() {
            // Only about whose turn is next: the term itself is told already.
            let _ = self.registry.led(key, node).await;
        }
        Ok(result)
    }

    /// Says that this candidate does not want to lead the name any more.
    ///
    /// # Errors
    /// The name is none, or the registry failed; it forgets in time.
    pub async fn withdraw(&self, name: impl AsRef<str>) -> Result<(), LeaderError> {
        let withdrawn = self
            .registry
            .withdraw(self.elector.key(name)?, self.elector.node().clone());
        withdrawn.await.map_err(LeaderError::Backend)
    }
}

impl fmt::Debug for StrategicElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrategicElector")
            .field("elector", &self.elector)
            .field("score", &self.score)
            .finish_non_exhaustive()
    }
}

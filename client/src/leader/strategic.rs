//! Elects by choice: the candidates are compared before one of them takes the lock.
//!
//! The choice is about preference and not about safety. Views of the candidates may differ, so the
//! chosen one still has to take the real lock, and only that makes it the leader.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Key;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::elector::PATIENCE;
use super::{
    BackendError, BoxFuture, Cause, Clock, LeaderContext, LeaderElector, LeaderError, LeaderResult,
    NodeId,
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

/// Where candidates are known to each other. Its failures are those of an election. The only one that
/// is there, [`Candidates`](super::Candidates), is for the candidates of one process.
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
    /// However the action ends, also by a panic or by dropping this future, the registry is told that
    /// the term is over; for 5 s at most, so that a silent one does not withhold the result.
    ///
    /// # Errors
    /// The registry or the election failed, or the registry gave no answer for 15 s; the action did
    /// not run.
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
        let Some(mut turn) = self.turn(name).await? else {
            return Ok(LeaderResult::Skipped);
        };
        let result = self.elector.run_if_leader_result(name, |context| {
            turn.begins();
            action(context)
        });
        let result = result.await?;
        if let Some(told) = turn.over() {
            // Only about whose turn is next: the term itself is told already.
            let _ = told.await;
        }
        Ok(result)
    }

    /// Says that it is there; its turn, if it is the chosen one.
    pub(super) async fn turn(&self, name: &str) -> Result<Option<Turn>, LeaderError> {
        let (key, node) = (self.elector.key(name)?, self.elector.node().clone());
        let announced = self
            .registry
            .announce(key.clone(), node.clone(), self.score);
        let field = self.told(announced).await.map_err(LeaderError::Backend)?;
        let chosen = self.strategy.choose(&field).map(|chosen| &chosen.node);
        if chosen != Some(&node) {
            self.elector.core().hub.skipped(&key, &node);
            return Ok(None);
        }
        Ok(Some(Turn {
            registry: Arc::clone(&self.registry),
            clock: Arc::clone(&self.elector.core().clock),
            runtime: Handle::current(),
            key,
            node,
            led: false,
        }))
    }

    /// What the registry says, if it says it in time.
    async fn told<T>(&self, answer: BoxFuture<Result<T, BackendError>>) -> Result<T, BackendError> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.elector.core().clock.sleep(PATIENCE) => {
                let cause = Cause::new("no answer from the registry of the candidates");
                Err(BackendError::Indeterminate(cause))
            }
        }
    }

    /// Says that this candidate does not want to lead the name any more.
    ///
    /// # Errors
    /// The name is none, the registry failed, or it gave no answer for 15 s; it forgets in time.
    pub async fn withdraw(&self, name: impl AsRef<str>) -> Result<(), LeaderError> {
        let withdrawn = self
            .registry
            .withdraw(self.elector.key(name)?, self.elector.node().clone());
        self.told(withdrawn).await.map_err(LeaderError::Backend)
    }
}

/// A turn that has begun is over at the latest when this is dropped.
pub(super) struct Turn {
    registry: Arc<dyn CandidateRegistry>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    key: Key,
    node: NodeId,
    /// Whether the action has begun, and the registry was not told of its end.
    led: bool,
}

impl Turn {
    pub(super) fn begins(&mut self) {
        self.led = true;
    }

    /// Tells the registry, in a task of its own.
    pub(super) fn over(&mut self) -> Option<JoinHandle<()>> {
        if !std::mem::take(&mut self.led) {
            return None;
        }
        let (key, node) = (self.key.clone(), self.node.clone());
        let (registry, clock) = (Arc::clone(&self.registry), Arc::clone(&self.clock));
        Some(self.runtime.spawn(async move {
            tokio::select! {
                biased;
                _ = registry.led(key, node) => {}
                () = clock.sleep(TELLING) => {}
            }
        }))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.over();
    }
}

/// How long a registry may take to be told of the end of a turn.
pub(super) const TELLING: Duration = Duration::from_secs(5);

impl fmt::Debug for StrategicElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrategicElector")
            .field("elector", &self.elector)
            .field("score", &self.score)
            .finish_non_exhaustive()
    }
}

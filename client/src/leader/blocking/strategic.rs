//! The choice among candidates, for programs without async.

use std::fmt;

use super::{LeaderContext, LeaderElector, SLACK, stuck};
use crate::leader::elector::{self, PATIENCE};
use crate::leader::strategic::TELLING;
use crate::leader::{self, CandidateRegistry, LeaderError, LeaderResult, Strategy};

/// A [`LeaderElector`] that runs for election only if a [`Strategy`] chooses it; see
/// [`leader::StrategicElector`].
#[derive(Clone)]
pub struct StrategicElector {
    inner: leader::StrategicElector,
    elector: LeaderElector,
}

impl StrategicElector {
    /// This elector, with the candidates of this registry and this choice among them.
    pub fn new(
        elector: LeaderElector,
        registry: impl CandidateRegistry,
        strategy: impl Strategy,
    ) -> Self {
        Self {
            inner: leader::StrategicElector::new(elector.inner.clone(), registry, strategy),
            elector,
        }
    }

    /// The same with this score.
    #[must_use]
    pub fn with_score(self, score: i64) -> Self {
        Self {
            inner: self.inner.with_score(score),
            ..self
        }
    }

    /// The elector, for its events, levels and counters.
    pub fn elector(&self) -> &LeaderElector {
        &self.elector
    }

    /// Runs the action in the calling thread if this candidate is chosen and then elected; see
    /// [`leader::StrategicElector::run_if_leader_result`].
    ///
    /// # Errors
    /// The registry or the election failed, or the registry gave no answer for 15 s; the action did
    /// not run.
    pub fn run_if_leader_result<T, E>(
        &self,
        name: impl AsRef<str>,
        action: impl FnOnce(&LeaderContext) -> Result<T, E>,
    ) -> Result<LeaderResult<T, E>, LeaderError> {
        let (inner, key) = (self.inner.clone(), self.elector.inner.untenanted(&name)?);
        let turn = async move { inner.turn(&key).await };
        let turn = self.elector.runtime.call(PATIENCE + SLACK, turn);
        let Some(mut turn) = turn.unwrap_or_else(|| Err(stuck()))? else {
            return Ok(LeaderResult::Skipped);
        };
        let Some(guard) = self.elector.try_acquire(name)? else {
            return Ok(LeaderResult::Skipped);
        };
        turn.begins();
        let on_loss = self.elector.inner.options().on_loss();
        let ran = guard.run(on_loss, elector::judge, action);
        if let Some(told) = turn.over() {
            // Only about whose turn is next: the term itself is told already.
            let _ = self.elector.runtime.call(TELLING + SLACK, told);
        }
        Ok(elector::result(ran))
    }

    /// Says that this candidate does not want to lead the name any more.
    ///
    /// # Errors
    /// The name is none, the registry failed, or it gave no answer for 15 s; it forgets in time.
    pub fn withdraw(&self, name: impl AsRef<str>) -> Result<(), LeaderError> {
        let (inner, name) = (self.inner.clone(), self.elector.inner.untenanted(name)?);
        let withdrawn = async move { inner.withdraw(name).await };
        let withdrawn = self.elector.runtime.call(PATIENCE + SLACK, withdrawn);
        withdrawn.unwrap_or_else(|| Err(stuck()))
    }
}

impl fmt::Debug for StrategicElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

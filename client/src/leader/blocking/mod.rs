//! Leader election for programs without async: the same names, and calls that wait.
//!
//! ```no_run
//! use highwater_client::blocking::Client;
//! use highwater_client::leader::{Highwater, LeaderOptions, blocking::LeaderElector};
//!
//! # fn close_invoices(_: Option<highwater_client::Fence>) {}
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("locks.example:5225").connect()?;
//! let options = LeaderOptions::builder().auto_extend(true).build()?;
//! let elector = LeaderElector::new(Highwater::from(&client), options)?;
//! let ran = elector.run_if_leader("invoice/close", |leader| close_invoices(leader.fence()))?;
//! # drop(ran);
//! # Ok(()) }
//! ```
//!
//! Leases are extended in a thread of the elector's own, also while the action computes. What cannot
//! be done is to cut an action off: ask [`LeaderContext::check`] between its steps. An action whose lease
//! is over before it begins does not begin ([`LossPolicy::Cancel`](super::LossPolicy::Cancel)). A lease that
//! was lost is told at the end in any case. Streams are only there for async programs.

mod guard;
mod schedule;
mod strategic;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Key;

use super::again::LAST_QUESTIONS;
use super::elector::{self, PATIENCE};
use super::policy::Instead;
use super::run::{Ran, Value};
use super::{
    Backend, BackendError, Cause, FailurePolicy, Group, Kind, LeaderError, LeaderGroupOptions,
    LeaderOptions, LeaderResult, LeaderState, LeaderStats, OptionsError, PolicyResult, Single,
    TermOutcome,
};
use crate::blocking::runtime::Runtime;

pub use guard::{LeaderContext, LeaderGuard};
pub use schedule::{Schedule, ScheduleError};
pub use strategic::StrategicElector;

/// Elects one leader for each name.
pub type LeaderElector = Elector<Single>;

/// Elects up to N leaders for each name.
pub type LeaderGroupElector = Elector<Group>;

/// Like [`super::Elector`], with calls that block.
///
/// They may be made from any thread; inside of an async runtime they block the thread that polls.
pub struct Elector<K: Kind> {
    inner: super::Elector<K>,
    runtime: Arc<Runtime>,
}

impl Elector<Single> {
    /// A candidate at this backend, with a thread of its own.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(backend: impl Backend, options: LeaderOptions) -> io::Result<Self> {
        Ok(Self {
            inner: super::LeaderElector::new(backend, options),
            runtime: Arc::new(Runtime::start()?),
        })
    }
}

impl Elector<Group> {
    /// A candidate at this backend, with a thread of its own.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(backend: impl Backend, options: LeaderGroupOptions) -> io::Result<Self> {
        Ok(Self {
            inner: super::LeaderGroupElector::new(backend, options),
            runtime: Arc::new(Runtime::start()?),
        })
    }
}

impl Elector<Single> {
    /// See [`super::LeaderElector::with_options`](super::Elector::with_options).
    #[must_use]
    pub fn with_options(&self, options: LeaderOptions) -> Self {
        Self {
            inner: self.inner.with_options(options),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// See [`super::LeaderElector::group`](super::Elector::group).
    #[must_use]
    pub fn group(&self, options: LeaderGroupOptions) -> LeaderGroupElector {
        Elector {
            inner: self.inner.group(options),
            runtime: Arc::clone(&self.runtime),
        }
    }
}

impl Elector<Group> {
    /// See [`super::LeaderElector::with_options`](super::Elector::with_options).
    #[must_use]
    pub fn with_options(&self, options: LeaderGroupOptions) -> Self {
        Self {
            inner: self.inner.with_options(options),
            runtime: Arc::clone(&self.runtime),
        }
    }
}

impl<K: Kind> Elector<K> {
    /// The async elector behind it, for its levels and events.
    pub fn elector(&self) -> &super::Elector<K> {
        &self.inner
    }

    /// See [`super::Elector::for_tenant`].
    ///
    /// # Errors
    /// [`OptionsError::Tenant`].
    pub fn for_tenant(&self, tenant: impl AsRef<str>) -> Result<Self, OptionsError> {
        Ok(Self {
            inner: self.inner.for_tenant(tenant)?,
            runtime: Arc::clone(&self.runtime),
        })
    }

    /// See [`super::Elector::run_if_leader`]. The action runs in the calling thread.
    ///
    /// # Errors
    /// The election failed, or the lease was lost while the action ran.
    pub fn run_if_leader<T>(
        &self,
        name: impl AsRef<str>,
        action: impl FnOnce(&LeaderContext) -> T,
    ) -> Result<Option<T>, LeaderError> {
        let Some(guard) = self.try_acquire(name)? else {
            return Ok(None);
        };
        let policy = self.inner.options().on_loss();
        let Ran { value, lost, term } = guard.run(policy, |_| TermOutcome::Completed, action);
        match (value, lost) {
            (Value::Returned(value), None) => Ok(Some(value)),
            (_, lost) => Err(LeaderError::LeaseLost {
                reason: lost.unwrap_or(crate::Lost::Expired),
                term,
            }),
        }
    }

    /// See [`super::Elector::run_if_leader_result`]. The action runs in the calling thread.
    ///
    /// # Errors
    /// The election failed; the action did not run.
    pub fn run_if_leader_result<T, E>(
        &self,
        name: impl AsRef<str>,
        action: impl FnOnce(&LeaderContext) -> Result<T, E>,
    ) -> Result<LeaderResult<T, E>, LeaderError> {
        let guard = self.try_acquire(name)?;
        let policy = self.inner.options().on_loss();
        let result = guard.map(|guard| elector::result(guard.run(policy, elector::judge, action)));
        Ok(result.unwrap_or(LeaderResult::Skipped))
    }

    /// See [`super::Elector::run_with_policy`]. The action runs in the calling thread, at most once.
    ///
    /// # Errors
    /// The name is none, the lock service works and does not elect, or it cannot be used and the policy
    /// is [`FailurePolicy::Error`]. The action did not run.
    pub fn run_with_policy<T, E>(
        &self,
        name: impl AsRef<str>,
        policy: FailurePolicy,
        action: impl FnOnce(&LeaderContext) -> Result<T, E>,
    ) -> Result<PolicyResult<T, E>, LeaderError> {
        let key = self.inner.key(name)?;
        match self.acquire_under(&key, policy) {
            Ok(Some(guard)) => {
                let on_loss = self.inner.options().on_loss();
                let ran = guard.run(on_loss, elector::judge, action);
                Ok(PolicyResult::Held(elector::result(ran)))
            }
            Ok(None) => Ok(PolicyResult::Held(LeaderResult::Skipped)),
            Err(error) => match self.inner.without_a_lock(key, policy, error)? {
                Instead::Nothing { failure } => Ok(PolicyResult::SkippedByFailure { failure }),
                Instead::Open { context, failure } => {
                    let context = LeaderContext::new(context, Arc::clone(&self.runtime));
                    let outcome = action(&context);
                    Ok(PolicyResult::Unprotected { outcome, failure })
                }
            },
        }
    }

    fn acquire_under(
        &self,
        name: &Key,
        policy: FailurePolicy,
    ) -> Result<Option<LeaderGuard>, LeaderError> {
        let (elector, name) = (self.inner.clone(), name.clone());
        let bound = elector.options().wait() + PATIENCE + LAST_QUESTIONS + SLACK;
        let acquire = async move { elector.core().acquire_under(&name, policy).await };
        let guard = self.runtime.call(bound, acquire);
        let guard = guard.unwrap_or_else(|| Err(stuck()))?;
        Ok(guard.map(|guard| LeaderGuard::new(guard, Arc::clone(&self.runtime))))
    }

    /// See [`super::Elector::try_acquire`].
    ///
    /// # Errors
    /// The election failed; this call leads nothing.
    pub fn try_acquire(&self, name: impl AsRef<str>) -> Result<Option<LeaderGuard>, LeaderError> {
        self.acquire_unless(name, std::future::pending())
    }

    /// The same, until `stop` completes: then the candidacy is given up, and nobody is elected.
    fn acquire_unless(
        &self,
        name: impl AsRef<str>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Option<LeaderGuard>, LeaderError> {
        let elector = self.inner.clone();
        let name = self.inner.untenanted(name)?;
        let bound = elector.options().wait() + PATIENCE + SLACK;
        let acquire = async move {
            tokio::select! {
                biased;
                () = stop => Ok(None),
                guard = elector.try_acquire(name) => guard,
            }
        };
        let guard = self
            .runtime
            .call(bound, acquire)
            .unwrap_or_else(|| Err(stuck()))?;
        Ok(guard.map(|guard| LeaderGuard::new(guard, Arc::clone(&self.runtime))))
    }

    /// See [`super::Elector::state`].
    ///
    /// # Errors
    /// The name is none, or the backend gave no answer.
    pub fn state(&self, name: impl AsRef<str>) -> Result<LeaderState, LeaderError> {
        let elector = self.inner.clone();
        let name = self.inner.untenanted(name)?;
        let state = async move { elector.state(name).await };
        self.runtime
            .call(PATIENCE + SLACK, state)
            .unwrap_or_else(|| Err(stuck()))
    }

    /// See [`super::Elector::stats`].
    pub fn stats(&self) -> LeaderStats {
        self.inner.stats()
    }
}

impl<K: Kind> Clone for Elector<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            runtime: Arc::clone(&self.runtime),
        }
    }
}

impl<K: Kind> fmt::Debug for Elector<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn stuck() -> LeaderError {
    let cause = Cause::new("the elector's thread did not answer");
    LeaderError::Backend(BackendError::Indeterminate(cause))
}

/// What a call may take beyond the bound that it has by itself.
const SLACK: Duration = Duration::from_secs(2);

//! The elector: what an application holds.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::Key;
use tokio::runtime::Handle;

use super::context::LeaderContext;
use super::events::Events;
use super::guard::LeaderGuard;
use super::hub::Hub;
use super::level::LeaderWatch;
use super::run::{self, Ran, Value};
use super::term::{self, Term};
use super::{
    Backend, BackendError, Candidacy, Cause, Clock, HistorySink, LeaderError, LeaderGroupOptions,
    LeaderOptions, LeaderResult, LeaderState, LeaderStats, NodeId, OptionsError, TermOutcome,
};

/// Elects one leader for each name. See [`Elector`] for what it can do.
pub type LeaderElector = Elector<Single>;

/// Elects up to N leaders for each name, each with a slot, a token and a fence of its own. See
/// [`Elector`] for what it can do.
pub type LeaderGroupElector = Elector<Group>;

/// One leader for each name.
#[derive(Clone, Copy, Debug)]
pub enum Single {}

/// Several leaders for each name.
#[derive(Clone, Copy, Debug)]
pub enum Group {}

/// How many leaders a name has: [`Single`] or [`Group`]. For any other there is no elector.
pub trait Kind: Send + Sync + 'static {}

impl Kind for Single {}
impl Kind for Group {}

/// Takes part in elections as one candidate, and runs actions while it leads.
///
/// Cloning it is cheap. All clones and tenants are the same candidate, and share events, levels and
/// counters. The calls need a Tokio runtime, in which the leases are extended; they panic outside of
/// one.
///
/// The lock is not reentrant: a second candidacy for a name waits like everybody else's.
pub struct Elector<K: Kind> {
    core: Arc<Core>,
    tenant: Option<Key>,
    kind: PhantomData<K>,
}

pub(super) struct Core {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) options: LeaderOptions,
    pub(super) slots: Option<NonZeroU32>,
    pub(super) node: NodeId,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) hub: Arc<Hub>,
}

impl Elector<Single> {
    /// A candidate at this backend.
    pub fn new(backend: impl Backend, options: LeaderOptions) -> Self {
        Self::with(Arc::new(backend), options, None)
    }

    /// The same candidate with other times, for another job. Its node is the same, whatever these
    /// options say; events, levels and counters stay shared.
    #[must_use]
    pub fn with_options(&self, options: LeaderOptions) -> Self {
        self.changed(options, None)
    }

    /// The same candidate as one of several leaders.
    #[must_use]
    pub fn group(&self, options: LeaderGroupOptions) -> LeaderGroupElector {
        self.changed(options.each, Some(options.slots))
    }
}

impl Elector<Group> {
    /// A candidate at this backend.
    pub fn new(backend: impl Backend, options: LeaderGroupOptions) -> Self {
        Self::with(Arc::new(backend), options.each, Some(options.slots))
    }

    /// See [`LeaderElector::with_options`](Elector::with_options).
    #[must_use]
    pub fn with_options(&self, options: LeaderGroupOptions) -> Self {
        self.changed(options.each, Some(options.slots))
    }
}

impl<K: Kind> Elector<K> {
    fn with(backend: Arc<dyn Backend>, options: LeaderOptions, slots: Option<NonZeroU32>) -> Self {
        let core = Core {
            clock: backend.clock(),
            node: options.node.clone().unwrap_or_else(NodeId::random),
            hub: Arc::new(Hub::new()),
            backend,
            options,
            slots,
        };
        Self {
            core: Arc::new(core),
            tenant: None,
            kind: PhantomData,
        }
    }

    /// The same with other options of the same kind.
    pub(super) fn with_wait(&self, options: LeaderOptions) -> Self {
        self.changed(options, self.core.slots)
    }

    fn changed<L: Kind>(&self, options: LeaderOptions, slots: Option<NonZeroU32>) -> Elector<L> {
        let core = Core {
            backend: Arc::clone(&self.core.backend),
            options,
            slots,
            node: self.core.node.clone(),
            clock: Arc::clone(&self.core.clock),
            hub: Arc::clone(&self.core.hub),
        };
        Elector {
            core: Arc::new(core),
            tenant: self.tenant.clone(),
            kind: PhantomData,
        }
    }

    /// The same candidate for the names of one tenant: each name becomes `tenant/name`. A tenant of
    /// a tenant stands behind it.
    ///
    /// # Errors
    /// [`OptionsError::Tenant`]: it is no key, or contains a slash, so that it could be mistaken for
    /// another tenant.
    pub fn for_tenant(&self, tenant: impl AsRef<str>) -> Result<Self, OptionsError> {
        let tenant = tenant.as_ref();
        if tenant.contains('/') {
            return Err(OptionsError::Tenant);
        }
        let tenant = self.key(tenant).map_err(|_| OptionsError::Tenant)?;
        Ok(Self {
            tenant: Some(tenant),
            ..self.clone()
        })
    }

    /// The key of a name: with the tenant in front of it.
    pub(super) fn key(&self, name: impl AsRef<str>) -> Result<Key, LeaderError> {
        let name = name.as_ref();
        // Checked by itself, so that an empty name is none behind a tenant either.
        let key = Key::new(name).map_err(LeaderError::Name)?;
        match &self.tenant {
            None => Ok(key),
            Some(tenant) => Key::new(format!("{tenant}/{name}")).map_err(LeaderError::Name),
        }
    }

    /// A name as it was given, checked with its tenant.
    #[cfg(feature = "blocking")]
    pub(super) fn untenanted(&self, name: impl AsRef<str>) -> Result<String, LeaderError> {
        self.key(&name).map(|_| name.as_ref().to_owned())
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Who the candidate is.
    pub fn node(&self) -> &NodeId {
        &self.core.node
    }

    /// The options it was made with; for a group those of each leader.
    pub fn options(&self) -> &LeaderOptions {
        &self.core.options
    }

    /// Runs the action if this candidate is elected within the wait, and gives the lease back.
    ///
    /// `Ok(None)`: somebody else led, the action did not run. `Ok(Some(value))`: it ran to its end,
    /// under a lease that was good until then.
    ///
    /// The action runs in the future itself. Dropping the future drops the action, and gives the
    /// lease back in the background. A panic of the action gives the lease back and goes on.
    ///
    /// # Errors
    /// The election failed, or the lease was lost while the action ran; what the action gave is then
    /// discarded, see [`run_if_leader_result`](Elector::run_if_leader_result).
    pub async fn run_if_leader<T, F, Fut>(
        &self,
        name: impl AsRef<str>,
        action: F,
    ) -> Result<Option<T>, LeaderError>
    where
        F: FnOnce(LeaderContext) -> Fut,
        Fut: Future<Output = T>,
    {
        let key = self.key(name)?;
        let Some(ran) = self
            .core
            .run(&key, |_| TermOutcome::Completed, action)
            .await?
        else {
            return Ok(None);
        };
        match ran {
            Ran {
                value: Value::Returned(value),
                lost: None,
                ..
            } => Ok(Some(value)),
            Ran { lost, term, .. } => Err(LeaderError::LeaseLost {
                reason: lost.unwrap_or(crate::Lost::Expired),
                term,
            }),
        }
    }

    /// Like [`run_if_leader`](Elector::run_if_leader) for an action that can fail, and tells all that
    /// can come of it.
    ///
    /// # Errors
    /// The election failed; the action did not run.
    pub async fn run_if_leader_result<T, E, F, Fut>(
        &self,
        name: impl AsRef<str>,
        action: F,
    ) -> Result<LeaderResult<T, E>, LeaderError>
    where
        F: FnOnce(LeaderContext) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let key = self.key(name)?;
        let ran = self.core.run(&key, judge, action).await?;
        Ok(ran.map_or(LeaderResult::Skipped, result))
    }

    /// Waits to be elected, and gives a guard to lead with; `None` when somebody else led for the
    /// whole wait.
    ///
    /// Dropping the future gives the place among the candidates up.
    ///
    /// # Errors
    /// The election failed; this call leads nothing.
    pub async fn try_acquire(
        &self,
        name: impl AsRef<str>,
    ) -> Result<Option<LeaderGuard>, LeaderError> {
        let key = self.key(name)?;
        self.core.acquire(&key, &self.core.options).await
    }

    /// Asks the backend what holds a name: it was so when it answered. Leaders of this elector are
    /// named.
    ///
    /// # Errors
    /// The name is none, or the backend failed, or gave no answer for 15 s.
    pub async fn state(&self, name: impl AsRef<str>) -> Result<LeaderState, LeaderError> {
        let key = self.key(name)?;
        let state = tokio::select! {
            biased;
            state = self.core.backend.state(key) => state,
            () = self.core.clock.sleep(PATIENCE) => {
                Err(BackendError::Unavailable(Cause::new("no answer to the question")))
            }
        };
        let mut state = state.map_err(LeaderError::Backend)?;
        let terms = self.core.hub.terms();
        for holder in &mut state.holders {
            let ours = terms
                .iter()
                .find(|term| term.grant().token == holder.token && term.name() == &state.name);
            if let Some(term) = ours {
                holder.node = Some(term.node().clone());
            }
        }
        Ok(state)
    }

    /// The level of a name: whether this elector leads it at the moment of asking. It needs no
    /// backend, and no event that is missed can make it wrong.
    ///
    /// # Errors
    /// The name is none.
    pub fn watch(&self, name: impl AsRef<str>) -> Result<LeaderWatch, LeaderError> {
        Ok(self.core.hub.watch(&self.key(name)?))
    }

    /// What happens from now on to all names of this elector, its clones and its tenants.
    pub fn subscribe(&self) -> Events {
        self.core.hub.subscribe()
    }

    /// Has each term of this elector, its clones and its tenants recorded when it is over.
    pub fn record_to(&self, sink: Arc<dyn HistorySink>) {
        self.core.hub.record_to(sink);
    }

    /// What this elector, its clones and its tenants have done so far.
    pub fn stats(&self) -> LeaderStats {
        self.core.hub.counts.read()
    }
}

impl<K: Kind> Clone for Elector<K> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            tenant: self.tenant.clone(),
            kind: PhantomData,
        }
    }
}

impl<K: Kind> fmt::Debug for Elector<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector")
            .field("node", self.node())
            .field("tenant", &self.tenant)
            .field("slots", &self.core.slots)
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Runs the action in a term of its own, if there is one. A panic goes on from here.
    pub(super) async fn run<T, F, Fut>(
        &self,
        name: &Key,
        judge: impl FnOnce(&T) -> TermOutcome,
        action: F,
    ) -> Result<Option<Ran<T>>, LeaderError>
    where
        F: FnOnce(LeaderContext) -> Fut,
        Fut: Future<Output = T>,
    {
        let Some(guard) = self.acquire(name, &self.options).await? else {
            return Ok(None);
        };
        let ran = run::run(guard, self.options.on_loss, judge, action).await;
        Ok(Some(run::or_unwind(ran)))
    }

    pub(super) async fn acquire(
        &self,
        name: &Key,
        options: &LeaderOptions,
    ) -> Result<Option<LeaderGuard>, LeaderError> {
        match self.elect(name, options).await {
            Ok(Some(guard)) => Ok(Some(guard)),
            Ok(None) => {
                self.hub.skipped(name, &self.node);
                Ok(None)
            }
            Err(error) => {
                self.hub.failed(name, &self.node, &error);
                Err(LeaderError::Backend(error))
            }
        }
    }

    pub(super) async fn elect(
        &self,
        name: &Key,
        options: &LeaderOptions,
    ) -> Result<Option<LeaderGuard>, BackendError> {
        // Outside of a runtime it panics here, where there is nothing to give back.
        let runtime = Handle::current();
        let candidacy = Candidacy {
            name: name.clone(),
            slots: self.slots,
            node: self.node.clone(),
            wait: options.wait,
            lease: options.lease,
            min_lease: options.min_lease,
            auto_extend: options.auto_extend,
        };
        let lease = tokio::select! {
            biased;
            lease = self.backend.acquire(candidacy) => lease?,
            () = self.clock.sleep(options.wait + PATIENCE) => {
                return Err(BackendError::Indeterminate(Cause::new("no answer to the candidacy")));
            }
        };
        let Some(lease) = lease else {
            return Ok(None);
        };
        if lease.remaining().unwrap_or_default() <= term::margin(options.lease) {
            drop(lease.decline());
            return Err(BackendError::TooLate);
        }
        let (clock, hub) = (Arc::clone(&self.clock), Arc::clone(&self.hub));
        let term = Arc::new(Term::new(lease, self.node.clone(), options, clock, hub));
        self.hub.elected(&term);
        Ok(Some(LeaderGuard::start(term, runtime).await))
    }
}

/// How an action that can fail has ended.
pub(super) fn judge<T, E>(outcome: &Result<T, E>) -> TermOutcome {
    match outcome {
        Ok(_) => TermOutcome::Completed,
        Err(_) => TermOutcome::Failed,
    }
}

/// What to tell of it.
pub(super) fn result<T, E>(ran: Ran<Result<T, E>>) -> LeaderResult<T, E> {
    let Ran { value, lost, term } = ran;
    match (value, lost) {
        (Value::Returned(Ok(value)), None) => LeaderResult::Elected { value, term },
        (Value::Returned(Err(cause)), None) => LeaderResult::ActionFailed { cause, term },
        (Value::Returned(outcome), Some(reason)) => LeaderResult::LeaseLost {
            reason,
            outcome: Some(outcome),
            term,
        },
        (Value::Cut, lost) => LeaderResult::LeaseLost {
            reason: lost.unwrap_or(crate::Lost::Expired),
            outcome: None,
            term,
        },
    }
}

/// How much longer than the wait a backend may take until it counts as silent.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

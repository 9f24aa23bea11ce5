//! Faults between an elector and the service under test, which no service has on demand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::leader::term::margin;
use crate::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, Grant, LeaderState, Lease,
    RenewError,
};
use crate::{Key, Lost, Release};

/// What to do with the calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// Fails without having been asked.
    Fails,
    /// Is done, and its answer is lost.
    Unanswered,
    /// Never answers, and is not done. A release is done when the fault is over.
    Hangs,
    /// Is done, and so little seems to be left of the lease that nobody may lead, as if the answer had
    /// come late.
    Late,
    /// Is turned away: the queue is full.
    Busy,
}

#[derive(Debug, Default)]
struct Plan {
    acquire: Fault,
    extend: Fault,
    state: Fault,
    /// How often an extension was asked for.
    extensions: u64,
    /// What came of releases.
    released: Vec<Result<Release, BackendError>>,
}

/// Wraps a backend. Clones share their faults.
#[derive(Clone)]
pub(super) struct Faulty {
    inner: Arc<dyn Backend>,
    plan: Arc<Mutex<Plan>>,
    release: Arc<watch::Sender<Fault>>,
}

impl Faulty {
    pub(super) fn new(inner: Arc<dyn Backend>) -> Self {
        Self {
            inner,
            plan: Arc::default(),
            release: Arc::new(watch::Sender::new(Fault::None)),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of candidacies from now on.
    pub(super) fn acquire(&self, fault: Fault) {
        self.plan().acquire = fault;
    }

    /// What becomes of extensions from now on.
    pub(super) fn extend(&self, fault: Fault) {
        self.plan().extend = fault;
    }

    /// What becomes of releases from now on.
    pub(super) fn release(&self, fault: Fault) {
        self.release.send_replace(fault);
    }

    /// Whether this one candidate is cut off from the service.
    pub(super) fn cut(&self, is_cut: bool) {
        let fault = if is_cut { Fault::Fails } else { Fault::None };
        self.acquire(fault);
        self.extend(fault);
        self.release(fault);
        self.plan().state = fault;
    }

    /// How often an extension was asked for so far.
    pub(super) fn extensions(&self) -> u64 {
        self.plan().extensions
    }

    /// What came of releases so far.
    pub(super) fn released(&self) -> Vec<Result<Release, BackendError>> {
        self.plan().released.clone()
    }
}

fn unavailable() -> BackendError {
    BackendError::Unavailable(Cause::new("it was told to fail"))
}

fn unanswered() -> BackendError {
    BackendError::Indeterminate(Cause::new("no answer"))
}

impl Backend for Faulty {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let (faulty, fault) = (self.clone(), self.plan().acquire);
        Box::pin(async move {
            let margin = margin(candidacy.lease);
            match fault {
                Fault::Fails => return Err(unavailable()),
                Fault::Hangs => std::future::pending().await,
                Fault::Busy => return Err(BackendError::Busy(Cause::new("the queue is full"))),
                Fault::None | Fault::Late | Fault::Unanswered => {}
            }
            let lease = faulty.inner.acquire(candidacy).await?;
            if let (Some(lease), Fault::Unanswered) = (&lease, fault) {
                // Held by nobody until it ends.
                std::mem::forget(Arc::clone(lease));
                return Err(unanswered());
            }
            let at_most = match fault {
                Fault::Late => margin,
                _ => Duration::MAX,
            };
            let lease = lease.map(|inner| FaultyLease {
                inner,
                faulty,
                at_most,
            });
            Ok(lease.map(|lease| Arc::new(lease) as Arc<dyn Lease>))
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        match self.plan().state {
            Fault::None => self.inner.state(name),
            _ => Box::pin(async { Err(unavailable()) }),
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

struct FaultyLease {
    inner: Arc<dyn Lease>,
    faulty: Faulty,
    /// What seems to be left of it.
    at_most: Duration,
}

impl Lease for FaultyLease {
    fn grant(&self) -> &Grant {
        self.inner.grant()
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        let left = self.inner.remaining()?;
        Ok(left.min(self.at_most))
    }

    fn lost(&self) -> BoxFuture<Lost> {
        self.inner.lost()
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        let fault = {
            let mut plan = self.faulty.plan();
            plan.extensions += 1;
            plan.extend
        };
        match fault {
            Fault::Fails | Fault::Busy => Box::pin(async { Err(unavailable().into()) }),
            Fault::Hangs | Fault::Late => Box::pin(std::future::pending()),
            Fault::Unanswered => {
                let extending = self.inner.extend(lease);
                Box::pin(async move {
                    extending.await?;
                    Err(unanswered().into())
                })
            }
            Fault::None => self.inner.extend(lease),
        }
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        let (inner, faulty) = (Arc::clone(&self.inner), self.faulty.clone());
        let mut fault = faulty.release.subscribe();
        match *faulty.release.borrow() {
            Fault::Fails => return Box::pin(async { Err(unavailable()) }),
            Fault::Hangs => {}
            _ => return inner.release(),
        }
        let late = tokio::spawn(async move {
            // Without a sender there is nobody to look at what comes of it.
            let _ = fault.wait_for(|fault| *fault != Fault::Hangs).await;
            let released = inner.release().await;
            faulty.plan().released.push(released.clone());
            released
        });
        Box::pin(async move { late.await.unwrap_or_else(|_| Err(unanswered())) })
    }

    fn decline(&self) -> BoxFuture<Result<Release, BackendError>> {
        self.inner.decline()
    }
}

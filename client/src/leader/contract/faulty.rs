//! Faults between an elector and the service under test, which no service has on demand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Never answers, and is not done.
    Hangs,
    /// Is done, and its answer comes when so little of the lease is left that nobody may lead.
    Late,
    /// Is turned away: the queue is full.
    Busy,
}

#[derive(Debug, Default)]
struct Plan {
    acquire: Fault,
    extend: Fault,
}

/// Wraps a backend. Clones share their faults.
#[derive(Clone)]
pub(super) struct Faulty {
    inner: Arc<dyn Backend>,
    plan: Arc<Mutex<Plan>>,
}

impl Faulty {
    pub(super) fn new(inner: Arc<dyn Backend>) -> Self {
        let plan = Arc::default();
        Self { inner, plan }
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
            match (&lease, fault) {
                (Some(lease), Fault::Unanswered) => {
                    // Held by nobody until it ends.
                    std::mem::forget(Arc::clone(lease));
                    return Err(unanswered());
                }
                (Some(lease), Fault::Late) => {
                    while let Ok(left) = lease.remaining()
                        && left > margin
                    {
                        tokio::time::sleep(left - margin).await;
                    }
                }
                _ => {}
            }
            Ok(lease.map(|inner| Arc::new(FaultyLease { inner, faulty }) as Arc<dyn Lease>))
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        self.inner.state(name)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

struct FaultyLease {
    inner: Arc<dyn Lease>,
    faulty: Faulty,
}

impl Lease for FaultyLease {
    fn grant(&self) -> &Grant {
        self.inner.grant()
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        self.inner.remaining()
    }

    fn lost(&self) -> BoxFuture<Lost> {
        self.inner.lost()
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        match self.faulty.plan().extend {
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
        self.inner.release()
    }

    fn decline(&self) -> BoxFuture<Result<Release, BackendError>> {
        self.inner.decline()
    }
}

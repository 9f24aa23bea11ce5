//! A backend that fails on demand, and writes down what it is asked for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, Grant, LeaderState, Lease,
    RenewError,
};
use highwater_client::{FencingToken, Key, Lost, Release};

/// What to do with the calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Fails without having been asked.
    Fails,
    /// Is done, and its answer is lost.
    Unanswered,
    /// Never answers, and is not done.
    Hangs,
    /// Is done, and its answer is there after 29.6 s.
    Late,
    /// Panics when it is called.
    Panics,
    /// Panics when its future is polled.
    PanicsLater,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Extend(FencingToken),
    Release(FencingToken),
}

#[derive(Debug, Default)]
struct Plan {
    acquire: Fault,
    extend: Fault,
    release: Fault,
    lost: Fault,
    remaining: Fault,
    silent: bool,
    calls: Vec<Call>,
}

/// Wraps a backend. Clones share their faults.
#[derive(Clone)]
pub(crate) struct Faulty {
    inner: Arc<dyn Backend>,
    plan: Arc<Mutex<Plan>>,
}

impl Faulty {
    pub(crate) fn new(inner: impl Backend) -> Self {
        Self {
            inner: Arc::new(inner),
            plan: Arc::default(),
        }
    }

    pub(crate) fn acquire(&self, fault: Fault) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .acquire = fault;
    }

    pub(crate) fn extend(&self, fault: Fault) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend = fault;
    }

    pub(crate) fn release(&self, fault: Fault) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .release = fault;
    }

    /// Only a panic has a meaning here.
    pub(crate) fn lost(&self, fault: Fault) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lost = fault;
    }

    /// Only a panic has a meaning here.
    pub(crate) fn remaining(&self, fault: Fault) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remaining = fault;
    }

    /// Nobody is told any more what holds a name.
    pub(crate) fn hear_nothing(&self) {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .silent = true;
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .calls
            .clone()
    }
}

pub(crate) fn unavailable() -> BackendError {
    BackendError::Unavailable(Cause::new("it was told to fail"))
}

impl Backend for Faulty {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let (inner, plan) = (Arc::clone(&self.inner), Arc::clone(&self.plan));
        let fault = plan.lock().unwrap_or_else(PoisonError::into_inner).acquire;
        Box::pin(async move {
            match fault {
                Fault::None | Fault::Late => {}
                Fault::Fails => return Err(unavailable()),
                Fault::Hangs => std::future::pending().await,
                Fault::Panics | Fault::PanicsLater => panic!("it was told to panic"),
                Fault::Unanswered => {
                    // Held by nobody until the lease ends.
                    std::mem::forget(inner.acquire(candidacy).await?);
                    return Err(BackendError::Indeterminate(Cause::new("no answer")));
                }
            }
            let lease = inner.acquire(candidacy).await?;
            if fault == Fault::Late {
                tokio::time::sleep(Duration::from_millis(29_600)).await;
            }
            Ok(lease.map(|inner| Arc::new(FaultyLease { inner, plan }) as Arc<dyn Lease>))
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        if self
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .silent
        {
            return Box::pin(std::future::pending());
        }
        self.inner.state(name)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

struct FaultyLease {
    inner: Arc<dyn Lease>,
    plan: Arc<Mutex<Plan>>,
}

impl Lease for FaultyLease {
    fn grant(&self) -> &Grant {
        self.inner.grant()
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        assert_ne!(
            self.plan
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remaining,
            Fault::Panics
        );
        self.inner.remaining()
    }

    fn lost(&self) -> BoxFuture<Lost> {
        let fault = self
            .plan
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lost;
        match fault {
            Fault::Panics => panic!("it was told to panic"),
            Fault::PanicsLater => Box::pin(async { panic!("it was told to panic") }),
            _ => self.inner.lost(),
        }
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        let fault = {
            let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
            plan.calls.push(Call::Extend(self.grant().token));
            plan.extend
        };
        match fault {
            Fault::None | Fault::Late => self.inner.extend(lease),
            Fault::Fails => Box::pin(async { Err(unavailable().into()) }),
            Fault::Hangs => Box::pin(std::future::pending()),
            Fault::Panics => panic!("it was told to panic"),
            Fault::PanicsLater => Box::pin(async { panic!("it was told to panic") }),
            Fault::Unanswered => {
                let extending = self.inner.extend(lease);
                Box::pin(async move {
                    extending.await?;
                    Err(unavailable().into())
                })
            }
        }
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        let fault = {
            let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
            plan.calls.push(Call::Release(self.grant().token));
            plan.release
        };
        match fault {
            Fault::None | Fault::Late => self.inner.release(),
            Fault::Fails => Box::pin(async { Err(unavailable()) }),
            Fault::Hangs => Box::pin(std::future::pending()),
            Fault::Panics => panic!("it was told to panic"),
            Fault::PanicsLater => Box::pin(async { panic!("it was told to panic") }),
            Fault::Unanswered => {
                let releasing = self.inner.release();
                Box::pin(async move {
                    releasing.await?;
                    Err(unavailable())
                })
            }
        }
    }
    fn decline(&self) -> BoxFuture<Result<Release, BackendError>> {
        self.inner.decline()
    }
}

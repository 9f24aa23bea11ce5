//! The in-process backend, which can be out of reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater_client::Key;
use highwater_client::leader::contract::{Memory, Service};
use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, InProcess, LeaderState, Lease,
};

#[derive(Default)]
pub(crate) struct Here {
    service: InProcess,
    away: Arc<AtomicBool>,
}

impl Service for Here {
    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_virtual(&self) -> bool {
        true
    }

    async fn backend(&self, _node: &str) -> Arc<dyn Backend> {
        Arc::new(Reached {
            service: self.service.clone(),
            away: Arc::clone(&self.away),
        })
    }

    async fn force_release(&self, name: &Key) {
        self.service.force_release(name);
    }

    async fn restart(&self) -> Memory {
        self.service.restart();
        Memory::Lost
    }

    async fn outage(&self, lasts: bool) {
        self.away.store(lasts, Ordering::SeqCst);
    }
}

struct Reached {
    service: InProcess,
    away: Arc<AtomicBool>,
}

impl Reached {
    fn is_away(&self) -> Option<BackendError> {
        let away = self.away.load(Ordering::SeqCst);
        away.then(|| BackendError::Unavailable(Cause::new("nobody reaches it")))
    }
}

impl Backend for Reached {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        match self.is_away() {
            Some(error) => Box::pin(async { Err(error) }),
            None => self.service.acquire(candidacy),
        }
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        match self.is_away() {
            Some(error) => Box::pin(async { Err(error) }),
            None => self.service.state(name),
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.service.clock()
    }
}

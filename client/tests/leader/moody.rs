//! A backend whose elections a function may decide.

use std::sync::Arc;

use highwater_client::Key;
use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Clock, InProcess, LeaderState, Lease,
};

/// Asks the function about each candidacy: `Ok(true)` leaves it to the service, `Ok(false)` elects
/// nobody, at once.
pub(crate) struct Moody<F> {
    pub(crate) service: InProcess,
    pub(crate) mood: F,
}

impl<F> Backend for Moody<F>
where
    F: Fn(&Candidacy) -> Result<bool, BackendError> + Send + Sync + 'static,
{
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        match (self.mood)(&candidacy) {
            Ok(true) => self.service.acquire(candidacy),
            Ok(false) => Box::pin(async { Ok(None) }),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        self.service.state(name)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.service.clock()
    }
}

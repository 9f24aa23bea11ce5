//! One lease of the lock core of this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater_lock::{Domain, KeySet, Operation, Reply, Timestamp};

use super::Service;
use crate::leader::{BackendError, BoxFuture, Cause, Grant, Lease, NotLeader, RenewError};
use crate::{Lost, Release};

#[derive(Debug)]
pub(super) struct Held {
    service: Arc<Service>,
    grant: Grant,
    keys: KeySet,
    min_lease: Duration,
    end: Mutex<Result<Timestamp, Lost>>,
}

impl Held {
    pub(super) fn new(
        service: Arc<Service>,
        domain: Domain,
        min_lease: Duration,
        grant: highwater_lock::Grant,
    ) -> Self {
        let name = grant.keys.keys()[0].clone();
        Self {
            service,
            grant: Grant {
                name,
                slot: grant.slot,
                token: grant.token,
                domain,
            },
            keys: grant.keys,
            min_lease,
            end: Mutex::new(Ok(grant.expires)),
        }
    }

    fn end(&self) -> MutexGuard<'_, Result<Timestamp, Lost>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_extend(&self, lease: Duration) -> Result<(), RenewError> {
        self.remaining().map_err(NotLeader::Lost)?;
        let operation = Operation::Extend {
            keys: self.keys.clone(),
            token: self.grant.token,
            lease,
        };
        let reply = self.service.apply_in(self.grant.domain, operation);
        let lost = match reply {
            Ok(Reply::Extended { expires }) => {
                // It may have been found lost, or given back, meanwhile: then it stays so.
                let mut end = self.end();
                return match *end {
                    Ok(_) => {
                        *end = Ok(expires);
                        Ok(())
                    }
                    Err(lost) => Err(NotLeader::Lost(lost).into()),
                };
            }
            Ok(Reply::Rejected(why)) => return Err(BackendError::Rejected(Cause::new(why)).into()),
            Ok(_) => Lost::NotHeld,
            Err(lost) => lost,
        };
        *self.end() = Err(lost);
        Err(NotLeader::Lost(lost).into())
    }

    fn give_back(&self, minimum_hold: Duration) -> Release {
        let operation = Operation::Release {
            keys: self.keys.clone(),
            token: self.grant.token,
            minimum_hold,
        };
        let reply = self.service.apply_in(self.grant.domain, operation);
        *self.end() = Err(Lost::NotHeld);
        match reply {
            Ok(Reply::Released) => Release::Released,
            _ => Release::NotCurrent,
        }
    }
}

impl Lease for Held {
    fn grant(&self) -> &Grant {
        &self.grant
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        if self.service.desk(|desk| desk.domain != self.grant.domain) {
            *self.end() = Err(Lost::DomainChanged);
        }
        let mut end = self.end();
        let left = (*end)?.saturating_since(self.service.now());
        if left.is_zero() {
            *end = Err(Lost::Expired);
            return Err(Lost::Expired);
        }
        Ok(left)
    }

    fn lost(&self) -> BoxFuture<Lost> {
        let (service, domain) = (Arc::clone(&self.service), self.grant.domain);
        // The end of the lease is seen by the elector; only a restart is told.
        Box::pin(async move {
            let mut changes = service.changes.subscribe();
            while service.desk(|desk| desk.domain == domain) {
                let changed = changes.changed().await;
                changed.expect("the service is ours too");
            }
            Lost::DomainChanged
        })
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        let extended = self.try_extend(lease);
        Box::pin(async move { extended })
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        let release = self.give_back(self.min_lease);
        Box::pin(async move { Ok(release) })
    }

    fn decline(&self) -> BoxFuture<Result<Release, BackendError>> {
        let release = self.give_back(Duration::ZERO);
        Box::pin(async move { Ok(release) })
    }
}

//! Leader election within one process: for tests, and for programs of a single process.
//!
//! It is the lock core of the server, [`highwater_lock::Machine`], behind a mutex. It has no task of
//! its own: whoever waits looks at the clock for everybody.

mod desk;
mod held;
mod place;

use std::sync::{Arc, Mutex, PoisonError};

use highwater_lock::{
    ConnectionId, Domain, HoldState, Key, Operation, Reply, RequestId, Timestamp, WaiterId,
};
use tokio::sync::{oneshot, watch};

use self::desk::Desk;
use self::held::Held;
use self::place::Place;
use super::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, Holder, LeaderState, Lease,
    Standing, TokioClock,
};
use crate::Lost;

/// A lock service of this process, with the very semantics of the Highwater server.
///
/// Clones are the same service. With Tokio's time paused it runs in virtual time.
#[derive(Clone, Debug)]
pub struct InProcess(Arc<Service>);

impl InProcess {
    /// A service in which nothing is held, on Tokio's clock.
    pub fn new() -> Self {
        Self::with_clock(TokioClock::new())
    }

    /// A service that counts leases by this clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self(Arc::new(Service {
            clock: Arc::new(clock),
            desk: Mutex::new(Desk::new()),
            changes: watch::Sender::new(()),
        }))
    }

    /// Ends whatever holds a name, as an operator does at a server. The leaders learn of it at their
    /// next extension or their release, as they would there.
    pub fn force_release(&self, name: &Key) {
        self.0.apply(Operation::ForceRelease { key: name.clone() });
    }

    /// Starts anew without memory, as a lock server that has lost its state: in another domain of
    /// tokens. All leases are lost, all candidates get an error.
    pub fn restart(&self) {
        self.0.desk(|desk| *desk = Desk::new());
        self.0.changes.send_replace(());
    }
}

impl Default for InProcess {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for InProcess {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let service = Arc::clone(&self.0);
        Box::pin(async move {
            let held = service.acquire(candidacy).await?;
            Ok(held.map(|held| Arc::new(held) as Arc<dyn Lease>))
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        let state = self.0.state(name);
        Box::pin(async move { Ok(state) })
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.0.clock)
    }
}

#[derive(Debug)]
struct Service {
    clock: Arc<dyn Clock>,
    desk: Mutex<Desk>,
    /// After each command: deadlines may have moved, or the domain changed.
    changes: watch::Sender<()>,
}

impl Service {
    fn now(&self) -> Timestamp {
        let micros = self.clock.elapsed().as_micros();
        Timestamp::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn desk<T>(&self, work: impl FnOnce(&mut Desk) -> T) -> T {
        // A panic of the machine is a broken invariant, and shows again at the next command.
        work(&mut self.desk.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn apply(&self, operation: Operation) -> Reply {
        let reply = self.desk(|desk| desk.apply(self.now(), operation));
        self.changes.send_replace(());
        reply
    }

    /// For the holder of a lease: not after a restart.
    fn apply_in(&self, domain: Domain, operation: Operation) -> Result<Reply, Lost> {
        let reply = self.desk(|desk| {
            let is_same = desk.domain == domain;
            is_same.then(|| desk.apply(self.now(), operation))
        });
        self.changes.send_replace(());
        reply.ok_or(Lost::DomainChanged)
    }

    async fn acquire(self: &Arc<Self>, candidacy: Candidacy) -> Result<Option<Held>, BackendError> {
        let (sender, mut answer) = oneshot::channel();
        let (domain, waiter, reply) = self.desk(|desk| {
            desk.next_request += 1;
            let waiter = WaiterId::new(ConnectionId::new(1), RequestId::new(desk.next_request));
            desk.waiting
                .insert(waiter, (candidacy.node.clone(), sender));
            let reply = desk.apply(self.now(), ask(waiter, &candidacy));
            match &reply {
                Reply::Queued => {}
                Reply::Granted(grant) => {
                    desk.waiting.remove(&waiter);
                    desk.nodes.insert(grant.token, candidacy.node.clone());
                }
                _ => {
                    desk.waiting.remove(&waiter);
                }
            }
            (desk.domain, waiter, reply)
        });
        self.changes.send_replace(());
        let grant = match reply {
            Reply::Granted(grant) => grant,
            Reply::TimedOut => return Ok(None),
            Reply::Busy(busy) => return Err(BackendError::Busy(Cause::new(busy))),
            Reply::Rejected(why) => return Err(BackendError::Rejected(Cause::new(why))),
            _ => {
                let mut place = Place {
                    service: self,
                    domain,
                    waiter,
                    answer: &mut answer,
                };
                match place.granted().await? {
                    Some(grant) => grant,
                    None => return Ok(None),
                }
            }
        };
        let held = Held::new(Arc::clone(self), domain, candidacy.min_lease, grant);
        Ok(Some(held))
    }

    fn state(&self, name: Key) -> LeaderState {
        self.apply(Operation::Tick);
        self.desk(|desk| {
            let now = desk.machine.now();
            let view = desk.machine.name(&name);
            let holders = desk.machine.holders(&name).into_iter().map(|holder| {
                let remaining = holder.state.deadline().saturating_since(now);
                Holder {
                    token: holder.token,
                    slot: holder.slot,
                    standing: match holder.state {
                        HoldState::Held { .. } => Standing::Held { remaining },
                        HoldState::Retained { .. } => Standing::Retained { remaining },
                    },
                    node: desk.nodes.get(&holder.token).cloned(),
                }
            });
            LeaderState {
                holders: holders.collect(),
                slots: view.as_ref().and_then(|view| view.slots),
                waiting: view.map_or(0, |view| u32::try_from(view.queue).unwrap_or(u32::MAX)),
                name,
            }
        })
    }
}

fn ask(waiter: WaiterId, candidacy: &Candidacy) -> Operation {
    let (name, wait, lease) = (candidacy.name.clone(), candidacy.wait, candidacy.lease);
    match candidacy.slots {
        None => Operation::Acquire {
            waiter,
            keys: name.into(),
            wait,
            lease,
        },
        Some(slots) => Operation::AcquireSlot {
            waiter,
            name,
            slots,
            wait,
            lease,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::leader::{LeaderElector, LeaderOptions};

    #[tokio::test(start_paused = true)]
    async fn nothing_is_remembered_of_leases_that_are_over() {
        let service = InProcess::new();
        let second = Duration::from_secs(1);
        for round in 0..20 {
            let options = LeaderOptions::builder()
                .wait(second)
                .min_lease(second * (round % 2));
            let elector = LeaderElector::new(service.clone(), options.build().unwrap());
            let guard = elector.try_acquire("job").await.unwrap().unwrap();
            match round % 5 {
                0 => service.force_release(guard.name()),
                1 => tokio::time::sleep(second * 61).await,
                2 => drop(tokio::time::timeout(second / 2, elector.try_acquire("job")).await),
                _ => {}
            }
            assert!(service.0.desk(|desk| desk.nodes.len()) <= 1);
            guard.release().await;
            tokio::time::sleep(second).await;
        }
        service.0.apply(Operation::Tick);
        let left = service
            .0
            .desk(|desk| (desk.nodes.len(), desk.waiting.len()));
        assert_eq!(left, (0, 0));
    }
}

//! Leader election within one process: for tests, and for programs of a single process.
//!
//! It is the lock core of the server, [`highwater_lock::Machine`], behind a mutex. It has no task of
//! its own: whoever waits looks at the clock for everybody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Domain, Epoch, Event, FencingToken, Key, KeySet, Limits, Machine,
    Operation, Reply, RequestId, Timestamp, WaiterId,
};
use tokio::sync::{oneshot, watch};

use super::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, Clock, Grant, Holder, LeaderState, Lease,
    NodeId, NotLeader, RenewError, Standing, TokioClock,
};
use crate::{Lost, Release, system};

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

/// Everything that a restart forgets.
#[derive(Debug)]
struct Desk {
    domain: Domain,
    machine: Machine,
    next_request: u64,
    waiting: BTreeMap<WaiterId, (NodeId, oneshot::Sender<highwater_lock::Grant>)>,
    nodes: BTreeMap<FencingToken, NodeId>,
}

impl Desk {
    fn new() -> Self {
        Self {
            domain: Domain::from_bytes(system::random_bytes()),
            machine: Machine::new(Limits::default(), FencingToken::MIN),
            next_request: 0,
            waiting: BTreeMap::new(),
            nodes: BTreeMap::new(),
        }
    }

    fn apply(&mut self, now: Timestamp, operation: Operation) -> Reply {
        let outcome = self.machine.apply(now, Command::new(EPOCH, operation));
        let mut unwanted = Vec::new();
        for event in outcome.events {
            match event {
                Event::Granted(grant) => unwanted.extend(self.deliver(grant)),
                Event::TimedOut(waiter) | Event::Dropped(waiter) => {
                    self.waiting.remove(&waiter);
                }
                Event::Expired { token, .. } | Event::RetentionEnded { token, .. } => {
                    self.nodes.remove(&token);
                }
            }
        }
        // Nobody takes them any more; the next in line may.
        for grant in unwanted {
            self.give_back(now, grant);
        }
        outcome.reply
    }

    fn deliver(&mut self, grant: highwater_lock::Grant) -> Option<highwater_lock::Grant> {
        let (node, answer) = self.waiting.remove(&grant.waiter)?;
        self.nodes.insert(grant.token, node);
        answer.send(grant).err()
    }

    fn give_back(&mut self, now: Timestamp, grant: highwater_lock::Grant) {
        let release = Operation::Release {
            keys: grant.keys,
            token: grant.token,
            minimum_hold: Duration::ZERO,
        };
        self.apply(now, release);
        self.nodes.remove(&grant.token);
    }
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
            Reply::Busy(busy) => return Err(BackendError::Unavailable(Cause::new(busy))),
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
                        highwater_lock::HoldState::Held { .. } => Standing::Held { remaining },
                        highwater_lock::HoldState::Retained { .. } => {
                            Standing::Retained { remaining }
                        }
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

/// A place in the queue, given up when it is dropped.
struct Place<'a> {
    service: &'a Service,
    domain: Domain,
    waiter: WaiterId,
    answer: &'a mut oneshot::Receiver<highwater_lock::Grant>,
}

impl Place<'_> {
    async fn granted(&mut self) -> Result<Option<highwater_lock::Grant>, BackendError> {
        let mut changes = self.service.changes.subscribe();
        loop {
            let due = self.service.desk(|desk| desk.machine.next_deadline());
            let due = due.map(|due| due.saturating_since(self.service.now()));
            let sleep = self.service.clock.sleep(due.unwrap_or(LOOK));
            tokio::select! {
                biased;
                answer = &mut *self.answer => return match answer {
                    Ok(grant) => Ok(Some(grant)),
                    Err(_) if self.is_forgotten() => Err(BackendError::Indeterminate(
                        Cause::new("the lock service started anew"),
                    )),
                    // The machine timed it out.
                    Err(_) => Ok(None),
                },
                _ = changes.changed() => {}
                () = sleep => {
                    self.service.apply(Operation::Tick);
                }
            }
        }
    }

    fn is_forgotten(&self) -> bool {
        self.service.desk(|desk| desk.domain != self.domain)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_forgotten() {
            return;
        }
        self.answer.close();
        let waiter = self.waiter;
        let waits = self
            .service
            .desk(|desk| desk.waiting.remove(&waiter).is_some());
        if waits {
            self.service.apply(Operation::Cancel { waiter });
        } else if let Ok(grant) = self.answer.try_recv() {
            // It was granted, and nobody took it.
            self.service
                .desk(|desk| desk.give_back(self.service.now(), grant));
            self.service.changes.send_replace(());
        }
    }
}

#[derive(Debug)]
struct Held {
    service: Arc<Service>,
    grant: Grant,
    keys: KeySet,
    min_lease: Duration,
    end: Mutex<Result<Timestamp, Lost>>,
}

impl Held {
    fn new(
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

    fn end(&self) -> std::sync::MutexGuard<'_, Result<Timestamp, Lost>> {
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
                *self.end() = Ok(expires);
                return Ok(());
            }
            Ok(Reply::Rejected(why)) => return Err(BackendError::Rejected(Cause::new(why)).into()),
            Ok(_) => Lost::NotHeld,
            Err(lost) => lost,
        };
        *self.end() = Err(lost);
        Err(NotLeader::Lost(lost).into())
    }

    fn give_back(&self) -> Release {
        let operation = Operation::Release {
            keys: self.keys.clone(),
            token: self.grant.token,
            minimum_hold: self.min_lease,
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
        let release = self.give_back();
        Box::pin(async move { Ok(release) })
    }
}

/// There is one leader of this machine, for ever.
const EPOCH: Epoch = Epoch::new(1);
/// How long to sleep when nothing is due.
const LOOK: Duration = Duration::from_secs(60);

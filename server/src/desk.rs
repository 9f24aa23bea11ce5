//! Owns the lock machine and brings every outcome to the connection it belongs to.
//!
//! One mutex orders all requests as they arrive; under it nothing waits, writes or reads a
//! socket, so no request can stall another one. What a request means for the machine is decided
//! in [`translate`](crate::translate); how replies leave is the connection's business.

mod answer;
mod gate;
mod inspect;
mod keeping;
mod parked;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Domain, Epoch, Event, FencingToken, Grant, HashSeed, Limits, Machine,
    Operation, RequestId, Timestamp, WaiterId,
};
use highwater_protocol::{ErrorCode, Extensions, Incoming, Reply, RequestNumber};
use tokio::sync::Notify;
use tokio::time::sleep_until;

pub(crate) use self::gate::Refusal;
pub(crate) use self::inspect::{Forced, Lock, NAMES_AT_ONCE, Names, NotForced, Page, Readings};
use self::parked::Parked;
use crate::metrics::Tally;
use crate::outbox::{Outbox, UnsentGrant};
use crate::storage::{FolderLock, Reserve};
use crate::system::Clock;
use crate::translate::{self, Asked, Task};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Desk {
    domain: Domain,
    clock: Clock,
    state: Mutex<State>,
    /// A deadline came up that is earlier than the one the timekeeper sleeps for.
    earlier: Notify,
    /// Nothing is held any more while the server drains.
    settled: Notify,
    /// There is something for the disk to remember.
    unstored: Notify,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    connections: BTreeMap<ConnectionId, Link>,
    connections_so_far: u64,
    /// A single server leads itself: once from its start on, and anew when it drains.
    epoch: Epoch,
    /// What the timekeeper sleeps for.
    armed: Option<Timestamp>,
    draining: bool,
    tally: Tally,
    /// What the disk allows; none for a server in memory.
    reserve: Option<Reserve>,
    /// Keeps other servers out of the data directory for as long as this one may grant.
    folder: Option<FolderLock>,
    /// Until when nothing is granted, because of leases that an earlier start gave out.
    held_back: Option<Timestamp>,
    parked: Parked,
    /// What waits in these is announced when the state is let go.
    filled: Filled,
    storage_failed: bool,
    /// What is held may not be held for longer than it is now: its end is being stored.
    sealed: bool,
}

/// The boxes into which something came that their connections do not know of.
#[derive(Debug, Default)]
struct Filled(Vec<Arc<Outbox>>);

impl Filled {
    /// Puts a reply into a box.
    fn push(&mut self, outbox: &Arc<Outbox>, reply: &Reply, grant: Option<UnsentGrant>) {
        if outbox.push(reply, grant) {
            self.0.push(Arc::clone(outbox));
        }
    }

    /// This connection looks by itself.
    fn forget(&mut self, known: &Arc<Outbox>) {
        self.0.retain(|outbox| !Arc::ptr_eq(outbox, known));
    }

    fn announce(self) {
        for outbox in self.0 {
            outbox.announce();
        }
    }
}

/// What the desk knows of one connection.
#[derive(Debug)]
struct Link {
    outbox: Arc<Outbox>,
    /// The queued acquires, and all that is parked.
    queued: BTreeMap<RequestNumber, Asked>,
}

/// How much there is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that have passed the challenge.
    pub connections: usize,
    /// Keys that somebody holds.
    pub held_keys: usize,
    /// Acquires that wait for their turn.
    pub waiters: usize,
}

/// How many of some requests were handled.
enum Taken {
    All,
    Some,
}

/// A request carries an id that is still in use on its connection: the connection must end.
#[derive(Debug)]
pub(crate) struct IdInUse;

impl Desk {
    /// An empty desk for a domain that has given out no token from `first_token` on. With a
    /// reserve, lease time begins now for it too. Nobody else may know the seed.
    pub(crate) fn new(
        domain: Domain,
        first_token: FencingToken,
        limits: Limits,
        durable: Option<(Reserve, FolderLock)>,
        seed: HashSeed,
    ) -> Self {
        let (reserve, folder) = durable.unzip();
        Self {
            domain,
            clock: Clock::start(),
            state: Mutex::new(State {
                machine: Machine::seeded(limits, first_token, seed),
                connections: BTreeMap::new(),
                connections_so_far: 0,
                epoch: SERVING,
                armed: None,
                draining: false,
                tally: Tally::default(),
                held_back: reserve.as_ref().and_then(Reserve::held_back_until),
                reserve,
                folder,
                parked: Parked::default(),
                filled: Filled::default(),
                storage_failed: false,
                sealed: false,
            }),
            earlier: Notify::new(),
            settled: Notify::new(),
            unstored: Notify::new(),
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts()
    }

    /// How long ago this moment of lease time was.
    pub(crate) fn since(&self, moment: Timestamp) -> Duration {
        self.clock.timestamp().saturating_since(moment)
    }

    /// Enters a connection; replies to it will come into the box.
    pub(crate) fn connect(&self, outbox: Arc<Outbox>) -> ConnectionId {
        let mut state = self.state();
        state.connections_so_far += 1;
        let connection = ConnectionId::new(state.connections_so_far);
        let queued = BTreeMap::new();
        state
            .connections
            .insert(connection, Link { outbox, queued });
        connection
    }

    /// Handles what a connection sent, in its order. The replies come into its box, now or later; into
    /// the box it has to look afterwards.
    ///
    /// # Errors
    /// At the first request whose id is in use; those before it are handled.
    pub(crate) fn submit(
        &self,
        connection: ConnectionId,
        requests: impl IntoIterator<Item = Incoming>,
    ) -> Result<(), IdInUse> {
        let mut requests = requests.into_iter();
        loop {
            let mut state = self.state();
            let now = self.clock.timestamp();
            let taken = state.take_some(now, self.domain, connection, &mut requests);
            state.forget_own(connection);
            self.after_change(state);
            match taken? {
                Taken::All => return Ok(()),
                Taken::Some => {}
            }
        }
    }

    /// Ends a connection: it leaves all queues, and the grants that never left are given back,
    /// those in `undelivered` and those still in its box.
    pub(crate) fn disconnect(&self, connection: ConnectionId, undelivered: Vec<UnsentGrant>) {
        // Called while dropping: with a broken machine there is nothing left to give back.
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        let now = self.clock.timestamp();
        state.parked.remove_connection(connection);
        // Time passes before the operation: a lease that ends just now may still go to a waiter
        // of this connection, so it is known until that is over.
        state.apply(now, Operation::Disconnect { connection });
        let link = state.connections.remove(&connection);
        let unsent = link.map(|link| link.outbox.close()).unwrap_or_default();
        for grant in undelivered.into_iter().chain(unsent) {
            state.give_back(now, grant);
        }
        self.after_change(state);
    }

    /// From now on nothing is granted. Who waits is told so; releases are still served.
    pub(crate) fn drain(&self) {
        let mut state = self.state();
        state.draining = true;
        state.stop_granting(self.clock.timestamp());
        self.after_change(state);
    }

    /// Waits, while the server drains, until nobody holds anything or could give it back.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            if self.state().is_settled() {
                return;
            }
            settled.await;
        }
    }

    /// Lets time pass in the machine, for as long as it is polled.
    pub(crate) async fn keep_time(&self) {
        loop {
            let Some(deadline) = self.arm() else {
                self.earlier.notified().await;
                continue;
            };
            tokio::select! {
                () = sleep_until(self.clock.instant(deadline)) => self.tick(),
                () = self.earlier.notified() => {}
            }
            // Many leases that end together are expired in portions, with others in between.
            tokio::task::yield_now().await;
        }
    }

    fn arm(&self) -> Option<Timestamp> {
        let mut state = self.state();
        state.armed = state.next_deadline();
        state.armed
    }

    fn tick(&self) {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.apply(now, Operation::Tick);
        state.let_time_pass(now);
        self.after_change(state);
    }

    fn after_change(&self, mut state: MutexGuard<'_, State>) {
        let now = state.machine.now();
        let unstored = state.wants_to_store(now);
        let wakes = match (state.next_deadline(), state.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let settled = state.draining && state.is_settled();
        let filled = std::mem::take(&mut state.filled);
        drop(state);
        filled.announce();
        if wakes {
            self.earlier.notify_one();
        }
        if settled {
            self.settled.notify_waiters();
        }
        if unstored {
            self.unstored.notify_one();
        }
    }

    /// Whether the machine has broken an invariant: the server must end, because nothing that it
    /// would still decide can be trusted.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.is_poisoned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("a machine that broke an invariant must not decide anything more")
    }
}

impl State {
    /// New connections are not let in while the server drains, so without one nothing is released.
    fn is_settled(&self) -> bool {
        self.machine.held_keys() == 0 || self.connections.is_empty()
    }

    fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.len(),
            held_keys: self.machine.held_keys(),
            waiters: self.machine.waiters() + self.parked.len(),
        }
    }

    /// Handles requests, as long as no leases are left over that have ended: each request lets a portion
    /// of those expire, and between the portions others get their turn.
    fn take_some(
        &mut self,
        now: Timestamp,
        domain: Domain,
        connection: ConnectionId,
        requests: &mut impl Iterator<Item = Incoming>,
    ) -> Result<Taken, IdInUse> {
        for request in requests {
            self.handle(now, domain, connection, request)?;
            if self.machine.next_deadline().is_some_and(|due| due <= now) {
                return Ok(Taken::Some);
            }
        }
        Ok(Taken::All)
    }

    /// This connection looks into its box by itself.
    fn forget_own(&mut self, connection: ConnectionId) {
        if let Some(link) = self.connections.get(&connection) {
            self.filled.forget(&link.outbox);
        }
    }

    fn handle(
        &mut self,
        now: Timestamp,
        domain: Domain,
        connection: ConnectionId,
        incoming: Incoming,
    ) -> Result<(), IdInUse> {
        let id = incoming.id();
        let link = self.connections.get_mut(&connection);
        let link = link.expect("a connection submits between connect and disconnect");
        if link.queued.contains_key(&id) {
            return Err(IdInUse);
        }
        let request = match incoming {
            Incoming::Valid(request) => request,
            Incoming::Refused { id, code } => {
                self.tally.error(code);
                self.filled
                    .push(&link.outbox, &Reply::Error { id, code }, None);
                return Ok(());
            }
        };
        let asked = Asked {
            id,
            kind: request.kind(),
            at: now,
        };
        self.tally.asked(asked.kind);
        match translate::task(connection, request) {
            Task::Domain => {
                let extensions = Extensions::ALL;
                let reply = Reply::Domain {
                    id,
                    domain,
                    extensions,
                };
                self.filled.push(&link.outbox, &reply, None);
            }
            Task::Acquire(operation) | Task::Hold(operation) => {
                self.admit(now, connection, asked, operation, None);
            }
            Task::Cancel { acquire } => self.cancel(now, connection, asked, acquire),
            Task::Status { key, from_slot } => self.tell(now, connection, id, &key, from_slot),
        }
        Ok(())
    }

    fn run(&mut self, now: Timestamp, connection: ConnectionId, asked: Asked, what: Operation) {
        let keys = match &what {
            Operation::Acquire { keys, .. } => Some(keys.clone()),
            Operation::AcquireSlot { name, .. } => Some(name.clone().into()),
            _ => None,
        };
        let span = self.span(&what);
        let outcome = self.apply(now, what);
        self.promise_what_is_held(span, &outcome);
        if let (Some(keys), highwater_lock::Reply::Queued) = (keys, &outcome) {
            let depths = keys.iter().map(|key| self.machine.queue_len(key));
            self.tally.joined(depths.max().unwrap_or_default());
        }
        self.answer(connection, asked, outcome);
    }

    /// Runs one operation, tells everybody whom it concerns, and returns the sender's reply.
    fn apply(&mut self, now: Timestamp, operation: Operation) -> highwater_lock::Reply {
        // What ends by itself has ended then, however late it is noticed.
        let due = self.machine.next_deadline().filter(|due| *due < now);
        let free_since = due.unwrap_or(now);
        let outcome = self.machine.apply(now, Command::new(self.epoch, operation));
        for event in outcome.events {
            match event {
                Event::Granted(grant) => self.granted(grant, free_since),
                Event::TimedOut(waiter) => {
                    self.tally.timed_out += 1;
                    self.ungranted(waiter, |id| Reply::TimedOut { id });
                }
                Event::Dropped(waiter) => {
                    let code = ErrorCode::NotActive;
                    self.tally.dropped += 1;
                    self.tally.error(code);
                    self.ungranted(waiter, |id| Reply::Error { id, code });
                }
                Event::Expired { keys, token, .. } => {
                    self.tally.expired += 1;
                    tracing::debug!(%keys, %token, "a lease ended without a release");
                }
                _ => {}
            }
        }
        outcome.reply
    }

    fn ungranted(&mut self, waiter: WaiterId, reply: impl FnOnce(RequestNumber) -> Reply) {
        if let Some((asked, outbox)) = self.dequeue(waiter) {
            self.filled.push(&outbox, &reply(asked.id), None);
        }
    }

    fn dequeue(&mut self, waiter: WaiterId) -> Option<(Asked, Arc<Outbox>)> {
        let link = self.connections.get_mut(&waiter.connection)?;
        let id = RequestNumber::new(waiter.request.get())?;
        let asked = link.queued.remove(&id)?;
        Some((asked, Arc::clone(&link.outbox)))
    }
}

/// The waiter that this request is for the machine.
pub(crate) fn waiter(connection: ConnectionId, id: RequestNumber) -> WaiterId {
    WaiterId::new(connection, RequestId::new(id.get()))
}

fn unsent(grant: Grant, handed_over: Option<Timestamp>) -> UnsentGrant {
    UnsentGrant {
        keys: grant.keys,
        token: grant.token,
        handed_over,
    }
}

const SERVING: Epoch = Epoch::new(1);
const STOPPED: Epoch = Epoch::new(2);

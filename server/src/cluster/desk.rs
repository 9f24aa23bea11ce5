//! Where the requests of a node's clients meet the replicated machine.
//!
//! One mutex holds the machine, the connections and everything that is on its way. A request is
//! never run here: the leader [asks](State::ask) for it, the proposer takes what was asked for as a
//! batch into the log, and when the entry comes back, committed by a majority, it is
//! [applied](Desk::apply) and answered. So all nodes run the same commands, and the one that
//! proposed them tells the clients.
//!
//! What an answer may be is decided by how far a request has come ([`reign`]): before it was
//! proposed it can be turned away (`M`, `E`), after it was nobody but the log knows (`I`).

mod answer;
mod company;
pub(super) mod decisions;
mod force;
mod inspect;
mod numbers;
mod reign;
mod standing;
#[cfg(test)]
mod tests;
mod trust;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Domain, Event, Machine, Operation, Timestamp, WaiterId,
};
use highwater_protocol::handshake::Slot;
use highwater_protocol::{ErrorCode, Incoming, Reply, RequestNumber};
use tokio::sync::Notify;

use self::decisions::Trace;
pub(super) use self::reign::Fate;
use self::reign::{Reign, Then};
use self::standing::Standing;
use super::batch::Batch;
use crate::desk::{Counts, IdInUse, waiter};
use crate::metrics::Tally;
use crate::outbox::{Outbox, UnsentGrant};
use crate::system::NodeClock;
use crate::translate::{self, Asked, Task};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Desk {
    domain: Domain,
    clock: NodeClock,
    state: Mutex<State>,
    /// Something was asked for.
    pub(super) asked: Notify,
    /// Time has to be looked at earlier than was thought.
    pub(super) earlier: Notify,
}

#[derive(Debug)]
struct State {
    /// This node's own.
    slot: Slot,
    machine: Machine,
    /// Lease time at the last command, and this node's clock then.
    stamped: (Timestamp, Timestamp),
    connections: BTreeMap<ConnectionId, Link>,
    connections_so_far: u64,
    role: Role,
    /// The deadline in lease time that is waited for.
    armed: Option<Timestamp>,
    /// What this node has proposed as the leader it is, or was last.
    reign: Option<Reign>,
    /// Orders of operators so far, and those without an answer.
    orders: u64,
    operators: BTreeMap<u64, force::Asker>,
    /// Whether this node's clock runs at another rate than those of the others, or nobody knows.
    distrusts_clock: bool,
    draining: bool,
    failed: bool,
    standing: Standing,
    tally: Tally,
    numbers: numbers::Numbers,
}

/// What this node can do for a client now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It leads this term, and a majority follows.
    Leading { term: u64 },
    /// It hears from this leader.
    Following(Slot),
    /// Nobody leads, or nobody knows.
    Leaderless,
}

/// What the desk knows of one connection.
#[derive(Debug)]
struct Link {
    outbox: Arc<Outbox>,
    /// Everything that has not been answered.
    open: BTreeMap<RequestNumber, Asked>,
}

impl Desk {
    pub(super) fn new(domain: Domain, slot: Slot, machine: Machine, clock: NodeClock) -> Self {
        let now = clock.timestamp();
        Self {
            domain,
            clock,
            state: Mutex::new(State {
                slot,
                stamped: (machine.now(), now),
                machine,
                connections: BTreeMap::new(),
                connections_so_far: 0,
                role: Role::Leaderless,
                armed: None,
                reign: None,
                orders: 0,
                operators: BTreeMap::new(),
                distrusts_clock: false,
                draining: false,
                failed: false,
                standing: Standing::default(),
                tally: Tally::default(),
                numbers: numbers::Numbers::default(),
            }),
            asked: Notify::new(),
            earlier: Notify::new(),
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts()
    }

    /// How long ago this moment of lease time was, as far as this node can tell.
    pub(crate) fn since(&self, moment: Timestamp) -> Duration {
        let now = self.clock.timestamp();
        self.state().lease_time(now).saturating_since(moment)
    }

    pub(crate) fn connect(&self, outbox: Arc<Outbox>) -> ConnectionId {
        let mut state = self.state();
        state.connections_so_far += 1;
        let connection = ConnectionId::new(state.connections_so_far);
        let open = BTreeMap::new();
        state.connections.insert(connection, Link { outbox, open });
        connection
    }

    /// Handles what a connection sent, in its order. The replies come into its box, now or later.
    ///
    /// # Errors
    /// At the first request whose id is in use; those before it are handled.
    pub(crate) fn submit(
        &self,
        connection: ConnectionId,
        requests: impl IntoIterator<Item = Incoming>,
    ) -> Result<(), IdInUse> {
        let mut state = self.state();
        let now = self.clock.timestamp();
        let mut requests = requests.into_iter();
        let handled =
            requests.try_for_each(|request| state.handle(now, self.domain, connection, request));
        self.after_change(&state);
        handled
    }

    /// Ends a connection: it leaves all queues, and the grants of this reign that never left are
    /// given back.
    pub(crate) fn disconnect(&self, connection: ConnectionId, undelivered: Vec<UnsentGrant>) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        let now = self.clock.timestamp();
        let Some(link) = state.connections.remove(&connection) else {
            return;
        };
        if link.open.values().any(|asked| asked.kind.is_acquire()) {
            state.ask(now, Operation::Disconnect { connection }, Then::Nothing);
        }
        let unsent = link.outbox.close();
        for grant in undelivered.into_iter().chain(unsent) {
            state.give_back(now, grant.keys, grant.token);
        }
        self.after_change(&state);
    }

    /// Applies the committed batch at this place of the log, and tells the clients of this node what became of it.
    pub(super) fn apply(&self, position: u64, batch: &Batch) -> Result<(), Broken> {
        let mut state = self.state.lock().map_err(|_| Broken)?;
        let now = self.clock.timestamp();
        state.apply(now, position, batch);
        self.after_change(&state);
        Ok(())
    }

    /// The machine's state as bytes.
    pub(super) fn snapshot(&self) -> Result<Vec<u8>, Broken> {
        let state = self.state.lock().map_err(|_| Broken)?;
        Ok(state.machine.snapshot())
    }

    /// Goes on from the state of another node. What this node had proposed before is not known any
    /// more: whoever waits for that is told so.
    pub(super) fn replace(&self, machine: Machine) -> Result<(), Broken> {
        let mut state = self.state.lock().map_err(|_| Broken)?;
        let now = self.clock.timestamp();
        state.stamped = (machine.now(), now);
        state.machine = machine;
        state.end_reign(None);
        self.after_change(&state);
        Ok(())
    }

    /// Takes note of who leads, and of the time.
    pub(super) fn look(&self, role: Role) {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.take_role(now, role);
        state.let_time_pass(now);
        self.after_change(&state);
    }

    /// Has the log say something if this node leads and nothing else is on its way: a majority's answer to that
    /// shows that it still leads.
    pub(super) fn reassure(&self) {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.reassure(now);
        self.after_change(&state);
    }

    /// What it tells clients now.
    pub(super) fn role(&self) -> Role {
        self.state().role
    }

    /// The next batch to propose, if something was asked for and this node leads.
    pub(super) fn next_batch(&self) -> Option<Batch> {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.next_batch(now)
    }

    /// Whether what was asked for is worth a batch of its own while others are under way: so much that it
    /// would fill one, or, together with what is in the others, so little that nobody is slowed down by it.
    pub(super) fn has_another_batch(&self) -> bool {
        let state = self.state();
        state.reign.as_ref().is_some_and(Reign::has_another_batch)
    }

    /// Whether others are about to ask for something too, so that the next batch should wait for them.
    pub(super) fn expects_more(&self) -> bool {
        let mut state = self.state();
        state.reign.as_mut().is_some_and(Reign::expects_more)
    }

    /// They did not, or not soon enough.
    pub(super) fn expected_in_vain(&self) {
        let mut state = self.state();
        if let Some(reign) = &mut state.reign {
            reign.expected_in_vain();
        }
    }

    /// What became of a batch that was not applied.
    pub(super) fn settle(&self, term: u64, number: u64, fate: Fate) {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.settle(now, term, number, fate);
        self.after_change(&state);
    }

    /// How long until time alone changes anything that this node has to propose.
    pub(super) fn patience(&self) -> Option<Duration> {
        let mut state = self.state();
        let now = self.clock.timestamp();
        state.armed = state.machine.next_deadline().filter(|_| state.keeps_time());
        let left = state.armed?.saturating_since(state.lease_time(now));
        Some(left)
    }

    /// From now on no new lock is asked for here: another node will lead.
    pub(crate) fn drain(&self) {
        self.state().draining = true;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.state().draining
    }

    /// The consensus engine has ended: nothing is known any more.
    pub(super) fn fail(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.failed = true;
            let now = self.clock.timestamp();
            state.take_role(now, Role::Leaderless);
            state.end_reign(None);
        }
    }

    /// Whether anybody waits for an answer.
    pub(super) fn has_open(&self) -> bool {
        let state = self.state();
        state.connections.values().any(|link| !link.open.is_empty())
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.state.is_poisoned()
    }

    fn after_change(&self, state: &State) {
        if state.reign.as_ref().is_some_and(Reign::has_work) {
            self.asked.notify_one();
        }
        let earlier = match (state.machine.next_deadline(), state.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if earlier && state.keeps_time() {
            self.earlier.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("a machine that broke an invariant must not decide anything more")
    }
}

impl State {
    fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.len(),
            held_keys: self.machine.held_keys(),
            waiters: self.machine.waiters(),
        }
    }

    /// Whether this node has to notice when a deadline has come.
    fn keeps_time(&self) -> bool {
        let ticking = self.reign.as_ref().is_none_or(Reign::is_ticking);
        matches!(self.role, Role::Leading { .. }) && !ticking && !self.distrusts_clock
    }

    /// Lease time goes on from the last stamp with the time that has passed here since it was
    /// applied, which was later than it was made: never faster than for those who hold leases.
    fn lease_time(&self, now: Timestamp) -> Timestamp {
        match &self.reign {
            Some(reign) if matches!(self.role, Role::Leading { .. }) => reign.lease_time(now),
            _ => continued(self.stamped, now),
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
        let at = self.lease_time(now);
        let link = self.connections.get_mut(&connection);
        let link = link.expect("a connection submits between connect and disconnect");
        let forgotten = |reign: &Reign| reign.has_forgotten(waiter(connection, id));
        if link.open.contains_key(&id) || self.reign.as_ref().is_some_and(forgotten) {
            return Err(IdInUse);
        }
        let request = match incoming {
            Incoming::Valid(request) => request,
            Incoming::Refused { id, code } => {
                self.tally.error(code);
                link.outbox.deliver(&Reply::Error { id, code }, None);
                return Ok(());
            }
        };
        let kind = request.kind();
        let asked = Asked { id, kind, at };
        self.tally.asked(kind);
        let (operation, then) = match translate::task(connection, request) {
            Task::Domain => {
                let extensions = highwater_protocol::Extensions::ALL;
                let reply = Reply::Domain {
                    id,
                    domain,
                    extensions,
                };
                link.outbox.deliver(&reply, None);
                return Ok(());
            }
            Task::Acquire(operation) | Task::Hold(operation) => {
                (operation, Then::Answer { connection, asked })
            }
            Task::Cancel { acquire } => {
                let acquire = waiter(connection, acquire);
                let then = Then::Cancelled {
                    connection,
                    asked,
                    acquire,
                };
                (Operation::Cancel { waiter: acquire }, then)
            }
            Task::Status { key, from_slot } => {
                let then = Then::Tell {
                    connection,
                    asked,
                    key,
                    from_slot,
                };
                (Operation::Tick, then)
            }
        };
        link.open.insert(id, asked);
        if let Some(reign) = &mut self.reign {
            reign.company.asked();
        }
        self.admit(now, operation, then);
        Ok(())
    }

    fn apply(&mut self, now: Timestamp, position: u64, batch: &Batch) {
        let term = batch.epoch.get();
        let mut trace = Trace::new(position, batch.epoch);
        let mut thens = match &mut self.reign {
            Some(reign) if reign.term() == term => reign.applied(batch.number),
            _ => Vec::new(),
        }
        .into_iter();
        for operation in &batch.operations {
            // Whoever waits in the machine waits in its epoch, and at the leader of that.
            let epoch = self.machine.epoch();
            let ours = self
                .reign
                .as_ref()
                .is_some_and(|own| own.term() == epoch.get());
            let command = Command::new(batch.epoch, operation.clone());
            let outcome = self.machine.apply(batch.stamp, command);
            if let Some(trace) = &mut trace {
                trace.tell(epoch, operation, &outcome, &self.machine);
            }
            for event in outcome.events {
                self.happened(now, ours, batch.leader, event);
            }
            if let Some(then) = thens.next() {
                self.decided(now, then, outcome.reply);
            }
        }
        if let Some(trace) = trace {
            trace.end(&self.machine);
        }
        // Also if it has not moved on: what this node's clock showed before is not lease time.
        self.stamped = (self.machine.now(), now);
    }

    fn happened(&mut self, now: Timestamp, ours: bool, by: Slot, event: Event) {
        match event {
            Event::Granted(grant) if ours => self.granted(now, grant),
            Event::TimedOut(waiter) if ours => {
                self.tally.timed_out += 1;
                self.waiter_ended(waiter, |id| Reply::TimedOut { id });
            }
            Event::Dropped(waiter) if ours => {
                // A newer leader has begun, and this one never was and never will be granted.
                self.tally.dropped += 1;
                let leader = Some(by).filter(|by| *by != self.slot);
                self.waiter_ended(waiter, |id| Reply::Moved { id, leader });
            }
            Event::Expired { keys, token, .. } => {
                self.tally.expired += 1;
                tracing::debug!(%keys, %token, "a lease ended without a release");
            }
            _ => {}
        }
    }

    fn waiter_ended(&mut self, waiter: WaiterId, reply: impl FnOnce(RequestNumber) -> Reply) {
        if self.reign.as_mut().is_some_and(|reign| reign.left(waiter)) {
            return;
        }
        if let Some(id) = RequestNumber::new(waiter.request.get()) {
            self.reply(waiter.connection, id, &reply(id), None);
        }
    }

    /// Which other node leads, as far as this one knows.
    fn leader(&self) -> Option<Slot> {
        match self.role {
            Role::Following(slot) => Some(slot),
            Role::Leading { .. } | Role::Leaderless => None,
        }
    }
}

/// Lease time now, if it was `stamped.0` when this node's clock said `stamped.1`.
fn continued(stamped: (Timestamp, Timestamp), now: Timestamp) -> Timestamp {
    stamped.0.saturating_add(now.saturating_since(stamped.1))
}

/// An invariant was broken: nothing that this node would still decide can be trusted.
#[derive(Debug, thiserror::Error)]
#[error("the lock machine broke an invariant")]
pub(super) struct Broken;

/// Why a client is turned away before anything was proposed for it.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// Another node leads.
    Moved(Slot),
    NoLeader,
    NotActive,
}

impl Away {
    fn reply(self, id: RequestNumber) -> Reply {
        match self {
            Self::Moved(slot) => Reply::Moved {
                id,
                leader: Some(slot),
            },
            Self::NoLeader => Reply::Error {
                id,
                code: ErrorCode::NoLeader,
            },
            Self::NotActive => Reply::Error {
                id,
                code: ErrorCode::NotActive,
            },
        }
    }
}

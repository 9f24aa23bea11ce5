//! What a node does for its clients: the part that a server has around the lock core.
//!
//! Only a leader whose first entry is applied takes requests, and it answers when they are decided.
//! What a leader has appended and cannot follow any more is unknown, never "not taken".

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Event as LockEvent, FencingToken, Grant, Key, KeySet, Operation,
    Outcome, Reply, Timestamp,
};

use super::NAMES;
use super::context::{Action, Context};
use super::frame::{Frame, Message};
use super::log::Body;
use super::mutant::Mutant;
use super::node::{Node, Role};
use super::request::operation;
use crate::{Answer, CallId, Event, Request};

/// The clients of one node. Nothing here is replicated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk {
    /// What is appended and not decided, by its place in the log.
    pending: BTreeMap<u64, Pending>,
    /// Acquires that are in their queues.
    waiting: BTreeMap<CallId, u64>,
    /// Acquires that were answered "unknown" before they were decided.
    abandoned: BTreeSet<CallId>,
    gone: BTreeSet<u64>,
    /// Proposals of the last reign whose fate is unknown.
    late: Vec<(Timestamp, Command)>,
}

#[derive(Clone, Debug)]
struct Pending {
    call: CallId,
    connection: u64,
    term: u64,
    since: u64,
    is_acquire: bool,
    is_answered: bool,
}

/// After this long a leader does not know what becomes of a proposal.
const PATIENCE: u64 = 1_500_000;

impl Node {
    fn is_ready(&self) -> bool {
        match &self.role {
            Role::Leader(reign) => self.replica.applied >= reign.ready,
            _ => false,
        }
    }

    fn answer(&self, context: &mut Context, connection: u64, call: CallId, answer: Answer) {
        if self.desk.gone.contains(&connection) {
            return;
        }
        let delay = context.latency();
        let leader = self.leader.map(|leader| leader.slot);
        let reply = Action::Reply {
            connection,
            call,
            answer,
            leader,
        };
        context.later(delay, reply);
    }

    /// A request arrives.
    pub(crate) fn request(
        &mut self,
        context: &mut Context,
        connection: u64,
        call: CallId,
        request: &Request,
    ) {
        if self.desk.gone.contains(&connection) {
            return;
        }
        if !self.is_ready() {
            self.answer(context, connection, call, Answer::NotTaken);
            return;
        }
        let operation = operation(connection, call, request);
        let mut is_answered = false;
        if context.has(Mutant::AnsweredBeforeCommit) {
            is_answered = self.promise(context, connection, call, &operation);
        }
        let pending = Pending {
            call,
            connection,
            term: self.term,
            since: context.now,
            is_acquire: matches!(request, Request::Acquire { .. }),
            is_answered,
        };
        // A group of one would decide before this returns, so what is pending goes first.
        self.desk.pending.insert(self.log.last() + 1, pending);
        self.propose(context, operation);
    }

    fn promise(
        &self,
        context: &mut Context,
        connection: u64,
        call: CallId,
        operation: &Operation,
    ) -> bool {
        let mut machine = self.replica.machine.clone();
        let command = Command::new(machine.epoch(), operation.clone());
        let Reply::Granted(grant) = machine.apply(self.stamp(context), command).reply else {
            return false;
        };
        self.answer(context, connection, call, granted(&grant, self.term));
        true
    }

    /// A connection is gone: its places in the queues are given up.
    pub(crate) fn hang_up(&mut self, context: &mut Context, connection: u64) {
        if !self.desk.gone.insert(connection) {
            return;
        }
        let desk = &mut self.desk;
        let waits = desk.waiting.values().any(|of| *of == connection);
        let asks = desk
            .pending
            .values()
            .any(|pending| pending.connection == connection);
        desk.waiting.retain(|_, of| *of != connection);
        if (waits || asks) && matches!(self.role, Role::Leader(_)) {
            let connection = ConnectionId::new(connection);
            self.propose(context, Operation::Disconnect { connection });
        }
    }

    /// What a leader does as time goes by.
    pub(crate) fn look_after_clients(&mut self, context: &mut Context) {
        let now = context.now;
        let mut unknown = Vec::new();
        for pending in self.desk.pending.values_mut() {
            if !pending.is_answered && now - pending.since > PATIENCE {
                pending.is_answered = true;
                unknown.push((pending.connection, pending.call));
                if pending.is_acquire {
                    self.desk.abandoned.insert(pending.call);
                }
            }
        }
        for (connection, call) in unknown {
            context.stats.unknown_proposals += 1;
            self.answer(context, connection, call, Answer::Unknown);
        }
        let Role::Leader(reign) = &self.role else {
            return;
        };
        let in_flight = reign.tick > self.replica.applied;
        let due = self.replica.machine.next_deadline();
        let is_due = due.is_some_and(|due| due <= self.stamp(context));
        if is_due && !in_flight && !context.has(Mutant::TicksForgotten) {
            let index = self.propose(context, Operation::Tick);
            if let Role::Leader(reign) = &mut self.role {
                reign.tick = index;
            }
        }
    }

    /// Its reign is over: what is not decided yet may be decided by others.
    pub(crate) fn lose_office(&mut self, context: &mut Context) {
        let pending = std::mem::take(&mut self.desk.pending);
        for (index, pending) in pending {
            if let Some(Body::Command { stamp, command }) =
                self.log.get(index).map(|entry| entry.body.clone())
            {
                self.desk.late.push((stamp, command));
            }
            if pending.is_answered {
                continue;
            }
            context.stats.unknown_proposals += 1;
            context.orphans.insert((index, pending.term));
            let answer = match context.has(Mutant::MovedAfterAppend) {
                true => Answer::NotTaken,
                false => Answer::Unknown,
            };
            self.answer(context, pending.connection, pending.call, answer);
        }
        self.desk.abandoned.clear();
    }

    /// It took over a snapshot and does not know what happened on the way there.
    pub(crate) fn lose_track(&mut self, context: &mut Context) {
        let waiting = std::mem::take(&mut self.desk.waiting);
        for (call, connection) in waiting {
            self.answer(context, connection, call, Answer::Unknown);
        }
    }

    /// Tells its clients what an entry decided.
    pub(crate) fn tell(
        &mut self,
        context: &mut Context,
        (index, term): (u64, u64),
        command: &Command,
        outcome: &Outcome,
    ) {
        for event in &outcome.events {
            self.tell_event(context, term, event);
        }
        let pending = self.desk.pending.remove(&index);
        if let Some(pending) = pending.filter(|pending| pending.term == term) {
            self.tell_reply(context, &pending, command, outcome);
        }
        if let Role::Leader(reign) = &self.role
            && index == reign.ready
            && context.has(Mutant::InheritedGrantReleased)
        {
            self.release_inherited(context);
        }
    }

    fn tell_event(&mut self, context: &mut Context, term: u64, event: &LockEvent) {
        let (waiter, answer) = match event {
            LockEvent::Granted(grant) => (grant.waiter, granted(grant, term)),
            LockEvent::TimedOut(waiter) => (*waiter, Answer::TimedOut),
            // Never granted any more, so it can be said.
            LockEvent::Dropped(waiter) => (*waiter, Answer::NotTaken),
            _ => return,
        };
        let call = CallId(waiter.request.get());
        let connection = waiter.connection.get();
        if let Some(connection) = self.desk.waiting.remove(&call) {
            self.answer(context, connection, call, answer);
        } else if let LockEvent::Granted(grant) = event
            && (self.desk.gone.contains(&connection) || self.desk.abandoned.remove(&call))
        {
            self.give_back(context, term, grant);
        }
    }

    /// Gives back what could not be delivered, if this very reign granted it.
    fn give_back(&mut self, context: &mut Context, term: u64, grant: &Grant) {
        if matches!(self.role, Role::Leader(_)) && term == self.term {
            context.stats.given_back += 1;
            self.release(context, grant.keys.clone(), grant.token);
        }
    }

    fn release(&mut self, context: &mut Context, keys: KeySet, token: FencingToken) {
        context.record(Event::GaveBack {
            token: token.get(),
            epoch: self.term,
        });
        let minimum_hold = Duration::ZERO;
        self.propose(
            context,
            Operation::Release {
                keys,
                token,
                minimum_hold,
            },
        );
    }

    fn release_inherited(&mut self, context: &mut Context) {
        for (name, _) in NAMES {
            let key = Key::new(name).expect("a name is a key");
            for hold in self.replica.machine.holders(&key) {
                self.release(context, hold.keys, hold.token);
            }
        }
    }

    fn tell_reply(
        &mut self,
        context: &mut Context,
        pending: &Pending,
        command: &Command,
        outcome: &Outcome,
    ) {
        let call = pending.call;
        let is_abandoned = self.desk.abandoned.remove(&call);
        let is_gone = is_abandoned || self.desk.gone.contains(&pending.connection);
        let answer = match &outcome.reply {
            Reply::Granted(grant) if is_gone => {
                self.give_back(context, pending.term, grant);
                return;
            }
            Reply::Granted(grant) => granted(grant, pending.term),
            Reply::Queued if is_abandoned && matches!(self.role, Role::Leader(_)) => {
                self.cancel(context, command);
                return;
            }
            Reply::Queued => {
                if !is_gone {
                    let epoch = pending.term;
                    context.record(Event::QueueSeen { call, epoch });
                    self.desk.waiting.insert(call, pending.connection);
                }
                return;
            }
            Reply::Cancelled => {
                if let Operation::Cancel { waiter } = &command.operation {
                    self.withdraw(context, CallId(waiter.request.get()));
                }
                Answer::Cancelled
            }
            Reply::TimedOut => Answer::TimedOut,
            Reply::Busy(_) => Answer::Busy,
            Reply::Released => Answer::Released,
            Reply::NotHeld => Answer::NotHeld,
            Reply::Extended { .. } => Answer::Extended,
            Reply::NotQueued => Answer::NotQueued,
            Reply::ForceReleased { burned, .. } => Answer::ForceReleased {
                burned: burned.get(),
            },
            _ => Answer::NotTaken,
        };
        if !pending.is_answered {
            self.answer(context, pending.connection, call, answer);
        }
    }

    fn cancel(&mut self, context: &mut Context, command: &Command) {
        if let Operation::Acquire { waiter, .. } | Operation::AcquireSlot { waiter, .. } =
            &command.operation
        {
            let waiter = *waiter;
            self.propose(context, Operation::Cancel { waiter });
            // If it is granted before that, the grant goes back.
            self.desk.abandoned.insert(CallId(waiter.request.get()));
        }
    }

    /// A cancelled acquire has an answer too.
    fn withdraw(&mut self, context: &mut Context, call: CallId) {
        if let Some(connection) = self.desk.waiting.remove(&call) {
            self.answer(context, connection, call, Answer::NotTaken);
        }
    }

    /// A deposed leader that knows its successor sends it what was on its way, as it was.
    pub(crate) fn pass_on_late(&mut self, context: &mut Context) {
        let Some(leader) = self.leader else { return };
        let Some((epoch, ..)) = self.reigned else {
            return;
        };
        if leader == self.peer || !context.random.happens(context.faults.late_proposals) {
            return;
        }
        let mut commands = std::mem::take(&mut self.desk.late);
        let epoch = highwater_lock::Epoch::new(epoch);
        commands.push((self.stamp(context), Command::new(epoch, Operation::Tick)));
        self.reigned = None;
        context.send(Frame {
            from: self.peer,
            to: leader,
            term: self.term,
            body: Message::Late(commands),
        });
    }

    pub(crate) fn take_late(&mut self, context: &mut Context, commands: Vec<(Timestamp, Command)>) {
        for (stamp, mut command) in commands {
            if !self.is_ready() {
                return;
            }
            let is_tick = command.operation == Operation::Tick;
            if is_tick && context.has(Mutant::DeposedExpiryApplied) {
                command.epoch = self.replica.machine.epoch();
            }
            self.append_as_leader(context, Body::Command { stamp, command });
        }
    }

    /// For a mutant: what no replica may do.
    pub(crate) fn expire_alone(&mut self, context: &mut Context) {
        let machine = &mut self.replica.machine;
        let due = machine.next_deadline();
        let clock = Timestamp::from_micros(context.clock(self.peer));
        if let Some(due) = due.filter(|due| *due < clock) {
            let tick = Command::new(machine.epoch(), Operation::Tick);
            machine.apply(due, tick);
        }
    }
}

fn granted(grant: &Grant, term: u64) -> Answer {
    Answer::Granted {
        token: grant.token.get(),
        slot: grant.slot,
        epoch: Some(term),
    }
}

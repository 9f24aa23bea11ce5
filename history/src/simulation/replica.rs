//! The lock core of one node. Whoever applies an entry first records what it decided.

use std::collections::VecDeque;

use highwater_lock::{
    Command, Event as LockEvent, FencingToken, KeySet, Limits, Machine, Operation, Outcome,
    Rejection, Reply, Timestamp, WaiterId,
};

use super::context::Context;
use super::decided::{count, decisions};
use super::mutant::Mutant;
use super::patch;
use crate::Event;

#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) machine: Machine,
    pub(crate) applied: u64,
    /// Who waits, for a mutant that needs to know.
    queue: VecDeque<(WaiterId, Operation)>,
}

pub(crate) fn limits() -> Limits {
    Limits {
        waiters_per_key: 4,
        expiries_per_apply: 1,
        ..Limits::default()
    }
}

impl Replica {
    pub(crate) fn new() -> Self {
        Self {
            machine: Machine::new(limits(), FencingToken::MIN),
            applied: 0,
            queue: VecDeque::new(),
        }
    }

    /// The replica as it was after `applied`.
    pub(crate) fn restore(context: &Context, snapshot: &[u8], applied: u64) -> Self {
        let machine = Machine::restore(snapshot, limits());
        let mut machine = machine.expect("a node wrote the snapshot");
        if context.has(Mutant::TokensLostOnRestart) {
            patch::forget_tokens(&mut machine, limits());
        }
        Self {
            machine,
            applied,
            queue: VecDeque::new(),
        }
    }

    /// Applies the entry at `index`, which a leader of `term` appended.
    pub(crate) fn apply(
        &mut self,
        context: &mut Context,
        node: usize,
        (index, term): (u64, u64),
        stamp: Timestamp,
        command: Command,
    ) -> Outcome {
        let before = self.machine.next_token();
        let command = self.spoiled(context, command);
        let mut outcome = Outcome {
            reply: Reply::Ticked,
            events: Vec::new(),
        };
        if context.has(Mutant::FifoOvertaken) {
            outcome.events = self.push_back_head(stamp, &command);
        }
        let is_ignored = context.has(Mutant::DisconnectIgnored)
            && matches!(command.operation, Operation::Disconnect { .. });
        let done = match is_ignored {
            true => {
                let tick = Command::new(command.epoch, Operation::Tick);
                self.machine.apply(stamp, tick)
            }
            false => self.machine.apply(stamp, command.clone()),
        };
        outcome.events.extend(done.events);
        outcome.reply = match is_ignored {
            true => Reply::Disconnected { waiters: 0 },
            false => done.reply,
        };
        if context.has(Mutant::ExtensionShortens) {
            self.shorten(&command, &mut outcome);
        }
        self.remember(&command, &outcome);
        self.applied = index;
        assert!(
            self.machine.next_token() >= before,
            "the token counter goes up"
        );
        self.record(context, node, (index, term), &command, &outcome);
        outcome
    }

    fn record(
        &self,
        context: &mut Context,
        node: usize,
        (index, term): (u64, u64),
        command: &Command,
        outcome: &Outcome,
    ) {
        let known = context.positions.insert(index, term);
        let is_first = known != Some(term);
        // Each position costs too much: what differs once, differs later.
        if index.is_multiple_of(8) {
            let digest = digest(&self.machine.snapshot());
            context.record(Event::State {
                node: node as u64,
                position: index,
                digest,
            });
            if is_first {
                self.machine.assert_valid();
            }
        }
        if !is_first {
            return;
        }
        context.stats.decided_entries += 1;
        context.stats.unknown_yet_decided += u64::from(context.orphans.remove(&(index, term)));
        if matches!(outcome.reply, Reply::Rejected(Rejection::StaleEpoch { .. })) {
            context.stats.stale_commands += 1;
            return;
        }
        for (part, decision) in decisions(command, outcome, &self.machine)
            .into_iter()
            .enumerate()
        {
            count(context, &decision, outcome);
            context.record(Event::Decided {
                position: index,
                part: part as u32,
                epoch: term,
                decision,
            });
        }
    }

    /// The command as a mutant makes it.
    fn spoiled(&self, context: &Context, mut command: Command) -> Command {
        if context.has(Mutant::ReleasedByKey)
            && let Operation::Release { keys, token, .. } = &mut command.operation
            && let Some(holder) = self.machine.holder(&keys[0])
            && holder.keys == *keys
        {
            *token = holder.token;
        }
        command
    }

    /// Lets the first who waits for what is released go to the end, if there is a second.
    fn push_back_head(&mut self, stamp: Timestamp, command: &Command) -> Vec<LockEvent> {
        let Operation::Release { keys, .. } = &command.operation else {
            return Vec::new();
        };
        let wants = |keys: &KeySet, operation: &Operation| match operation {
            Operation::Acquire { keys: theirs, .. } => theirs == keys,
            _ => false,
        };
        let rivals = self.queue.iter().filter(|(_, queued)| wants(keys, queued));
        let rivals: Vec<WaiterId> = rivals.map(|(waiter, _)| *waiter).collect();
        if rivals.len() < 2 || command.epoch < self.machine.epoch() {
            return Vec::new();
        }
        let head = rivals[0];
        let place = self.queue.iter().position(|(waiter, _)| *waiter == head);
        let (waiter, again) = place
            .and_then(|place| self.queue.remove(place))
            .expect("it was just found");
        let cancel = Command::new(command.epoch, Operation::Cancel { waiter });
        let mut events = self.machine.apply(stamp, cancel).events;
        let acquire = Command::new(command.epoch, again.clone());
        let outcome = self.machine.apply(stamp, acquire);
        events.extend(outcome.events);
        match outcome.reply {
            Reply::Queued => self.queue.push_back((waiter, again)),
            Reply::Granted(grant) => events.push(LockEvent::Granted(grant)),
            _ => events.push(LockEvent::TimedOut(waiter)),
        }
        events
    }

    fn shorten(&mut self, command: &Command, outcome: &mut Outcome) {
        if let (Operation::Extend { token, lease, .. }, Reply::Extended { expires }) =
            (&command.operation, &mut outcome.reply)
        {
            let shorter = self.machine.now().saturating_add(*lease);
            if shorter < *expires {
                let mut bytes = self.machine.snapshot();
                patch::set_deadline(&mut bytes, *token, *expires, shorter);
                if let Ok(machine) = Machine::restore(&bytes, limits()) {
                    self.machine = machine;
                    *expires = shorter;
                }
            }
        }
    }

    fn remember(&mut self, command: &Command, outcome: &Outcome) {
        for event in &outcome.events {
            let gone = match event {
                LockEvent::Granted(grant) => grant.waiter,
                LockEvent::TimedOut(waiter) | LockEvent::Dropped(waiter) => *waiter,
                _ => continue,
            };
            self.queue.retain(|(waiter, _)| *waiter != gone);
        }
        match (&command.operation, &outcome.reply) {
            (Operation::Acquire { waiter, .. }, Reply::Queued) => {
                self.queue.push_back((*waiter, command.operation.clone()));
            }
            (Operation::Cancel { waiter: gone }, _) => {
                self.queue.retain(|(waiter, _)| waiter != gone);
            }
            (Operation::Disconnect { connection }, _) => {
                self.queue
                    .retain(|(waiter, _)| waiter.connection != *connection);
            }
            _ => {}
        }
    }
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

//! The lock core of one node, and what it decides, as events of the history.

use std::collections::VecDeque;

use highwater_lock::{
    Command, Event as LockEvent, FencingToken, HoldState, Key, KeySet, Limits, Machine, Operation,
    Outcome, Rejection, Reply, WaiterId,
};

use super::context::Context;
use super::mutant::Mutant;
use crate::{CallId, Decision, Event};

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
        stamp: highwater_lock::Timestamp,
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
    fn push_back_head(
        &mut self,
        stamp: highwater_lock::Timestamp,
        command: &Command,
    ) -> Vec<LockEvent> {
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

fn count(context: &mut Context, decision: &Decision, outcome: &Outcome) {
    let stats = &mut context.stats;
    match decision {
        Decision::Granted { call, slot, .. } => {
            let grants = outcome.events.iter().filter_map(|event| match event {
                LockEvent::Granted(grant) => Some(grant),
                _ => None,
            });
            let own = match &outcome.reply {
                Reply::Granted(grant) => Some(grant),
                _ => None,
            };
            let grant = grants
                .chain(own)
                .find(|grant| grant.waiter.request.get() == call.0);
            let keys = grant.map_or(1, |grant| grant.keys.len());
            stats.set_grants += u64::from(keys > 1);
            stats.slot_grants += u64::from(slot.is_some());
        }
        Decision::Dropped { .. } => stats.dropped_waiters += 1,
        Decision::Expired { .. } => stats.expiries += 1,
        Decision::Extended { .. } => stats.extensions += 1,
        Decision::Released { until, .. } => stats.retentions += u64::from(until.is_some()),
        Decision::ForceReleased { ended, .. } => stats.force_releases += ended.len() as u64,
        _ => {}
    }
}

fn call_of(waiter: WaiterId) -> CallId {
    CallId(waiter.request.get())
}

fn of_event(event: &LockEvent) -> Decision {
    match event {
        LockEvent::Granted(grant) => granted(grant),
        LockEvent::TimedOut(waiter) => Decision::TimedOut {
            call: call_of(*waiter),
        },
        LockEvent::Dropped(waiter) => Decision::Dropped {
            call: call_of(*waiter),
        },
        LockEvent::Expired { token, .. } => Decision::Expired { token: token.get() },
        LockEvent::RetentionEnded { token, .. } => Decision::RetentionEnded { token: token.get() },
    }
}

fn granted(grant: &highwater_lock::Grant) -> Decision {
    Decision::Granted {
        call: call_of(grant.waiter),
        token: grant.token.get(),
        slot: grant.slot,
        until: grant.expires.as_micros(),
    }
}

/// What a command caused, in the order in which it happened.
///
/// The machine tells the reply and the events apart, not which of them came first. What time did
/// comes before the operation, its hand-over after it.
fn decisions(command: &Command, outcome: &Outcome, machine: &Machine) -> Vec<Decision> {
    let events = &outcome.events;
    let (own, before) = match (&command.operation, &outcome.reply) {
        (Operation::Acquire { waiter, .. }, Reply::Queued)
        | (Operation::AcquireSlot { waiter, .. }, Reply::Queued) => {
            let call = call_of(*waiter);
            let now = machine.now().as_micros();
            (Decision::Queued { call, now }, events.len())
        }
        (_, Reply::Granted(grant)) => (granted(grant), events.len()),
        (Operation::Extend { token, .. }, Reply::Extended { expires }) => {
            let own = Decision::Extended {
                token: token.get(),
                now: machine.now().as_micros(),
                until: expires.as_micros(),
            };
            (own, events.len())
        }
        // Nothing that time did can concern these, so they may as well come first.
        (Operation::Release { keys, token, .. }, Reply::Released) => {
            let until = retained_until(machine, &keys[0], *token);
            let token = token.get();
            (Decision::Released { token, until }, after_dropped(events))
        }
        (Operation::Cancel { waiter }, Reply::Cancelled) => {
            let call = call_of(*waiter);
            (Decision::Cancelled { call }, after_dropped(events))
        }
        (Operation::Disconnect { connection }, _) => {
            let concerns = |event: &LockEvent| match event {
                LockEvent::Granted(grant) => grant.waiter.connection == *connection,
                LockEvent::TimedOut(waiter) | LockEvent::Dropped(waiter) => {
                    waiter.connection == *connection
                }
                _ => false,
            };
            let last = events.iter().rposition(concerns);
            let connection = connection.get();
            let own = Decision::Disconnected { connection };
            (own, last.map_or(0, |last| last + 1))
        }
        (_, Reply::ForceReleased { burned, ended }) => {
            let is_later = |event: &LockEvent| match event {
                LockEvent::Granted(grant) => grant.token > *burned,
                _ => false,
            };
            let ended = ended.iter().map(|ended| ended.token.get()).collect();
            let own = Decision::ForceReleased {
                burned: burned.get(),
                ended,
            };
            let first = events.iter().position(is_later);
            (own, first.unwrap_or(events.len()))
        }
        _ => return events.iter().map(of_event).collect(),
    };
    let mut all: Vec<Decision> = events.iter().map(of_event).collect();
    all.insert(before, own);
    all
}

fn after_dropped(events: &[LockEvent]) -> usize {
    let dropped = events
        .iter()
        .take_while(|event| matches!(event, LockEvent::Dropped(_)));
    dropped.count()
}

fn retained_until(machine: &Machine, key: &Key, token: FencingToken) -> Option<u64> {
    let holders = machine.holders(key);
    let hold = holders.iter().find(|hold| hold.token == token)?;
    match hold.state {
        HoldState::Retained { until } => Some(until.as_micros()),
        HoldState::Held { .. } => None,
    }
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Damage to the bytes of a snapshot, for mutants. Knows the format as it is now.
mod patch {
    use highwater_lock::{FencingToken, Limits, Machine, Timestamp};

    const NEXT_TOKEN: usize = 24;
    const HOLDS: usize = 32;

    /// The counter goes on behind what is still held.
    pub(super) fn forget_tokens(machine: &mut Machine, limits: Limits) {
        let mut bytes = machine.snapshot();
        let next = u64::from_be_bytes(bytes[NEXT_TOKEN..HOLDS].try_into().expect("eight bytes"));
        // The lowest that a machine with these holds may have.
        let lower = (1..next).find_map(|next| {
            bytes[NEXT_TOKEN..HOLDS].copy_from_slice(&next.to_be_bytes());
            Machine::restore(&bytes, limits.clone()).ok()
        });
        if let Some(lower) = lower {
            *machine = lower;
        }
    }

    pub(super) fn set_deadline(
        bytes: &mut [u8],
        token: FencingToken,
        from: Timestamp,
        to: Timestamp,
    ) {
        let token = token.get().to_be_bytes();
        let from = from.as_micros().to_be_bytes();
        let starts = 0..bytes.len().saturating_sub(25);
        let is_hold = |at: &usize| {
            bytes[*at..*at + 8] == token
                && bytes[*at + 16] == 0
                && bytes[*at + 17..*at + 25] == from
        };
        if let Some(at) = starts.into_iter().find(is_hold) {
            bytes[at + 17..at + 25].copy_from_slice(&to.as_micros().to_be_bytes());
        }
    }
}

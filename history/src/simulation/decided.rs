//! What a command caused, as decisions of the history.

use highwater_lock::{
    Command, Event as LockEvent, FencingToken, Grant, HoldState, Key, Machine, Operation, Outcome,
    Reply, WaiterId,
};

use super::context::Context;
use crate::{CallId, Decision};

pub(super) fn count(context: &mut Context, decision: &Decision, outcome: &Outcome) {
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

fn granted(grant: &Grant) -> Decision {
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
pub(super) fn decisions(command: &Command, outcome: &Outcome, machine: &Machine) -> Vec<Decision> {
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

//! The decision trace: what the log decided, one line each, for whoever wants to check it.
//!
//! Every node tells it, in the order of the log, under the target [`TARGET`] at level `trace`; the
//! same place of the log reads the same on all of them. Nothing is made up for it when nobody
//! listens. `docs/chaos.md` says what the lines mean.

use std::fmt::{self, Write as _};

use highwater_lock::{
    Epoch, Event, FencingToken, Grant, HoldState, Key, KeySet, Machine, Operation, Outcome, Reply,
    WaiterId,
};

use crate::cluster::DECISIONS as TARGET;

/// Whether somebody listens.
pub(super) fn wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// An entry is about to be applied. They have no gaps, so whoever has seen all of these has seen
/// all decisions.
pub(crate) fn entry(position: u64, epoch: u64) {
    tracing::trace!(target: TARGET, position, epoch, "entry");
}

/// What a leader takes back, before it is proposed.
pub(super) fn gave_back(epoch: u64, token: FencingToken) {
    tracing::trace!(target: TARGET, epoch, "gave-back token={token}");
}

/// The decisions of one entry, in their order.
pub(super) struct Trace {
    position: u64,
    epoch: Epoch,
    parts: u32,
}

impl Trace {
    /// For an entry at this place, if somebody listens.
    pub(super) fn new(position: u64, epoch: Epoch) -> Option<Self> {
        wanted().then_some(Self {
            position,
            epoch,
            parts: 0,
        })
    }

    /// Tells what an operation caused. `before` is the machine's epoch before it, in which those
    /// had queued whom a new epoch drops.
    pub(super) fn tell(
        &mut self,
        before: Epoch,
        operation: &Operation,
        outcome: &Outcome,
        machine: &Machine,
    ) {
        for line in lines((before, self.epoch), operation, outcome, machine) {
            let Self {
                position,
                epoch,
                parts,
            } = self;
            tracing::trace!(target: TARGET, position, part = parts, %epoch, "{line}");
            self.parts += 1;
        }
    }

    /// Tells what the machine is after the entry, now and then: it has to be the same everywhere.
    pub(super) fn end(self, machine: &Machine) {
        if self.position.is_multiple_of(DIGEST_EVERY) {
            let digest = crc32fast::hash(&machine.snapshot());
            let position = self.position;
            tracing::trace!(target: TARGET, position, "state digest={digest}");
        }
    }
}

/// In the order in which it happened. The machine tells the reply and the events apart, not which of
/// them came first: what time did comes before the operation, its hand-over after it.
fn lines(
    (before, epoch): (Epoch, Epoch),
    operation: &Operation,
    outcome: &Outcome,
    machine: &Machine,
) -> Vec<String> {
    let events = &outcome.events;
    let mut lines: Vec<String> = events
        .iter()
        .map(|event| of(before, epoch, event))
        .collect();
    let dropped = events
        .iter()
        .take_while(|event| matches!(event, Event::Dropped(_)))
        .count();
    let (own, place) = match (operation, &outcome.reply) {
        (Operation::Acquire { waiter, .. }, Reply::Queued)
        | (Operation::AcquireSlot { waiter, .. }, Reply::Queued) => {
            let now = machine.now().as_micros();
            let line = Line::of("queued", epoch, *waiter).field("now", now);
            (line.asked(operation), lines.len())
        }
        (_, Reply::Granted(grant)) => (granted(epoch, grant).asked(operation), lines.len()),
        (Operation::Extend { token, .. }, Reply::Extended { expires }) => {
            let line = Line::new("extended").field("token", token);
            let line = line.field("now", machine.now().as_micros());
            (line.field("until", expires.as_micros()), lines.len())
        }
        // Nothing that time did can concern these, so they may as well come first.
        (Operation::Release { keys, token, .. }, Reply::Released) => {
            let line = Line::new("released").field("token", token);
            let until = retained_until(machine, keys, *token);
            (line.optional("until", until), dropped)
        }
        (Operation::Cancel { waiter }, Reply::Cancelled) => {
            (Line::of("cancelled", epoch, *waiter), dropped)
        }
        (Operation::Disconnect { connection }, _) => {
            let concerns = |event: &Event| match event {
                Event::Granted(grant) => grant.waiter.connection == *connection,
                Event::TimedOut(waiter) | Event::Dropped(waiter) => {
                    waiter.connection == *connection
                }
                _ => false,
            };
            let line = Line::new("disconnected");
            let line = line.field("connection", format_args!("{epoch}/{connection}"));
            let last = events.iter().rposition(concerns);
            (line, last.map_or(0, |last| last + 1))
        }
        (_, Reply::ForceReleased { burned, ended }) => {
            let line = Line::new("force-released").field("burned", burned);
            let line = ended
                .iter()
                .fold(line, |line, ended| line.field("ended", ended.token));
            let is_later =
                |event: &Event| matches!(event, Event::Granted(grant) if grant.token > *burned);
            let first = events.iter().position(is_later);
            (line, first.unwrap_or(events.len()))
        }
        _ => return lines,
    };
    lines.insert(place, own.0);
    lines
}

fn of(before: Epoch, epoch: Epoch, event: &Event) -> String {
    let line = match event {
        Event::Granted(grant) => granted(epoch, grant),
        Event::TimedOut(waiter) => Line::of("timed-out", epoch, *waiter),
        Event::Dropped(waiter) => Line::of("dropped", before, *waiter),
        Event::Expired { token, .. } => Line::new("expired").field("token", token),
        Event::RetentionEnded { token, .. } => Line::new("retention-ended").field("token", token),
    };
    line.0
}

fn granted(epoch: Epoch, grant: &Grant) -> Line {
    Line::of("granted", epoch, grant.waiter)
        .field("token", grant.token)
        .optional("slot", grant.slot)
        .field("until", grant.expires.as_micros())
}

/// Until when a released lock is kept from everybody, if it is.
fn retained_until(machine: &Machine, keys: &KeySet, token: FencingToken) -> Option<u64> {
    let holders = machine.holders(keys.keys().first()?);
    let hold = holders.iter().find(|hold| hold.token == token)?;
    match hold.state {
        HoldState::Retained { until } => Some(until.as_micros()),
        HoldState::Held { .. } => None,
    }
}

struct Line(String);

impl Line {
    fn new(word: &str) -> Self {
        Self(word.to_owned())
    }

    /// Who waits is named by the epoch, the connection to the leader of that, and the request.
    fn of(word: &str, epoch: Epoch, waiter: WaiterId) -> Self {
        let WaiterId {
            connection,
            request,
        } = waiter;
        Self::new(word).field("waiter", format_args!("{epoch}/{connection}/{request}"))
    }

    fn field(mut self, name: &str, value: impl fmt::Display) -> Self {
        write!(self.0, " {name}={value}").expect("a string takes everything");
        self
    }

    fn optional(self, name: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// What an acquire asks for.
    fn asked(self, operation: &Operation) -> Self {
        let (wait, lease, keys): (_, _, &[Key]) = match operation {
            Operation::Acquire {
                wait, lease, keys, ..
            } => (wait, lease, keys.keys()),
            Operation::AcquireSlot {
                wait, lease, name, ..
            } => (wait, lease, std::slice::from_ref(name)),
            _ => return self,
        };
        let line = self
            .field("wait", wait.as_micros())
            .field("lease", lease.as_micros());
        keys.iter().fold(line, |line, key| line.field("key", key))
    }
}

/// How many entries there are between two digests.
const DIGEST_EVERY: u64 = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use highwater_lock::{Command, ConnectionId, Limits, RequestId, Timestamp};

    use super::*;

    /// What a machine says to these operations at these seconds, in these epochs.
    fn check(script: &[(u64, u64, Operation)], expected: &[&str]) {
        let mut machine = Machine::new(Limits::default(), FencingToken::MIN);
        let mut told = Vec::new();
        for (second, epoch, operation) in script {
            let (before, epoch) = (machine.epoch(), Epoch::new(*epoch));
            let command = Command::new(epoch, operation.clone());
            let outcome = machine.apply(Timestamp::from_micros(second * 1_000_000), command);
            told.extend(lines((before, epoch), operation, &outcome, &machine));
        }
        assert_eq!(told, expected);
    }

    fn acquire(connection: u64, request: u64, wait: u64) -> Operation {
        Operation::Acquire {
            waiter: WaiterId::new(ConnectionId::new(connection), RequestId::new(request)),
            keys: Key::new("a").expect("a key").into(),
            wait: Duration::from_secs(wait),
            lease: Duration::from_secs(3),
        }
    }

    fn release(token: u64, minimum: u64) -> Operation {
        Operation::Release {
            keys: Key::new("a").expect("a key").into(),
            token: FencingToken::new(token).expect("a token"),
            minimum_hold: Duration::from_secs(minimum),
        }
    }

    #[test]
    fn a_hand_over_follows_the_release_that_caused_it() {
        check(
            &[
                (0, 1, acquire(1, 1, 0)),
                (1, 1, acquire(2, 1, 9)),
                (2, 1, release(1, 0)),
                (3, 1, release(2, 5)),
            ],
            &[
                "granted waiter=1/1/1 token=1 until=3000000 wait=0 lease=3000000 key=a",
                "queued waiter=1/2/1 now=1000000 wait=9000000 lease=3000000 key=a",
                "released token=1",
                "granted waiter=1/2/1 token=2 until=5000000",
                "released token=2 until=7000000",
            ],
        );
    }

    #[test]
    fn what_time_did_comes_before_what_was_asked_for() {
        check(
            &[
                (0, 1, acquire(1, 1, 0)),
                (1, 1, acquire(2, 1, 1)),
                (3, 1, acquire(3, 1, 0)),
            ],
            &[
                "granted waiter=1/1/1 token=1 until=3000000 wait=0 lease=3000000 key=a",
                "queued waiter=1/2/1 now=1000000 wait=1000000 lease=3000000 key=a",
                "timed-out waiter=1/2/1",
                "expired token=1",
                "granted waiter=1/3/1 token=2 until=6000000 wait=0 lease=3000000 key=a",
            ],
        );
    }

    #[test]
    fn whom_a_new_epoch_drops_waited_in_the_old_one() {
        let gone = Operation::Disconnect {
            connection: ConnectionId::new(2),
        };
        check(
            &[
                (0, 1, acquire(1, 1, 0)),
                (0, 1, acquire(2, 7, 9)),
                (1, 2, Operation::Tick),
                (1, 1, release(1, 0)),
                (1, 2, gone),
            ],
            &[
                "granted waiter=1/1/1 token=1 until=3000000 wait=0 lease=3000000 key=a",
                "queued waiter=1/2/7 now=0 wait=9000000 lease=3000000 key=a",
                "dropped waiter=1/2/7",
                "disconnected connection=2/2",
            ],
        );
    }
}

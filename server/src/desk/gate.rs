//! Decides what may go to the lock machine now, what is parked, and what is refused.
//!
//! A server in memory lets everything through until it stops. A durable one grants nothing while
//! leases of an earlier start may be running, no token that is not reserved on the disk, and no
//! lease that is longer than the disk knows. Nobody waits for the disk but those whom it concerns.

use std::time::Duration;

use highwater_lock::{
    Busy, ConnectionId, Key, Limits, Operation, Reply as Outcome, Timestamp, WaiterId,
};
use highwater_protocol::{ErrorCode, Reply, RequestNumber};

use super::parked::{Entry, Place, acquired, with_wait_until};
use super::{STOPPED, State, waiter};
use crate::storage::legal_lease;
use crate::translate::Asked;

/// What becomes of a request.
enum Verdict {
    Run,
    /// Not before the disk or the time allows it; answered at this moment at the latest.
    Park(Timestamp),
    Refuse(Refusal),
    /// The machine would answer this and change nothing, however much the disk allowed.
    Answer(Outcome),
}

/// For how long an operation may make something be held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    time: Duration,
    /// The most that the limits allow.
    longest: Duration,
}

/// Why a request is not run. It has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotActive,
    /// A try, and somebody came earlier.
    NotFree,
    /// Its wait is over.
    TimedOut,
    Busy(Busy),
    /// The domain is at its end.
    NoToken,
}

impl Refusal {
    fn reply(self, id: RequestNumber) -> Reply {
        let code = ErrorCode::NotActive;
        match self {
            Self::NotActive => Reply::Error { id, code },
            Self::NotFree | Self::TimedOut => Reply::TimedOut { id },
            Self::Busy(_) | Self::NoToken => Reply::Busy { id },
        }
    }
}

impl State {
    /// Runs, parks or refuses what a connection asks for. What is parked again keeps its place.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        asked: Asked,
        operation: Operation,
        place: Option<Place>,
    ) {
        match self.judge(now, connection, &operation, place) {
            Verdict::Run => self.run(now, connection, asked, operation),
            Verdict::Answer(outcome) => self.answer(connection, asked, outcome),
            Verdict::Refuse(refusal) => {
                self.tally.refused(refusal);
                if let Some(link) = self.connections.get(&connection) {
                    let reply = refusal.reply(asked.id);
                    self.filled.push(&link.outbox, &reply, None);
                }
            }
            Verdict::Park(until) => {
                let span = self.span(&operation);
                self.promise(span);
                if let Some(link) = self.connections.get_mut(&connection) {
                    link.queued.insert(asked.id, asked);
                    self.tally.parked += u64::from(place.is_none());
                    let entry = Entry {
                        waiter: waiter(connection, asked.id),
                        operation,
                        until: place.map_or(until, |place| place.until),
                    };
                    self.parked.push(place, entry);
                }
            }
        }
    }

    fn judge(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        operation: &Operation,
        place: Option<Place>,
    ) -> Verdict {
        match operation {
            Operation::Acquire { wait, lease, .. } | Operation::AcquireSlot { wait, lease, .. } => {
                let verdict = self.judge_acquire(now, operation, place, *wait, *lease);
                self.if_there_is_room(connection, acquired(operation), verdict)
            }
            Operation::Extend { lease, .. } => {
                let fallback = Verdict::Refuse(Refusal::NotActive);
                self.judge_span(now, connection, operation, *lease, fallback)
            }
            // Better given back without a promise for the time after a crash than kept.
            Operation::Release { minimum_hold, .. } if !minimum_hold.is_zero() => {
                self.judge_span(now, connection, operation, *minimum_hold, Verdict::Run)
            }
            _ => Verdict::Run,
        }
    }

    fn judge_acquire(
        &mut self,
        now: Timestamp,
        operation: &Operation,
        place: Option<Place>,
        wait: Duration,
        lease: Duration,
    ) -> Verdict {
        if self.grants_nothing() {
            return Verdict::Refuse(Refusal::NotActive);
        }
        let limits = self.machine.limits();
        let Some(reserve) = &self.reserve else {
            return Verdict::Run;
        };
        if !legal_lease(lease, limits) || wait > limits.wait {
            return Verdict::Run;
        }
        let held_back = self.held_back.filter(|end| now < *end);
        let behind_others = self.parked.is_behind(place, acquired(operation));
        let free = held_back.is_none() && !behind_others;
        if free && reserve.covers(lease) && reserve.room(&self.machine) > 0 {
            return Verdict::Run;
        }
        // What the machine refuses anyway is not worth a write.
        if let Err(outcome) = self.would_hold(now, operation) {
            return Verdict::Answer(outcome);
        }
        let until = now.saturating_add(wait);
        match held_back {
            Some(end) if until > end => return Verdict::Park(until),
            Some(_) => return Verdict::Refuse(Refusal::NotActive),
            None => {}
        }
        let reserve = self.reserve.as_ref();
        if reserve.is_some_and(|reserve| reserve.is_used_up(&self.machine)) {
            return Verdict::Refuse(Refusal::NoToken);
        }
        match wait.is_zero() {
            // Somebody came earlier for the key: a try is over.
            true if behind_others => Verdict::Refuse(Refusal::NotFree),
            true => Verdict::Park(now.saturating_add(DISK_TIME)),
            false => Verdict::Park(until),
        }
    }

    /// The limits of the queues hold for what is parked too.
    fn if_there_is_room(
        &self,
        connection: ConnectionId,
        keys: &[Key],
        verdict: Verdict,
    ) -> Verdict {
        let limits = self.machine.limits();
        let reached = |count: usize, limit: u32| count >= limit as usize;
        let Verdict::Park(until) = verdict else {
            return verdict;
        };
        if reached(self.parked.len() + self.machine.waiters(), limits.waiters) {
            Verdict::Refuse(Refusal::Busy(Busy::Waiters))
        } else if reached(self.parked.most_for(keys), limits.waiters_per_key) {
            Verdict::Refuse(Refusal::Busy(Busy::WaitersPerKey))
        } else if self.has_too_many(connection) {
            Verdict::Refuse(Refusal::Busy(Busy::WaitersPerConnection))
        } else {
            Verdict::Park(until)
        }
    }

    fn has_too_many(&self, connection: ConnectionId) -> bool {
        let parked = self.parked.of_connection(connection);
        parked >= self.machine.limits().waiters_per_connection as usize
    }

    /// Whether a lock that is held may be kept for this long; the fallback is for when the disk
    /// cannot be waited for.
    fn judge_span(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        operation: &Operation,
        span: Duration,
        fallback: Verdict,
    ) -> Verdict {
        if self.sealed {
            return Verdict::Refuse(Refusal::NotActive);
        }
        if self.covers(span) {
            return Verdict::Run;
        }
        let rest = match self.would_hold(now, operation) {
            Ok(rest) => rest,
            Err(outcome) => return Verdict::Answer(outcome),
        };
        if self.covers(rest) {
            Verdict::Run
        } else if self.storage_failed || self.has_too_many(connection) {
            fallback
        } else {
            Verdict::Park(now.saturating_add(DISK_TIME))
        }
    }

    fn covers(&self, span: Duration) -> bool {
        let reserve = self.reserve.as_ref();
        span.is_zero() || reserve.is_none_or(|reserve| reserve.covers(span))
    }

    /// What the machine would make of an operation now.
    fn would_hold(&mut self, now: Timestamp, operation: &Operation) -> Result<Duration, Outcome> {
        self.apply(now, Operation::Tick);
        self.machine.would_hold(operation)
    }

    /// What has to be promised for an operation that has an effect.
    pub(super) fn span(&self, operation: &Operation) -> Span {
        let limits = self.machine.limits();
        let (time, longest) = match operation {
            Operation::Acquire { lease, .. }
            | Operation::AcquireSlot { lease, .. }
            | Operation::Extend { lease, .. } => (*lease, limits.lease),
            Operation::Release { minimum_hold, .. } if !minimum_hold.is_zero() => {
                let rest = self.machine.would_hold(operation).unwrap_or_default();
                (rest, limits.minimum_hold)
            }
            _ => (Duration::ZERO, Duration::ZERO),
        };
        Span { time, longest }
    }

    fn promise(&mut self, span: Span) {
        if let Some(reserve) = self.reserve.as_mut().filter(|_| !span.time.is_zero()) {
            reserve.promise(span.time, span.longest.min(Limits::LONGEST));
        }
    }

    /// A crash must not forget what was just given, or will be when its turn comes.
    pub(super) fn promise_what_is_held(&mut self, span: Span, outcome: &Outcome) {
        if let Outcome::Granted(_)
        | Outcome::Queued
        | Outcome::Extended { .. }
        | Outcome::Released = outcome
        {
            self.promise(span);
        }
    }

    /// Answers what has been parked for too long, and lets the others in once old leases are over.
    pub(super) fn let_time_pass(&mut self, now: Timestamp) {
        for _ in 0..AT_ONCE {
            let Some(entry) = self.parked.take_due(now) else {
                break;
            };
            self.give_up(now, entry);
        }
        if self.held_back.is_some_and(|end| end <= now) {
            self.held_back = None;
            tracing::info!("leases of earlier starts are over: locks are granted from now on");
            self.parked.begin_round();
        }
        self.go_on_letting_in(now);
    }

    /// Judges everything that is parked again, in the order of arrival, in portions: what is left
    /// over is due at once.
    pub(super) fn let_in(&mut self, now: Timestamp) {
        self.parked.begin_round();
        self.go_on_letting_in(now);
    }

    fn go_on_letting_in(&mut self, now: Timestamp) {
        // No record lets an acquire in before old leases are over.
        let grants = self.held_back.is_none_or(|end| end <= now);
        for _ in 0..AT_ONCE {
            let Some((place, entry)) = self.parked.take_next(grants) else {
                return;
            };
            if place.until <= now {
                self.give_up(now, entry);
                continue;
            }
            let Entry {
                waiter, operation, ..
            } = entry;
            let Some((asked, _)) = self.dequeue(waiter) else {
                continue;
            };
            let operation = with_wait_until(operation, now, place.until);
            self.admit(now, waiter.connection, asked, operation, Some(place));
        }
    }

    fn give_up(&mut self, now: Timestamp, entry: Entry) {
        let Entry {
            waiter, operation, ..
        } = entry;
        match operation {
            Operation::Acquire { wait, .. } | Operation::AcquireSlot { wait, .. }
                if !wait.is_zero() =>
            {
                self.turn_away(waiter, Refusal::TimedOut);
            }
            Operation::Release { .. } => {
                if let Some((asked, _)) = self.dequeue(waiter) {
                    self.run(now, waiter.connection, asked, operation);
                }
            }
            _ => self.turn_away(waiter, Refusal::NotActive),
        }
    }

    /// Answers what was parked, without running it.
    fn turn_away(&mut self, waiter: WaiterId, refusal: Refusal) {
        self.tally.refused(refusal);
        self.ungranted(waiter, |id| refusal.reply(id));
    }

    /// Whether a token may be taken now that no acquire has been let in for.
    pub(super) fn may_take_token(&self) -> bool {
        let reserve = self.reserve.as_ref();
        !self.sealed && reserve.is_none_or(|reserve| reserve.room(&self.machine) > 0)
    }

    /// From now on nothing is granted. Who waits is told so.
    pub(super) fn stop_granting(&mut self, now: Timestamp) {
        // A new epoch removes all waiters at once and before anything is handed over; removed one
        // after the other, some would be granted by the removal of those before them.
        self.epoch = STOPPED;
        self.apply(now, Operation::Tick);
        for entry in self.parked.take_all() {
            match entry.operation {
                Operation::Release { .. } => self.give_up(now, entry),
                _ => self.turn_away(entry.waiter, Refusal::NotActive),
            }
        }
    }

    pub(super) fn grants_nothing(&self) -> bool {
        self.draining || self.storage_failed
    }

    /// The earliest moment at which time alone changes anything.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let times = [
            self.machine.next_deadline(),
            self.parked.next_deadline(),
            self.held_back,
            self.parked.is_in_round().then_some(Timestamp::ZERO),
        ];
        times.into_iter().flatten().min()
    }
}

/// How many that are parked are answered or let in before others get their turn.
pub(super) const AT_ONCE: usize = 256;

/// How long a request that does not wait for a lock may wait for the disk.
const DISK_TIME: Duration = Duration::from_secs(1);

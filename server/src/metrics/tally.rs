//! What is counted on the path of a lock.
//!
//! Plain numbers that stand under the desk's mutex, so counting costs an addition. What the
//! numbers are called outside is decided where they are [shown](super).

use std::time::Duration;

use highwater_lock::{Busy, Rejection, Reply as Outcome};
use highwater_protocol::{ErrorCode, RequestKind};

use super::histogram::Histogram;
use crate::desk::Refusal;

/// Counts since the start.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) acquires: u64,
    pub(crate) releases: u64,
    pub(crate) extensions: u64,
    pub(crate) cancels: u64,
    pub(crate) questions: u64,
    /// Acquires that were granted without a wait.
    pub(crate) granted_at_once: u64,
    /// Acquires that joined a queue.
    pub(crate) queued: u64,
    /// Those of them that were granted.
    pub(crate) handed_over: u64,
    /// Requests that could not be run before the disk or the time allowed it.
    pub(crate) parked: u64,
    /// Acquires whose wait ended while they were parked.
    pub(crate) timed_out_parked: u64,
    /// Tries that found the lock taken.
    pub(crate) not_free: u64,
    /// Queued acquires whose wait ended.
    pub(crate) timed_out: u64,
    /// Queued acquires that their client took back.
    pub(crate) cancelled: u64,
    /// Queued acquires that ended because the server drains.
    pub(crate) dropped: u64,
    pub(crate) released: u64,
    /// Releases with a token that is no longer that of a holder.
    pub(crate) stale_releases: u64,
    pub(crate) extended: u64,
    /// Extensions with a token that is no longer that of a holder.
    pub(crate) stale_extensions: u64,
    pub(crate) expired: u64,
    /// Grants that never left to their client and were given back.
    pub(crate) undelivered: u64,
    /// Force-releases by an operator.
    pub(crate) forced: u64,
    pub(crate) busy: BusyCounts,
    /// Error replies by the byte of their code.
    pub(crate) errors: [u64; ERROR_CODES],
    /// How long those that were handed over had waited, in microseconds.
    pub(crate) waited: Histogram,
    /// How many stood in the queue of a key, the new one included, when an acquire joined it.
    pub(crate) depth: Histogram,
}

/// Busy replies by what was used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BusyCounts {
    pub(crate) keys: u64,
    pub(crate) waiters: u64,
    pub(crate) waiters_per_key: u64,
    pub(crate) waiters_per_connection: u64,
    pub(crate) tokens: u64,
    pub(crate) other: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            acquires: 0,
            releases: 0,
            extensions: 0,
            cancels: 0,
            questions: 0,
            granted_at_once: 0,
            queued: 0,
            parked: 0,
            timed_out_parked: 0,
            handed_over: 0,
            not_free: 0,
            timed_out: 0,
            cancelled: 0,
            dropped: 0,
            released: 0,
            stale_releases: 0,
            extended: 0,
            stale_extensions: 0,
            expired: 0,
            undelivered: 0,
            forced: 0,
            busy: BusyCounts::default(),
            errors: [0; ERROR_CODES],
            waited: Histogram::new(WAIT_MICROS),
            depth: Histogram::new(DEPTHS),
        }
    }
}

impl Tally {
    /// A request arrived and was understood.
    pub(crate) fn asked(&mut self, kind: RequestKind) {
        *match kind {
            kind if kind.is_acquire() => &mut self.acquires,
            RequestKind::Release(_) | RequestKind::Retain => &mut self.releases,
            RequestKind::Extend => &mut self.extensions,
            RequestKind::Cancel => &mut self.cancels,
            _ => &mut self.questions,
        } += 1;
    }

    /// The machine decided a request of a client.
    pub(crate) fn decided(&mut self, kind: RequestKind, outcome: &Outcome) {
        *match outcome {
            Outcome::Granted(_) => &mut self.granted_at_once,
            Outcome::Queued => &mut self.queued,
            Outcome::TimedOut => &mut self.not_free,
            Outcome::Busy(busy) => self.busy.of(*busy),
            Outcome::Rejected(Rejection::TokensExhausted) => &mut self.busy.tokens,
            Outcome::Rejected(Rejection::Wait { .. }) if is_base(kind) => &mut self.busy.other,
            Outcome::Released => &mut self.released,
            Outcome::NotHeld if kind == RequestKind::Extend => &mut self.stale_extensions,
            Outcome::NotHeld => &mut self.stale_releases,
            Outcome::Extended { .. } => &mut self.extended,
            Outcome::Cancelled => &mut self.cancelled,
            // Counted by their replies, or nobody's request.
            _ => return,
        } += 1;
    }

    /// A request ended without the machine.
    pub(crate) fn refused(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::NotActive => self.error(ErrorCode::NotActive),
            Refusal::NotFree => self.not_free += 1,
            Refusal::TimedOut => self.timed_out_parked += 1,
            Refusal::Busy(busy) => *self.busy.of(busy) += 1,
            Refusal::NoToken => self.busy.tokens += 1,
        }
    }

    /// An acquire joined a queue and made it this long.
    pub(crate) fn joined(&mut self, depth: usize) {
        self.depth.record(depth as u64);
    }

    /// A client is told that its request is not possible.
    pub(crate) fn error(&mut self, code: ErrorCode) {
        let place = usize::from(code.to_byte()).min(ERROR_CODES - 1);
        self.errors[place] += 1;
    }

    /// A queued acquire has its lock.
    pub(crate) fn handed_over(&mut self, waited: Duration) {
        self.handed_over += 1;
        self.waited.record(micros(waited));
    }
}

/// An acquire that has no error reply for a wait that is too long.
fn is_base(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Acquire(_))
}

impl BusyCounts {
    fn of(&mut self, busy: Busy) -> &mut u64 {
        match busy {
            Busy::Keys => &mut self.keys,
            Busy::Waiters => &mut self.waiters,
            Busy::WaitersPerKey => &mut self.waiters_per_key,
            Busy::WaitersPerConnection => &mut self.waiters_per_connection,
            _ => &mut self.other,
        }
    }
}

/// Whole microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// One more than the highest code there is room for; higher ones count as the last.
pub(crate) const ERROR_CODES: usize = 16;
const WAIT_MICROS: &[u64] = &[
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    3_600_000_000,
];
const DEPTHS: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 10_000, 100_000,
];

//! What a request means for the machine, and what the machine's reply is on the wire.
//!
//! Pure functions between the two vocabularies. The one decision made here is how much before
//! the client's deadline a wait ends.

use std::time::Duration;

use highwater_lock::{ConnectionId, Operation, Rejection, Reply as Outcome, Timestamp};
use highwater_protocol::{ErrorCode, Reply, Request, RequestNumber, Shape};

use crate::desk::waiter;

/// The operation that a request asks for; `None` if it is none for the machine.
pub(crate) fn operation(connection: ConnectionId, request: Request) -> Option<Operation> {
    Some(match request {
        Request::Acquire {
            id,
            keys,
            wait_seconds,
            lease,
        } => Operation::Acquire {
            waiter: waiter(connection, id),
            keys,
            wait: effective_wait(wait_seconds),
            lease: lease.duration(),
        },
        Request::Release { keys, token, .. } => Operation::Release {
            keys,
            token,
            minimum_hold: Duration::ZERO,
        },
        Request::Extend {
            keys, token, lease, ..
        } => Operation::Extend {
            keys,
            token,
            lease: lease.duration(),
        },
        Request::Cancel { acquire, .. } => Operation::Cancel {
            waiter: waiter(connection, acquire),
        },
        Request::Domain { .. } => return None,
    })
}

/// The shape in which a request is answered.
pub(crate) fn shape(request: &Request) -> Shape {
    match request {
        Request::Acquire { keys, .. } | Request::Release { keys, .. } => Shape::of(keys),
        Request::Domain { .. } | Request::Extend { .. } | Request::Cancel { .. } => Shape::One,
    }
}

/// The wire's reply, or `None` if the request has joined a queue and is answered later.
pub(crate) fn reply(
    id: RequestNumber,
    shape: Shape,
    outcome: &Outcome,
    now: Timestamp,
) -> Option<Reply> {
    Some(match outcome {
        Outcome::Granted(grant) => Reply::Granted {
            id,
            shape,
            token: grant.token,
        },
        Outcome::Queued => return None,
        Outcome::TimedOut => Reply::TimedOut { id },
        Outcome::Busy(_) => Reply::Busy { id },
        Outcome::Released => Reply::Released { id, shape },
        Outcome::NotHeld => Reply::NotHeld { id },
        Outcome::GroupMismatch => Reply::Error {
            id,
            code: ErrorCode::GroupMismatch,
        },
        Outcome::Extended { expires } => Reply::Extended {
            id,
            remaining_ms: whole_millis(expires.saturating_since(now)),
        },
        Outcome::Cancelled => Reply::Cancelled {
            id,
            was_queued: true,
        },
        Outcome::NotQueued => Reply::Cancelled {
            id,
            was_queued: false,
        },
        Outcome::Rejected(rejection) => rejected(id, rejection),
        Outcome::Ticked | Outcome::Disconnected { .. } | Outcome::ForceReleased { .. } => {
            unreachable!("no request of a client is answered by {outcome:?}")
        }
    })
}

/// A wait as the machine gets it: it ends a little before the client gives up by itself.
///
/// The published client closes the whole connection when its own deadline passes without an
/// answer, so an answer that is on its way at the deadline comes too late.
fn effective_wait(seconds: u8) -> Duration {
    let wait = Duration::from_secs(seconds.into());
    wait - (wait / 10).min(MOST_EARLY)
}

/// What remains of a lease, never told longer than it is.
fn whole_millis(remaining: Duration) -> u32 {
    u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX)
}

fn rejected(id: RequestNumber, rejection: &Rejection) -> Reply {
    let code = match rejection {
        Rejection::Lease { .. } => ErrorCode::BadLease,
        Rejection::HasSlots { .. } => ErrorCode::BadKey,
        // The limits of this server are narrower than the protocol's, or its tokens are used
        // up: definitely not acquired, and no fault of the request.
        _ => return Reply::Busy { id },
    };
    Reply::Error { id, code }
}

const MOST_EARLY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_before_the_client_gives_up_and_a_try_does_not_wait() {
        assert_eq!(effective_wait(0), Duration::ZERO);
        assert_eq!(effective_wait(1), Duration::from_millis(950));
        assert_eq!(effective_wait(255), Duration::from_millis(254_950));
    }
}

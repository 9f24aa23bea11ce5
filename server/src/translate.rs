//! What a request means for the machine, and what the machine's reply is on the wire.
//!
//! Pure functions between the two vocabularies. The one decision made here is how much before
//! the client's deadline a wait ends.

use std::time::Duration;

use highwater_lock::{
    ConnectionId, FencingToken, Grant, HoldState, Key, KeySet, KeyStatus, Operation, Rejection,
    Reply as Outcome, Timestamp,
};
use highwater_protocol::{
    ErrorCode, KeyState, KeyStatus as WireStatus, Reply, Request, RequestKind, RequestNumber,
};

use crate::desk::waiter;

/// What a request wants of the desk.
#[derive(Debug)]
pub(crate) enum Task {
    /// To know the domain.
    Domain,
    /// To know the state of a key.
    Status { key: Key, from_slot: u32 },
    /// A lock.
    Acquire(Operation),
    /// That this request leaves the queue.
    Cancel { acquire: RequestNumber },
    /// A change to a lock that is held.
    Hold(Operation),
}

/// What a reply must know of its request, also when it comes much later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) id: RequestNumber,
    pub(crate) kind: RequestKind,
    /// Lease time at which the machine handled it.
    pub(crate) at: Timestamp,
}

/// The machine said something that answers no request of this kind: an invariant is broken.
#[derive(Debug)]
pub(crate) struct Misfit;

/// What a request of this connection wants.
pub(crate) fn task(connection: ConnectionId, request: Request) -> Task {
    let waiter = |id| waiter(connection, id);
    match request {
        Request::Acquire {
            id,
            keys,
            wait_seconds,
            lease,
        } => Task::Acquire(Operation::Acquire {
            waiter: waiter(id),
            keys,
            wait: effective_wait(wait_seconds),
            lease: lease.duration(),
        }),
        Request::AcquireTimed {
            id,
            keys,
            wait,
            lease,
        } => Task::Acquire(Operation::Acquire {
            waiter: waiter(id),
            keys,
            wait: wait.duration(),
            lease: lease.duration(),
        }),
        Request::AcquireSlot {
            id,
            name,
            slots,
            wait,
            lease,
        } => Task::Acquire(Operation::AcquireSlot {
            waiter: waiter(id),
            name,
            slots,
            wait: wait.duration(),
            lease: lease.duration(),
        }),
        Request::Release { keys, token, .. } => Task::Hold(Operation::Release {
            keys,
            token,
            minimum_hold: Duration::ZERO,
        }),
        Request::Retain {
            keys,
            token,
            minimum,
            ..
        } => Task::Hold(Operation::Release {
            keys,
            token,
            minimum_hold: minimum.duration(),
        }),
        Request::Extend {
            keys, token, lease, ..
        } => Task::Hold(Operation::Extend {
            keys,
            token,
            lease: lease.duration(),
        }),
        Request::Cancel { acquire, .. } => Task::Cancel { acquire },
        Request::Query { key, from_slot, .. } => Task::Status { key, from_slot },
        Request::Domain { .. } => Task::Domain,
    }
}

/// The wire's reply, or `None` if the request has joined a queue and is answered later.
pub(crate) fn reply(
    asked: Asked,
    outcome: &Outcome,
    now: Timestamp,
) -> Result<Option<Reply>, Misfit> {
    let id = asked.id;
    let reply = match outcome {
        Outcome::Granted(grant) => granted(asked, grant)?,
        Outcome::Queued if asked.kind.is_acquire() => return Ok(None),
        Outcome::TimedOut => Reply::TimedOut { id },
        Outcome::Busy(_) => Reply::Busy { id },
        Outcome::Released => match asked.kind {
            RequestKind::Release(shape) => Reply::Released { id, shape },
            _ => Reply::Retained { id },
        },
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
        Outcome::Rejected(rejection) => rejected(asked, rejection)?,
        Outcome::Queued
        | Outcome::Ticked
        | Outcome::Disconnected { .. }
        | Outcome::ForceReleased { .. } => return Err(Misfit),
    };
    fitting(asked, reply).map(Some)
}

/// The wire's reply to an acquire of any kind that got its lock.
pub(crate) fn granted(asked: Asked, grant: &Grant) -> Result<Reply, Misfit> {
    let (id, token) = (asked.id, grant.token);
    let waited_ms = whole_millis(grant.granted_at.saturating_since(asked.at));
    let reply = match (asked.kind, grant.slot) {
        (RequestKind::Acquire(shape), None) => Reply::Granted { id, shape, token },
        (RequestKind::AcquireTimed, None) => Reply::GrantedTimed {
            id,
            token,
            waited_ms,
        },
        (RequestKind::AcquireSlot, Some(slot)) => Reply::GrantedSlot {
            id,
            token,
            waited_ms,
            slot,
        },
        _ => return Err(Misfit),
    };
    fitting(asked, reply)
}

/// The wire's answer to a query at `now`.
pub(crate) fn status(id: RequestNumber, status: KeyStatus, now: Timestamp) -> Reply {
    let state = status.holder.map_or(KeyState::Free, |holder| {
        let (token, slot) = (holder.token, holder.slot.unwrap_or(0));
        let remaining_ms = whole_millis(holder.state.deadline().saturating_since(now));
        match holder.state {
            HoldState::Held { .. } => KeyState::Held {
                token,
                slot,
                remaining_ms,
            },
            HoldState::Retained { .. } => KeyState::Retained {
                token,
                slot,
                remaining_ms,
            },
        }
    });
    let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
    Reply::Status {
        id,
        status: WireStatus {
            state,
            waiters: number(status.waiters),
            slots: status.slots,
            taken: number(status.taken),
        },
    }
}

/// The release that takes back a grant which nobody has got.
pub(crate) fn give_back(keys: KeySet, token: FencingToken) -> Operation {
    Operation::Release {
        keys,
        token,
        minimum_hold: Duration::ZERO,
    }
}

fn fitting(asked: Asked, reply: Reply) -> Result<Reply, Misfit> {
    if reply.fits(asked.kind) {
        Ok(reply)
    } else {
        Err(Misfit)
    }
}

/// A wait as the machine gets it: it ends a little before the client gives up by itself.
///
/// The published client closes the whole connection when its own deadline passes without an
/// answer, so an answer that is on its way at the deadline comes too late.
fn effective_wait(seconds: u8) -> Duration {
    let wait = Duration::from_secs(seconds.into());
    wait - (wait / 10).min(MOST_EARLY)
}

/// Whole milliseconds of what remains or has passed, never told longer than it is.
fn whole_millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

fn rejected(asked: Asked, rejection: &Rejection) -> Result<Reply, Misfit> {
    let id = asked.id;
    let base = matches!(asked.kind, RequestKind::Acquire(_));
    let code = match rejection {
        Rejection::Lease { .. } => ErrorCode::BadLease,
        // The limits of this server are narrower than the base protocol's, or its tokens are used
        // up: definitely not acquired, and no fault of the request.
        Rejection::Wait { .. } if base => return Ok(Reply::Busy { id }),
        Rejection::TokensExhausted => return Ok(Reply::Busy { id }),
        Rejection::Wait { .. } | Rejection::MinimumHold { .. } => ErrorCode::BadTime,
        Rejection::Slots { .. } => ErrorCode::BadSlots,
        Rejection::HasSlots { .. } if base => ErrorCode::BadKey,
        Rejection::HasSlots { .. }
        | Rejection::HasNoSlots { .. }
        | Rejection::OtherSlots { .. } => ErrorCode::OtherUse,
        _ => return Err(Misfit),
    };
    Ok(Reply::Error { id, code })
}

const MOST_EARLY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use highwater_lock::Busy;

    use super::*;

    #[test]
    fn a_wait_ends_before_the_client_gives_up_and_a_try_does_not_wait() {
        assert_eq!(effective_wait(0), Duration::ZERO);
        assert_eq!(effective_wait(1), Duration::from_millis(950));
        assert_eq!(effective_wait(255), Duration::from_millis(254_950));
    }

    /// Whatever the machine says, no answer is made up: it fits, or it is told apart.
    #[test]
    fn an_answer_that_fits_no_request_of_its_kind_is_told_apart() {
        use highwater_protocol::Shape;
        let longest = Duration::from_secs(1);
        let token = FencingToken::MIN;
        let name = Key::new("k").unwrap();
        let grant = |slot| {
            Outcome::Granted(Grant {
                waiter: waiter(ConnectionId::new(1), RequestNumber::MIN),
                keys: name.clone().into(),
                slot,
                token,
                granted_at: Timestamp::ZERO,
                expires: Timestamp::ZERO,
            })
        };
        let kinds = [
            RequestKind::Acquire(Shape::One),
            RequestKind::AcquireTimed,
            RequestKind::AcquireSlot,
            RequestKind::Release(Shape::Set),
            RequestKind::Retain,
            RequestKind::Extend,
            RequestKind::Cancel,
            RequestKind::Query,
            RequestKind::Domain,
        ];
        // One row per outcome, one column per kind above.
        for (outcome, expected) in [
            (grant(None), "yy......."),
            (grant(Some(3)), "..y......"),
            (Outcome::Queued, "yyy......"),
            (Outcome::TimedOut, "yyy......"),
            (Outcome::Busy(Busy::Keys), "yyy......"),
            (Outcome::Released, "...yy...."),
            (Outcome::NotHeld, "...yyy..."),
            (Outcome::GroupMismatch, "...yyy..."),
            (
                Outcome::Extended {
                    expires: Timestamp::ZERO,
                },
                ".....y...",
            ),
            (Outcome::Cancelled, "......y.."),
            (Outcome::NotQueued, "......y.."),
            (Outcome::Ticked, "........."),
            (Outcome::Disconnected { waiters: 1 }, "........."),
            (
                Outcome::ForceReleased {
                    burned: token,
                    ended: Vec::new(),
                },
                ".........",
            ),
            (Outcome::Rejected(Rejection::Lease { longest }), "yyy..y..."),
            (Outcome::Rejected(Rejection::Wait { longest }), "yyy.y...."),
            (
                Outcome::Rejected(Rejection::MinimumHold { longest }),
                ".yy.y....",
            ),
            (Outcome::Rejected(Rejection::Slots { most: 1 }), "..y......"),
            (
                Outcome::Rejected(Rejection::HasSlots { name: name.clone() }),
                "yyy......",
            ),
            (
                Outcome::Rejected(Rejection::HasNoSlots { name: name.clone() }),
                ".yy......",
            ),
            (Outcome::Rejected(Rejection::TokensExhausted), "yyy......"),
            (Outcome::Rejected(Rejection::DuplicateWaiter), "........."),
        ] {
            let fits: String = kinds
                .iter()
                .map(|kind| {
                    let asked = Asked {
                        id: RequestNumber::MIN,
                        kind: *kind,
                        at: Timestamp::ZERO,
                    };
                    if reply(asked, &outcome, Timestamp::ZERO).is_ok() {
                        'y'
                    } else {
                        '.'
                    }
                })
                .collect();
            assert_eq!(fits, expected, "{outcome:?}");
        }
    }
}

//! The request that is made of a call at the moment of its sending, and the grant it may bring.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, FencingToken, KeySet};
use highwater_protocol::{Extensions, Reply, Request, RequestNumber, SpanMillis};
use tokio::time::Instant;

use super::pending::ExpectedGrant;
use crate::call::Ask;
use crate::extend::Grant;
use crate::limits::{ANSWER_TIME, GRACE, ONE_TRY_BUDGET};
use crate::options::{Terms, whole_millis, whole_seconds};
use crate::shared::Shared;
use crate::system::{self, Moment};
use crate::ticket::Held;

/// A request that may be sent.
pub(super) struct Asked {
    pub(super) request: Request,
    /// How long its answer may take.
    pub(super) answer_time: Duration,
    /// For an acquire.
    pub(super) grant: Option<WantedGrant>,
}

/// What to make of a grant.
#[derive(Debug)]
pub(super) struct WantedGrant {
    keys: KeySet,
    /// From before the first byte is on its way, so never later than when the server counts from.
    sent: Moment,
    lease: Duration,
}

/// What a reply grants.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    token: FencingToken,
    waited: Duration,
    slot: Option<u32>,
}

/// The grant in a reply.
pub(super) fn granted(reply: &Reply) -> Option<Granted> {
    let (token, waited_ms, slot) = match *reply {
        Reply::Granted { token, .. } => (token, 0, None),
        Reply::GrantedTimed {
            token, waited_ms, ..
        } => (token, waited_ms, None),
        Reply::GrantedSlot {
            token,
            waited_ms,
            slot,
            ..
        } => (token, waited_ms, Some(slot)),
        _ => return None,
    };
    let waited = Duration::from_millis(waited_ms.into());
    Some(Granted {
        token,
        waited,
        slot,
    })
}

impl ExpectedGrant {
    /// What the caller gets.
    pub(super) fn held(&self, granted: Granted, shared: &Arc<Shared>, domain: Domain) -> Held {
        let WantedGrant { keys, sent, lease } = &self.grant;
        let granted_at = match granted.waited {
            Duration::ZERO => *sent,
            // No server can have waited for longer than we have.
            waited => sent.plus(waited).min(Moment::now()),
        };
        Held {
            grant: Grant {
                keys: keys.clone(),
                token: granted.token,
                domain,
                slot: granted.slot,
            },
            valid_before: granted_at.plus(*lease),
            min_hold: SpanMillis::ZERO,
            shared: Arc::clone(shared),
            owed: true,
            claimed: false,
        }
    }
}

/// The request for this call; `None` when its wait is over.
pub(super) fn asked(id: RequestNumber, ask: Ask, extensions: Extensions) -> Option<Asked> {
    let request = match ask {
        Ask::Acquire {
            keys,
            slots,
            until,
            terms,
        } => return acquire(id, keys, slots, until, &terms, extensions),
        Ask::Release {
            keys,
            token,
            min_hold: SpanMillis::ZERO,
        } => Request::Release { id, keys, token },
        Ask::Release {
            keys,
            token,
            min_hold: minimum,
        } => Request::Retain {
            id,
            keys,
            token,
            minimum,
        },
        Ask::Extend { keys, token, lease } => Request::Extend {
            id,
            keys,
            token,
            lease,
        },
        Ask::Query { key, from_slot } => Request::Query { id, key, from_slot },
    };
    Some(Asked {
        request,
        answer_time: ANSWER_TIME,
        grant: None,
    })
}

fn acquire(
    id: RequestNumber,
    keys: KeySet,
    slots: Option<NonZeroU32>,
    until: Option<Instant>,
    terms: &Terms,
    extensions: Extensions,
) -> Option<Asked> {
    let left = until.map(|until| until.saturating_duration_since(system::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return None;
    }
    let grant = WantedGrant {
        keys: keys.clone(),
        sent: Moment::now(),
        lease: terms.lease,
    };
    let lease = terms.lease_millis;
    let wait = span(left.unwrap_or_default());
    let (request, answer_time) = match slots {
        Some(slots) => {
            let name = keys.keys()[0].clone();
            let request = Request::AcquireSlot {
                id,
                name,
                slots,
                wait,
                lease,
            };
            (request, wait.duration())
        }
        None if extensions.contains(Extensions::ACQUIRE) => {
            let request = Request::AcquireTimed {
                id,
                keys,
                wait,
                lease,
            };
            (request, wait.duration())
        }
        None => {
            let seconds = whole_seconds(left.unwrap_or_default());
            let wait_seconds = u8::try_from(seconds).unwrap_or(u8::MAX);
            let request = Request::Acquire {
                id,
                keys,
                wait_seconds,
                // Whoever asks has seen that the server can be asked for it.
                lease: terms.lease_seconds?,
            };
            (request, Duration::from_secs(wait_seconds.into()))
        }
    };
    let answer_time = match left {
        Some(_) => answer_time + GRACE,
        None => ONE_TRY_BUDGET,
    };
    Some(Asked {
        request,
        answer_time,
        grant: Some(grant),
    })
}

/// In milliseconds, rounded up: nothing that is left is no wait.
fn span(time: Duration) -> SpanMillis {
    let longest = SpanMillis::new(SpanMillis::MAX).unwrap_or_default();
    let milliseconds = u32::try_from(whole_millis(time)).ok();
    milliseconds.and_then(SpanMillis::new).unwrap_or(longest)
}

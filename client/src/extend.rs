//! Lengthens the lease of a ticket, once or for as long as the ticket lives.
//!
//! An extension carries the token and never shortens a lease, so repeating it is harmless; it is
//! repeated until its answer is certain or its time is over.

use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, FencingToken, KeySet};
use highwater_protocol::{ErrorCode, Extensions, LeaseMillis, Reply};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::call::{Ask, Control, Ended, Waiting};
use crate::life::Life;
use crate::limits::{EXTEND_ATTEMPT, EXTEND_BUDGET, SHORTEST_EXTEND_ATTEMPT};
use crate::pool::{NoSession, Session};
use crate::retry::Retry;
use crate::shared::{Phase, Shared};
use crate::system::{self, Moment};
use crate::{ExtendError, Lost, trace};

/// Whose lease to lengthen.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) keys: KeySet,
    pub(crate) token: FencingToken,
    pub(crate) domain: Domain,
    /// Which of the slots of the only key, if it has some.
    pub(crate) slot: Option<u32>,
}

/// What one question came to.
pub(crate) enum Extension {
    /// The lease lasts at least until then.
    Until(Moment),
    /// The token does not hold the keys.
    NotHeld,
    Refused(ErrorCode),
    /// Not ready, unknown, or without an answer.
    Unknown,
}

/// Asks one time, and waits for the answer until then.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    session: &Session,
    grant: &Grant,
    lease: LeaseMillis,
    by: Instant,
) -> Extension {
    let ask = Ask::Extend {
        keys: grant.keys.clone(),
        token: grant.token,
        lease,
    };
    let (call, waiting) = Waiting::new(shared.next_id(), ask, None);
    // From before the sending, like the validity of a grant.
    let from = Moment::now();
    let sent = timeout_at(by, session.controls.send(Control::Call(call))).await;
    if !matches!(sent, Ok(Ok(()))) {
        return Extension::Unknown;
    }
    match waiting.finish(sleep_until(by), || by).await {
        Ended::Replied(Reply::Extended { remaining_ms, .. }) => {
            let told = Duration::from_millis(remaining_ms.into());
            Extension::Until(from.plus(lease.duration().min(told)))
        }
        Ended::Replied(Reply::NotHeld { .. }) => Extension::NotHeld,
        Ended::Replied(Reply::Error { code, .. })
            if !matches!(code, ErrorCode::NotActive | ErrorCode::NoLeader) =>
        {
            Extension::Refused(code)
        }
        _ => Extension::Unknown,
    }
}

/// Asks until the answer is certain, and moves the end of the ticket.
pub(crate) async fn extend(
    shared: &Arc<Shared>,
    grant: &Grant,
    life: &Life,
    lease: LeaseMillis,
) -> Result<(), ExtendError> {
    let until = life.valid_before().clock();
    let until = until.min(system::now() + EXTEND_BUDGET);
    // The end of the ticket is a better reason than that of the client.
    let over = life.lost().map(ExtendError::Lost);
    let outcome = tokio::select! {
        biased;
        () = shared.reached(Phase::Closing) => Err(over.unwrap_or(ExtendError::Closed)),
        outcome = repeat(shared, grant, life, lease, until) => outcome,
    };
    match &outcome {
        Ok(()) => shared.counts.extended.add(),
        Err(error) => {
            shared.counts.extensions_failed.add();
            trace::not_extended(&grant.keys, grant.token, error);
        }
    }
    outcome
}

async fn repeat(
    shared: &Arc<Shared>,
    grant: &Grant,
    life: &Life,
    lease: LeaseMillis,
    until: Instant,
) -> Result<(), ExtendError> {
    let mut retry = Retry::new();
    // Short enough for a second attempt over the other connection.
    let attempt = lease.duration() / 6;
    let attempt = attempt.clamp(SHORTEST_EXTEND_ATTEMPT, EXTEND_ATTEMPT);
    loop {
        if let Some(lost) = life.lost() {
            return Err(ExtendError::Lost(lost));
        }
        let session = match shared.pool.of(grant.domain, until).await {
            Ok(session) => session,
            Err(NoSession::OtherDomain) => {
                life.end(Lost::DomainChanged);
                return Err(ExtendError::Lost(Lost::DomainChanged));
            }
            Err(_) => return Err(unknown(life)),
        };
        if !session.has(Extensions::EXTEND) {
            return Err(ExtendError::Unsupported);
        }
        let by = until.min(system::now() + attempt);
        match ask(shared, &session, grant, lease, by).await {
            Extension::Until(end) => return life.lengthen(end).map_err(ExtendError::Lost),
            Extension::NotHeld => {
                life.end(Lost::NotHeld);
                return Err(ExtendError::Lost(Lost::NotHeld));
            }
            Extension::Refused(code) => return Err(ExtendError::Rejected(code)),
            Extension::Unknown => {}
        }
        let left = until.saturating_duration_since(system::now());
        if left.is_zero() {
            return Err(unknown(life));
        }
        retry.pause(&shared.pool, &session, left).await;
    }
}

/// Without a certain answer; by now the ticket may have come to its end over it.
fn unknown(life: &Life) -> ExtendError {
    life.lost().map_or(ExtendError::Unknown, ExtendError::Lost)
}

/// Lengthens the lease each time a third of it has passed, until the ticket is lost, the client
/// closes, or it has been held for as long as was allowed. Whoever drops the ticket stops it.
pub(crate) async fn keep(
    shared: Arc<Shared>,
    grant: Grant,
    life: Arc<Life>,
    lease: Duration,
    hold_until: Moment,
) {
    loop {
        // An extension by hand may have moved the end further than this one would.
        let due = life.valid_before().minus(lease - lease / 3);
        if !due.is_over() {
            due.reached().await;
            continue;
        }
        let allowed = hold_until.remaining();
        let is_last = allowed < lease;
        let Some(asked) = whole_millis(lease.min(allowed)) else {
            return;
        };
        if hold_until <= life.valid_before() {
            return;
        }
        match extend(&shared, &grant, &life, asked).await {
            // Held for as long as was allowed: this lease runs out.
            Ok(()) if is_last => return,
            Ok(()) | Err(ExtendError::Unknown) => {}
            Err(_) => return,
        }
    }
}

/// In milliseconds, rounded down; `None` for less than one.
pub(crate) fn whole_millis(time: Duration) -> Option<LeaseMillis> {
    LeaseMillis::new(u32::try_from(time.as_millis()).ok()?)
}

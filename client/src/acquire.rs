//! Takes a lock: finds a connection, asks, and asks again where that is certain to be harmless.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::KeySet;
use highwater_protocol::{ErrorCode, Extensions, Reply};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::call::{Ask, Ended, Waiting};
use crate::client::Client;
use crate::extend::{self, Extension};
use crate::limits::{GRACE, LATE, ONE_TRY_BUDGET};
use crate::options::{AcquireOptions, Terms};
use crate::pool::{NoSession, Session};
use crate::retry::Retry;
use crate::shared::{Phase, Shared};
use crate::system;
use crate::ticket::{Held, Ticket};
use crate::{AcquireError, trace};

/// See [`Client::acquire`].
pub(crate) async fn acquire(
    client: &Client,
    keys: KeySet,
    slots: Option<NonZeroU32>,
    options: &AcquireOptions,
) -> Result<Ticket, AcquireError> {
    let terms = options.check()?;
    let span = trace::acquire_span(&keys, &terms);
    trace::within(span, take(client, keys, slots, terms)).await
}

async fn take(
    client: &Client,
    keys: KeySet,
    slots: Option<NonZeroU32>,
    terms: Terms,
) -> Result<Ticket, AcquireError> {
    let shared = client.shared();
    if shared.phase() > Phase::Open {
        return Err(AcquireError::Closed);
    }
    // A closing client waits for this call, and so for what its end may leave to release.
    let _busy = shared.busy();
    let wanted = Wanted {
        shared,
        keys,
        slots,
        terms,
        until: system::now()
            + if terms.wait.is_zero() {
                ONE_TRY_BUDGET
            } else {
                terms.wait
            },
    };
    let outcome = match wanted.get().await {
        Err(AcquireError::Indeterminate) => Err(AcquireError::Indeterminate),
        // A grant that came while the client was closing is released by dropping it here.
        _ if shared.phase() > Phase::Open => Err(AcquireError::Closed),
        Ok(held) => enough(held, terms.min_work),
        Err(error) => Err(error),
    };
    shared.counts.acquired(&outcome);
    outcome.map(|held| Ticket::new(held, client.clone(), &terms))
}

/// Gives a grant out if enough of its lease is left; otherwise lets it go.
fn enough(mut held: Held, min_work: Duration) -> Result<Held, AcquireError> {
    held.claimed = true;
    let remaining = held.valid_before.remaining();
    if remaining.is_zero() || remaining < min_work {
        return Err(AcquireError::TooShort { remaining });
    }
    Ok(held)
}

struct Wanted<'a> {
    shared: &'a Arc<Shared>,
    keys: KeySet,
    slots: Option<NonZeroU32>,
    terms: Terms,
    until: Instant,
}

/// What one attempt came to.
enum Attempt {
    Granted(Held),
    Failed(AcquireError),
    /// It is certain that nothing is held, and the connection is not the reason to stop.
    Again,
    /// The wait ended before the request was sent.
    OutOfTime,
    /// The server is not ready, and said so.
    NotReady(ErrorCode),
}

impl Wanted<'_> {
    async fn get(&self) -> Result<Held, AcquireError> {
        let mut retry = Retry::new();
        // What to say when the time is over.
        let mut reason = AcquireError::NotConnected;
        loop {
            // A connection that is there is taken without a look at what else has happened.
            if self.shared.phase() > Phase::Open {
                return Err(AcquireError::Closed);
            }
            let session = tokio::select! {
                // What waits for the end of the client is set up only if there is something to wait for.
                biased;
                session = self.shared.pool.any(self.until) => session,
                () = self.shared.reached(Phase::Closing) => return Err(AcquireError::Closed),
            };
            let session = match session {
                Ok(session) => session,
                Err(NoSession::Unauthenticated) => return Err(AcquireError::Unauthenticated),
                Err(_) => return Err(reason),
            };
            if !session.has(self.needs()) {
                return Err(AcquireError::Unsupported);
            }
            let is_ready = match self.attempt(&session).await {
                Attempt::Granted(held) => return Ok(held),
                Attempt::Failed(error) => return Err(error),
                Attempt::Again => true,
                Attempt::OutOfTime if reason == AcquireError::NotConnected => {
                    return Err(AcquireError::NotSent);
                }
                Attempt::OutOfTime => return Err(reason),
                Attempt::NotReady(code) => {
                    reason = AcquireError::Rejected(code);
                    false
                }
            };
            let left = self.until.saturating_duration_since(system::now());
            if left.is_zero() {
                return Err(reason);
            }
            if !is_ready {
                retry.pause(&self.shared.pool, &session, left).await;
            }
        }
    }

    fn needs(&self) -> Extensions {
        match self.slots {
            Some(_) => self.terms.needs().and(Extensions::SLOTS),
            None => self.terms.needs(),
        }
    }

    /// Whether the server counts the wait in milliseconds, and tells how long it was.
    fn is_timed(&self, session: &Session) -> bool {
        self.slots.is_some() || session.has(Extensions::ACQUIRE)
    }

    async fn attempt(&self, session: &Arc<Session>) -> Attempt {
        let one_try = self.terms.wait.is_zero();
        let ask = Ask::Acquire {
            keys: self.keys.clone(),
            slots: self.slots,
            until: (!one_try).then_some(self.until),
            terms: self.terms,
        };
        let (call, waiting) = Waiting::new(self.shared.next_id(), ask, Some(Arc::clone(session)));
        let asked = system::now();
        tokio::select! {
            biased;
            sent = timeout_at(self.until, session.acquires.send(call)) => match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Attempt::Again,
                Err(_) => return Attempt::OutOfTime,
            },
            () = self.shared.reached(Phase::Closing) => {
                return Attempt::Failed(AcquireError::Closed);
            }
        }
        // Until then the server's own answer should come; then it is told to stop.
        let patience = match session.has(Extensions::CANCEL) {
            true if self.is_timed(session) => LATE,
            // It counts whole seconds, rounded up.
            true => Duration::ZERO,
            false => GRACE,
        };
        let impatient = async {
            tokio::select! {
                () = self.shared.reached(Phase::Closing) => {}
                () = sleep_until(self.until + patience) => {}
            }
        };
        let grace = || system::now().min(self.until) + GRACE;
        let ended = waiting.finish(impatient, grace).await;
        match ended {
            Ended::Granted(held) => self.confirmed(held, session, asked).await,
            Ended::Replied(reply) => judge(reply),
            Ended::NeverSent if self.shared.phase() > Phase::Open => {
                Attempt::Failed(AcquireError::Closed)
            }
            Ended::NeverSent if system::now() >= self.until => Attempt::OutOfTime,
            Ended::NeverSent => Attempt::Again,
            Ended::Lost => Attempt::Failed(AcquireError::Indeterminate),
        }
    }

    /// Asks for the lease once more when too little of it may be left.
    ///
    /// A server without times in milliseconds does not tell when in the wait the grant was, so the
    /// lease is counted from before the wait, and may look used up. An extension never shortens a
    /// lease and is counted from its own sending.
    async fn confirmed(&self, mut held: Held, session: &Session, asked: Instant) -> Attempt {
        let waited = system::now().saturating_duration_since(asked);
        let min_work = self.terms.min_work;
        let is_short = !min_work.is_zero() && held.valid_before.remaining() < min_work;
        let is_unsure = !self.is_timed(session) && waited >= self.terms.lease / 4;
        if !session.has(Extensions::EXTEND) || !(is_short || is_unsure) {
            return Attempt::Granted(held);
        }
        let lease = self.terms.lease_millis;
        let by = system::now() + GRACE;
        match extend::ask(self.shared, session, &held.grant, lease, by).await {
            Extension::Until(end) => {
                // The lease on the wire was rounded up; the ticket counts what was asked for.
                let rounded = lease.duration().saturating_sub(self.terms.lease);
                held.valid_before = held.valid_before.max(end.minus(rounded));
                Attempt::Granted(held)
            }
            // It ended before it arrived. Nothing is held: stand in the queue again.
            Extension::NotHeld => {
                held.owed = false;
                Attempt::Again
            }
            Extension::Refused(_) | Extension::Unknown => Attempt::Granted(held),
        }
    }
}

fn judge(reply: Reply) -> Attempt {
    match reply {
        Reply::TimedOut { .. } => Attempt::Failed(AcquireError::TimedOut),
        Reply::Busy { .. } => Attempt::Failed(AcquireError::Busy),
        Reply::Error {
            code: code @ (ErrorCode::NotActive | ErrorCode::NoLeader),
            ..
        } => Attempt::NotReady(code),
        // A single server never knows a leader, so this is all that can be said.
        Reply::Moved { .. } => Attempt::NotReady(ErrorCode::NoLeader),
        Reply::Error { code, .. } => Attempt::Failed(AcquireError::Rejected(code)),
        // Indeterminate; any other kind does not fit and has ended the connection.
        _ => Attempt::Failed(AcquireError::Indeterminate),
    }
}

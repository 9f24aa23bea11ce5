//! Gives a lock back, for a caller who waits for it or in the background.
//!
//! A release carries the token, so repeating it can never hurt a successor; it is repeated until
//! its answer is certain or its time is over. It goes only to the domain of its token.

use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Domain, FencingToken, KeySet};
use highwater_protocol::{ErrorCode, Extensions, Reply, SpanMillis};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::call::{Ask, Control, Ended, Waiting};
use crate::limits::{CLOSE_CALLS, CLOSE_RELEASES, RELEASE_ATTEMPT, RUNNING_RELEASES};
use crate::pool::{NoSession, Session};
use crate::retry::Retry;
use crate::shared::{Phase, Shared};
use crate::{Release, ReleaseError, system, trace};

/// How long a release may take, counted from the request for it.
pub(crate) const BUDGET: Duration = Duration::from_secs(5);

/// What to release, and until when to try.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) keys: KeySet,
    pub(crate) token: FencingToken,
    pub(crate) domain: Domain,
    pub(crate) until: Instant,
    /// Counted from the grant, by the server.
    pub(crate) min_hold: SpanMillis,
}

/// Releases until the answer is certain.
pub(crate) async fn release(shared: &Arc<Shared>, order: &Order) -> Result<Release, ReleaseError> {
    release_counting(shared, order).await.1
}

/// Releases until the answer is certain, and tells how many attempts before may have been done: what
/// was released by one without an answer is found not to be held by the next one.
pub(crate) async fn release_counting(
    shared: &Arc<Shared>,
    order: &Order,
) -> (u32, Result<Release, ReleaseError>) {
    let mut unanswered = 0;
    let outcome = tokio::select! {
        biased;
        outcome = repeat(shared, order, &mut unanswered) => outcome,
        () = shared.reached(Phase::Closed) => Err(ReleaseError::Closed),
    };
    shared.counts.released(outcome);
    (unanswered, outcome)
}

async fn repeat(
    shared: &Arc<Shared>,
    order: &Order,
    unanswered: &mut u32,
) -> Result<Release, ReleaseError> {
    let mut retry = Retry::new();
    loop {
        let session = match shared.pool.of(order.domain, order.until).await {
            Ok(session) => session,
            Err(NoSession::OtherDomain) => return Ok(Release::NotCurrent),
            Err(_) => return Err(ReleaseError::Unknown),
        };
        match attempt(shared, order, &session).await {
            Ended::Replied(Reply::Released { .. } | Reply::Retained { .. }) => {
                return Ok(Release::Released);
            }
            Ended::Replied(Reply::NotHeld { .. }) => return Ok(Release::NotCurrent),
            // Another node leads, or none: certainly not done.
            Ended::NeverSent | Ended::Replied(Reply::Moved { .. }) => {}
            Ended::Replied(Reply::Error { code, .. }) => match code {
                ErrorCode::NotActive | ErrorCode::NoLeader => {}
                code => return Err(ReleaseError::Rejected(code)),
            },
            // Unknown, or without an answer.
            _ => *unanswered += 1,
        }
        let left = order.until.saturating_duration_since(system::now());
        if left.is_zero() {
            return Err(ReleaseError::Unknown);
        }
        retry.pause(&shared.pool, &session, left).await;
    }
}

async fn attempt(shared: &Arc<Shared>, order: &Order, session: &Session) -> Ended {
    let until = order.until.min(system::now() + RELEASE_ATTEMPT);
    let ask = Ask::Release {
        keys: order.keys.clone(),
        token: order.token,
        min_hold: order.min_hold,
    };
    if order.min_hold > SpanMillis::ZERO && !session.has(Extensions::MINIMUM_HOLD) {
        // Freed too early is worse than freed by the end of the lease.
        return Ended::NeverSent;
    }
    let (call, waiting) = Waiting::new(shared.next_id(), ask, None);
    let sent = timeout_at(until, session.controls.send(Control::Call(call))).await;
    if !matches!(sent, Ok(Ok(()))) {
        return Ended::NeverSent;
    }
    waiting.finish(sleep_until(until), || until).await
}

/// Releases dropped tickets until the client closes, then what is left, then ends the client.
pub(crate) async fn work(shared: Arc<Shared>, mut orders: mpsc::Receiver<Order>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(order) = orders.recv(), if running.len() < RUNNING_RELEASES => {
                start(&mut running, &shared, order);
            }
            Some(_) = running.join_next(), if !running.is_empty() => {}
            () = shared.reached(Phase::Closing) => break,
        }
    }
    // Calls that are under way may still bring grants that nobody wants any more.
    let _ = timeout(CLOSE_CALLS, shared.idle()).await;
    let rest = async {
        loop {
            if running.len() < RUNNING_RELEASES
                && let Ok(order) = orders.try_recv()
            {
                start(&mut running, &shared, order);
            } else if running.join_next().await.is_none() {
                break;
            }
        }
    };
    if timeout(CLOSE_RELEASES - CLOSE_CALLS, rest).await.is_err() {
        trace::closed_with_releases();
    }
    shared.advance(Phase::Closed);
}

fn start(running: &mut JoinSet<()>, shared: &Arc<Shared>, order: Order) {
    let shared = Arc::clone(shared);
    running.spawn(async move {
        match release(&shared, &order).await {
            Ok(release) => trace::let_go(&order, release),
            Err(error) => trace::not_let_go(&order, error),
        }
    });
}

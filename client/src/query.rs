//! Asks what holds a key. That changes nothing, so it is asked until there is an answer.

use std::sync::Arc;

use highwater_lock::Key;
use highwater_protocol::{ErrorCode, Extensions, KeyStatus, Reply};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::QueryError;
use crate::call::{Ask, Control, Ended, Waiting};
use crate::limits::{QUERY_ATTEMPT, QUERY_BUDGET};
use crate::pool::{NoSession, Session};
use crate::retry::Retry;
use crate::shared::{Phase, Shared};
use crate::system;

/// See [`Client::query`](crate::Client::query).
pub(crate) async fn query(
    shared: &Arc<Shared>,
    key: &Key,
    from_slot: u32,
) -> Result<KeyStatus, QueryError> {
    tokio::select! {
        biased;
        () = shared.reached(Phase::Closing) => Err(QueryError::Closed),
        outcome = repeat(shared, key, from_slot) => outcome,
    }
}

async fn repeat(shared: &Arc<Shared>, key: &Key, from_slot: u32) -> Result<KeyStatus, QueryError> {
    let until = system::now() + QUERY_BUDGET;
    let mut retry = Retry::new();
    loop {
        let session = match shared.pool.any(until).await {
            Ok(session) => session,
            Err(NoSession::Unauthenticated) => return Err(QueryError::Unauthenticated),
            Err(_) => return Err(QueryError::NoAnswer),
        };
        if !session.has(Extensions::QUERY) {
            return Err(QueryError::Unsupported);
        }
        let key = key.clone();
        match attempt(shared, &session, Ask::Query { key, from_slot }, until).await {
            Some(Reply::Status { status, .. }) => return Ok(status),
            Some(Reply::Error { code, .. })
                if !matches!(code, ErrorCode::NotActive | ErrorCode::NoLeader) =>
            {
                return Err(QueryError::Rejected(code));
            }
            // Not ready, or without an answer.
            _ => {}
        }
        let left = until.saturating_duration_since(system::now());
        if left.is_zero() {
            return Err(QueryError::NoAnswer);
        }
        retry.pause(&shared.pool, &session, left).await;
    }
}

async fn attempt(
    shared: &Arc<Shared>,
    session: &Session,
    ask: Ask,
    until: Instant,
) -> Option<Reply> {
    let until = until.min(system::now() + QUERY_ATTEMPT);
    let (call, waiting) = Waiting::new(shared.next_id(), ask, None);
    let sent = timeout_at(until, session.controls.send(Control::Call(call))).await;
    if !matches!(sent, Ok(Ok(()))) {
        return None;
    }
    match waiting.finish(sleep_until(until), || until).await {
        Ended::Replied(reply) => Some(reply),
        _ => None,
    }
}

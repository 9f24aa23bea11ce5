//! What happens, told to whoever reads along. An event can be missed, and it is told how many were.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use highwater_lock::{FencingToken, Key};
use tokio::sync::broadcast::{self, error::RecvError};

use super::{BackendError, BoxFuture, LeaseEnd, NodeId, TermOutcome};
use crate::Lost;

/// Something that happened to one name at one elector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderEvent {
    /// The name, with its tenant.
    pub name: Key,
    /// The candidate of this elector.
    pub node: NodeId,
    /// What happened.
    pub what: Occurrence,
}

/// What happened. Each [`Elected`](Occurrence::Elected) is followed by exactly one
/// [`Revoked`](Occurrence::Revoked) or [`Ended`](Occurrence::Ended) of the same token, also if the
/// backend panics, and if the runtime ends before the release has an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occurrence {
    /// A term began.
    Elected {
        /// Its token.
        token: FencingToken,
        /// Which slot, for a group.
        slot: Option<u32>,
    },
    /// Others led for the whole wait.
    Skipped,
    /// The lock service failed before anybody was elected.
    Failed {
        /// How.
        error: BackendError,
    },
    /// An action runs without a lock, because its policy is to fail open.
    Unprotected,
    /// A lease was extended, by itself or by hand.
    Extended {
        /// Of the term.
        token: FencingToken,
        /// What is left of the lease now.
        remaining: Duration,
    },
    /// A lease was not extended. It is tried again while the lease lasts.
    ExtensionFailed {
        /// Of the term.
        token: FencingToken,
        /// Why.
        error: BackendError,
    },
    /// A lease was lost: this leadership is over, at once.
    Revoked {
        /// Of the term.
        token: FencingToken,
        /// Why.
        reason: Lost,
    },
    /// A lease was given back: this leadership is over. Told after the answer of the lock service.
    Ended {
        /// Of the term.
        token: FencingToken,
        /// How the action ended.
        outcome: TermOutcome,
        /// What came of the release.
        end: LeaseEnd,
    },
}

/// Reads along, from the moment it was made. At most 256 events are kept for it.
///
/// It is a [`Stream`] too.
pub struct Events(BoxFuture<(Received, broadcast::Receiver<LeaderEvent>)>);

type Received = Result<LeaderEvent, RecvError>;

impl Events {
    pub(super) fn new(mut events: broadcast::Receiver<LeaderEvent>) -> Self {
        Self(Box::pin(async move { (events.recv().await, events) }))
    }

    /// Waits for the next event; `None` when the elector, all its clones and terms, and every
    /// [`LeaderWatch`](super::LeaderWatch) of it are gone.
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// So many events were missed. Look at [`LeaderWatch::leading`](super::LeaderWatch::leading) for what is so now; the next call
    /// goes on with the oldest event that is left.
    pub async fn next(&mut self) -> Option<Result<LeaderEvent, Lagged>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Events {
    type Item = Result<LeaderEvent, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (received, events) = ready!(self.0.as_mut().poll(context));
        *self = Self::new(events);
        Poll::Ready(match received {
            Ok(event) => Some(Ok(event)),
            Err(RecvError::Lagged(missed)) => Some(Err(Lagged { missed })),
            Err(RecvError::Closed) => None,
        })
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// A reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missed} events were missed")]
pub struct Lagged {
    /// How many events were dropped.
    pub missed: u64,
}

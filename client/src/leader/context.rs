//! What an action sees of its leadership.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{Fence, FencingToken, Key};
use tokio::sync::watch;

use super::term::Term;
use super::{NodeId, NotLeader, RenewError};

/// What an action sees of its leadership.
///
/// Clone it for the parts of the work. As long as a clone is alive the work counts as not at rest: if
/// the action is cancelled, its lease is kept for the parts that are still at work, see
/// [`LeaderGuard`](super::LeaderGuard).
#[derive(Clone)]
pub struct LeaderContext(Inner);

#[derive(Clone)]
enum Inner {
    Leader {
        term: Arc<Term>,
        // Counts the parts of the work.
        _work: watch::Receiver<()>,
    },
    /// Without a lock, because the policy is to fail open.
    Unprotected { name: Key, node: NodeId },
}

impl LeaderContext {
    pub(super) fn of(term: Arc<Term>, work: watch::Receiver<()>) -> Self {
        Self(Inner::Leader { term, _work: work })
    }

    pub(super) fn unprotected(name: Key, node: NodeId) -> Self {
        Self(Inner::Unprotected { name, node })
    }

    fn term(&self) -> Option<&Arc<Term>> {
        match &self.0 {
            Inner::Leader { term, .. } => Some(term),
            Inner::Unprotected { .. } => None,
        }
    }

    /// What is led, with its tenant.
    pub fn name(&self) -> &Key {
        match &self.0 {
            Inner::Leader { term, .. } => term.name(),
            Inner::Unprotected { name, .. } => name,
        }
    }

    /// Who leads.
    pub fn node(&self) -> &NodeId {
        match &self.0 {
            Inner::Leader { term, .. } => term.node(),
            Inner::Unprotected { node, .. } => node,
        }
    }

    /// What every transaction that writes under this leadership offers to the database. Only this
    /// shuts out a leader that was replaced and does not know it yet.
    ///
    /// `None` when the action runs without a lock
    /// ([`FailurePolicy::FailOpen`](super::FailurePolicy::FailOpen)), and never otherwise.
    pub fn fence(&self) -> Option<Fence> {
        self.term().map(|term| term.grant().fence())
    }

    /// The fencing token; `None` as for [`LeaderContext::fence`].
    pub fn token(&self) -> Option<FencingToken> {
        self.term().map(|term| term.grant().token)
    }

    /// Which of the slots of a group is led, from 0 up.
    pub fn slot(&self) -> Option<u32> {
        self.term().and_then(|term| term.grant().slot)
    }

    /// Whether this is still the leader, as far as this process can know. It looks at the clock, so it
    /// is right also after the process or its runtime stood still. Good for giving up early, before
    /// each step; only the fence makes a write safe.
    ///
    /// An action that runs without a lock has none to lose: there it is always `Ok`.
    ///
    /// # Errors
    /// Why it is not. That never changes back.
    pub fn check(&self) -> Result<(), NotLeader> {
        self.term().map_or(Ok(()), |term| term.check())
    }

    /// Completes when this is not the leader any more, and says why.
    ///
    /// When the time of the lease is over, that is a twentieth of the lease (half a second at most)
    /// before the lock service can elect somebody else, as long as this process runs: so long the
    /// parts of the work have to stop in. The lease is given back sooner only if no context is alive.
    /// It is told by a timer of the Tokio runtime that polls the future, also if the runtime in which
    /// the lock was taken is gone.
    ///
    /// A lease that an operator takes away, or a service that forgets it, is noticed later: by the
    /// next extension, when the client is connected to a service that has started anew, or else by the
    /// release. Somebody else may lead by then.
    ///
    /// Dropping the future changes nothing. An action without a lock waits for ever.
    pub fn lost(&self) -> impl Future<Output = NotLeader> + Send + use<> {
        let term = self.term().cloned();
        async move {
            match term {
                Some(term) => term.not_leader().await,
                None => pending().await,
            }
        }
    }

    /// Lengthens the lease, so that the leadership lasts for at least about `lease` from now, 1 ms to
    /// 1 h. It never shortens it. If that is beyond the next extension that comes by itself, that one
    /// waits until a third of its lease has passed again.
    ///
    /// Dropping the future leaves open whether the lock service has lengthened it; the leadership then
    /// counts what it counted before. One that is kept and not polled holds nothing up: not the
    /// extensions of others, and not the release, which ends it.
    ///
    /// # Errors
    /// See [`RenewError`]. A lost leadership is never revived.
    pub async fn extend(&self, lease: Duration) -> Result<(), RenewError> {
        match self.term() {
            Some(term) => term.extend_by_hand(lease).await,
            None => Err(RenewError::Unprotected),
        }
    }

    /// How long the leadership lasts here if it is not extended: until a twentieth of the lease (half
    /// a second at most) before the end of the lease. Zero when it is over; [`Duration::MAX`] without
    /// a lock.
    pub fn remaining(&self) -> Duration {
        let Some(term) = self.term() else {
            return Duration::MAX;
        };
        let leading = term.leading();
        leading.map(|leading| leading.remaining).unwrap_or_default()
    }
}

impl fmt::Debug for LeaderContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderContext")
            .field("name", self.name())
            .field("node", self.node())
            .field("token", &self.token())
            .field("slot", &self.slot())
            .finish_non_exhaustive()
    }
}

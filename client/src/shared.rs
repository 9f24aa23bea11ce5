//! What callers, tickets and background tasks of one client have in common.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use highwater_protocol::RequestNumber;
use highwater_protocol::handshake::Node;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Notify, watch};

use crate::pool::Pool;
use crate::release::Order;
use crate::setup::Target;
use crate::stats::Counts;
use crate::trace;

/// The life of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Calls are welcome.
    Open,
    /// No new calls; releases are still done.
    Closing,
    /// Connections end.
    Closed,
}

/// Held by every part of a client.
pub(crate) struct Shared {
    /// Of a single server one, of a cluster one for each slot.
    targets: Vec<Target>,
    pub(crate) pool: Pool,
    pub(crate) phase: watch::Sender<Phase>,
    /// Acquires that may still bring a grant, with or without a caller, and releases that somebody
    /// waits for.
    busy: Arc<UnderWay>,
    releases: mpsc::Sender<Order>,
    next_id: AtomicU64,
    pub(crate) counts: Counts,
    /// Where the tasks of this client live.
    pub(crate) runtime: Handle,
}

impl Shared {
    /// In the current runtime.
    pub(crate) fn new(targets: Vec<Target>, pool: Pool, releases: mpsc::Sender<Order>) -> Self {
        Self {
            targets,
            pool,
            phase: watch::Sender::new(Phase::Open),
            busy: Arc::default(),
            releases,
            // The first one is for the question that opens a connection.
            next_id: AtomicU64::new(2),
            counts: Counts::default(),
            runtime: Handle::current(),
        }
    }

    /// Where a connection leads to.
    pub(crate) fn target(&self, index: usize) -> &Target {
        &self.targets[index % self.targets.len()]
    }

    /// How many nodes the cluster has; `None` for a single server.
    pub(crate) fn nodes(&self) -> Option<usize> {
        let single = self.targets[0].node == Node::Single;
        (!single).then_some(self.targets.len())
    }

    /// A number for a request, unique on all connections.
    pub(crate) fn next_id(&self) -> RequestNumber {
        loop {
            // Skips zero should the counter ever come around.
            if let Some(id) = RequestNumber::new(self.next_id.fetch_add(1, Ordering::Relaxed)) {
                return id;
            }
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Completes when this phase or a later one has begun.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        let reached = phases.wait_for(|current| *current >= phase).await;
        reached.expect("the sender is part of self");
    }

    /// Goes to a phase, unless a later one has begun.
    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = *current < phase;
            *current = phase.max(*current);
            later
        });
    }

    /// Releases in the background, best effort.
    pub(crate) fn release_later(&self, order: Order) {
        match self.releases.try_send(order) {
            Ok(()) => {}
            Err(TrySendError::Full(order)) => {
                self.counts.releases_dropped.add();
                trace::too_many_dropped(&order);
            }
            Err(TrySendError::Closed(order)) => {
                self.counts.releases_dropped.add();
                trace::dropped_after_the_end(&order);
            }
        }
    }

    /// Marks an acquire or a release as under way for as long as the mark lives.
    pub(crate) fn busy(&self) -> Busy {
        self.busy.count.fetch_add(1, Ordering::SeqCst);
        Busy(Arc::clone(&self.busy))
    }

    /// Completes when nothing is under way that a closing client waits for.
    pub(crate) async fn idle(&self) {
        loop {
            let mut ended = pin!(self.busy.ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            if self.busy.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// How much is under way. It changes with every call, and almost never does anybody wait for it.
#[derive(Debug, Default)]
struct UnderWay {
    count: AtomicUsize,
    ended: Notify,
}

/// See [`Shared::busy`].
#[derive(Debug)]
pub(crate) struct Busy(Arc<UnderWay>);

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

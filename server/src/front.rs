//! Where the requests of clients go: to the desk of a single server, or to that of a cluster node.
//!
//! Connections, listeners and the admin side see no difference. What only one of the two can do is
//! asked of it by name.

use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{ConnectionId, Domain, Key, Timestamp};
use highwater_protocol::Incoming;
use highwater_protocol::handshake::Node;

#[cfg(feature = "cluster")]
use crate::cluster;
use crate::desk::{Counts, Desk, Forced, IdInUse, Lock, Names, NotForced, Page, Readings};
use crate::outbox::{Outbox, UnsentGrant};
use crate::readiness::Readiness;
use crate::storage::StorageCounts;

/// See the module's description.
pub(crate) enum Front {
    Single(Box<Desk>),
    #[cfg(feature = "cluster")]
    Cluster(Box<cluster::Running>),
}

macro_rules! forward {
    ($self:ident, $desk:ident => $call:expr) => {
        match $self {
            Self::Single($desk) => $call,
            #[cfg(feature = "cluster")]
            Self::Cluster(running) => {
                let $desk = &running.desk;
                $call
            }
        }
    };
}

impl Front {
    /// What a client is told that stands here.
    pub(crate) fn node(&self) -> Node {
        match self {
            Self::Single(_) => Node::Single,
            #[cfg(feature = "cluster")]
            Self::Cluster(running) => Node::Cluster {
                identity: *running.desk.domain().as_bytes(),
                slot: running.slot,
            },
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        forward!(self, desk => desk.domain())
    }

    pub(crate) fn counts(&self) -> Counts {
        forward!(self, desk => desk.counts())
    }

    /// How long ago this moment of lease time was.
    pub(crate) fn since(&self, moment: Timestamp) -> Duration {
        forward!(self, desk => desk.since(moment))
    }

    /// Enters a connection; replies to it will come into the box.
    pub(crate) fn connect(&self, outbox: Arc<Outbox>) -> ConnectionId {
        forward!(self, desk => desk.connect(outbox))
    }

    /// Handles what a connection sent. The replies come into its box, now or later; into the box it has
    /// to look afterwards.
    pub(crate) fn submit(
        &self,
        connection: ConnectionId,
        requests: Vec<Incoming>,
    ) -> Result<(), IdInUse> {
        forward!(self, desk => desk.submit(connection, requests))
    }

    /// Ends a connection, with the grants that never left.
    pub(crate) fn disconnect(&self, connection: ConnectionId, undelivered: Vec<UnsentGrant>) {
        forward!(self, desk => desk.disconnect(connection, undelivered));
    }

    pub(crate) fn is_broken(&self) -> bool {
        forward!(self, desk => desk.is_broken())
    }

    pub(crate) fn readiness(&self) -> Readiness {
        forward!(self, desk => desk.readiness())
    }

    pub(crate) fn readings(&self) -> Readings {
        forward!(self, desk => desk.readings())
    }

    /// See [`Desk::look`].
    pub(crate) fn look(&self, from: usize, page: &mut Page) -> Option<usize> {
        match self {
            Self::Single(desk) => desk.look(from, page),
            #[cfg(feature = "cluster")]
            Self::Cluster(running) => running.desk.look_for(from, page),
        }
    }

    pub(crate) fn names(&self, keys: &[Key]) -> Names {
        forward!(self, desk => desk.names(keys))
    }

    pub(crate) fn lock(&self, key: &Key, from_slot: u32, most: usize) -> Option<Lock> {
        forward!(self, desk => desk.lock(key, from_slot, most))
    }

    /// See [`Desk::force_release`]. In a cluster the leader does it, through the log: dropping the
    /// future does not take it back.
    pub(crate) async fn force_release(&self, key: Key) -> Result<Forced, NotForced> {
        match self {
            Self::Single(desk) => desk.force_release(key),
            #[cfg(feature = "cluster")]
            Self::Cluster(running) => running.desk.force_release(key).await,
        }
    }

    pub(crate) fn storage_counts(&self) -> StorageCounts {
        self.single().map(Desk::storage_counts).unwrap_or_default()
    }

    /// The desk of a single server.
    pub(crate) fn single(&self) -> Option<&Desk> {
        match self {
            Self::Single(desk) => Some(desk),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => None,
        }
    }

    /// The node of a cluster.
    #[cfg(feature = "cluster")]
    pub(crate) fn cluster(&self) -> Option<&cluster::Running> {
        match self {
            Self::Single(_) => None,
            Self::Cluster(running) => Some(running),
        }
    }
}

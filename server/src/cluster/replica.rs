//! The machine as the engine sees it: entries in, snapshots out and in.

use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use highwater_lock::{HashSeed, Machine};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};

use super::desk::{Desk, decisions};
use super::rules;
use super::snapshots::Snapshots;
use super::types::{
    LogId, Payload, Snapshot, SnapshotBytes, SnapshotMeta, StoredMembership, Types,
};

/// See the module's description.
#[derive(Debug)]
pub(super) struct Replica {
    desk: Arc<Desk>,
    seed: HashSeed,
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshots: Snapshots,
}

impl Replica {
    /// The replica at its beginning; the engine brings it up to what the snapshot and the log say.
    pub(super) fn new(desk: Arc<Desk>, seed: HashSeed, snapshots: Snapshots) -> Self {
        Self {
            desk,
            seed,
            applied: None,
            membership: StoredMembership::default(),
            snapshots,
        }
    }
}

impl RaftStateMachine<Types> for Replica {
    type SnapshotData = SnapshotBytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let position = entry.log_id.index();
            decisions::entry(position, entry.log_id.committed_leader_id().term);
            self.applied = Some(entry.log_id);
            match entry.payload {
                Payload::Blank => {}
                Payload::Normal(batch) => {
                    let applied = self.desk.apply(position, &batch);
                    applied.map_err(io::Error::other)?;
                }
                Payload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            meta: SnapshotMeta {
                last_log_id: self.applied,
                last_membership: self.membership.clone(),
            },
            machine: self.desk.snapshot().map_err(io::Error::other),
            snapshots: self.snapshots.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        bytes: SnapshotBytes,
    ) -> Result<(), io::Error> {
        let machine = Machine::restore_seeded(&bytes, rules::limits(), self.seed);
        let machine = machine.map_err(io::Error::other)?;
        let snapshot = Snapshot {
            meta: meta.clone(),
            snapshot: bytes,
        };
        self.snapshots.store(snapshot).await?;
        self.desk.replace(machine).map_err(io::Error::other)?;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.snapshots.newest())
    }
}

/// A snapshot on its way to the disk.
pub(super) struct Builder {
    meta: SnapshotMeta,
    machine: Result<Vec<u8>, io::Error>,
    snapshots: Snapshots,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotBytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let machine = std::mem::replace(&mut self.machine, Ok(Vec::new()))?;
        let snapshot = Snapshot {
            meta: self.meta.clone(),
            snapshot: Arc::new(machine),
        };
        self.snapshots.store(snapshot.clone()).await?;
        Ok(snapshot)
    }
}

//! The consensus engine's types, as this server fills them in.

use std::fmt;

use highwater_protocol::handshake::Slot;
use openraft::impls::leader_id_std;
use openraft::type_config::alias;

use super::batch::Sealed;
use super::replica::Replica;
use super::status::Place;

openraft::declare_raft_types!(
    /// A log of batches, one leader per term.
    pub(super) Types:
        D = Sealed,
        R = (),
        NodeId = u64,
        Node = Address,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
);

pub(super) type Raft = openraft::Raft<Types, Replica>;
pub(super) type Entry = alias::EntryOf<Types>;
pub(super) type Payload = openraft::EntryPayload<Sealed, u64, Address>;
pub(super) type Vote = alias::VoteOf<Types>;
pub(super) type LogId = alias::LogIdOf<Types>;
pub(super) type StoredMembership = alias::StoredMembershipOf<Types>;
pub(super) type Membership = openraft::Membership<u64, Address>;
pub(super) type SnapshotMeta = alias::SnapshotMetaOf<Types>;
pub(super) type Snapshot = alias::SnapshotOf<Types, SnapshotBytes>;

/// The machine's own snapshot.
pub(super) type SnapshotBytes = std::sync::Arc<Vec<u8>>;

/// Where the peers of a member reach it, `HOST:PORT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Address(pub(super) String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who a process is in its cluster: the fixed slot, and which of the nodes that have had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Member {
    pub(super) slot: Slot,
    /// From 1 up; a node that takes the slot over has a higher one.
    pub(super) generation: u64,
}

impl Member {
    pub(super) const fn first(slot: Slot) -> Self {
        Self {
            slot,
            generation: 1,
        }
    }

    /// The name that the engine knows it by.
    pub(super) const fn id(self) -> u64 {
        self.generation << 8 | self.slot.get() as u64
    }

    pub(super) fn from_id(id: u64) -> Option<Self> {
        let slot = Slot::new((id & 0xff) as u8)?;
        let generation = id >> 8;
        (generation > 0).then_some(Self { slot, generation })
    }
}

impl From<Member> for Place {
    fn from(member: Member) -> Self {
        Self {
            slot: member.slot.get(),
            generation: member.generation,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} generation {}", self.slot.get(), self.generation)
    }
}

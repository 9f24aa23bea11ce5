//! What a node says of itself to an operator.

use std::collections::BTreeMap;

use super::clocks::ClockStatus;
use serde::{Deserialize, Serialize};

/// How one node is, and what it knows of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its fixed place.
    pub slot: u8,
    /// Which of the nodes that have had this slot it is, counted from 1; 0 for a process that has no
    /// part in the cluster yet.
    pub generation: u64,
    /// What it does now.
    pub role: NodeRole,
    /// The term it is in: each election has a higher one.
    pub term: u64,
    /// The slot of the leader, if it knows one.
    pub leader: Option<u8>,
    /// The last entry of its log.
    pub last_entry: Option<u64>,
    /// The last entry that it has applied.
    pub applied: Option<u64>,
    /// The last entry that its snapshot contains.
    pub snapshot: Option<u64>,
    /// The slots that vote, as far as it knows.
    pub voters: Vec<u8>,
    /// Keys that somebody holds.
    pub held_keys: usize,
    /// Acquires that wait for their turn.
    pub waiters: usize,
    /// How its clock compares with those of the others.
    #[serde(default)]
    pub clock: ClockStatus,
    /// Whether the cluster has begun, as far as this node knows.
    pub begun: bool,
    /// Tells one process from another, in 32 hexadecimal digits.
    #[serde(default)]
    pub process: String,
    /// Who belongs to the cluster, as the log of this node says; none if it says nothing yet. A process without
    /// a part in the cluster says what it has heard from others, if that is agreed on.
    #[serde(default)]
    pub members: Option<Members>,
    /// Of the leader: whether no member is being replaced, and all of them are there, know who the others
    /// are, and are no more than some entries behind. Then any one of them may go.
    #[serde(default)]
    pub whole: bool,
    /// Whether it has found that a majority of the voters has lost its memory. Nothing will be granted
    /// under this identity any more: make a new cluster.
    #[serde(default)]
    pub dead: bool,
    /// Open connections of peers and operators that have proved another peer secret than the first of this node.
    /// None on all nodes means that nobody who is there needs any but the first.
    #[serde(default)]
    pub other_secrets: u64,
    /// What a process without a part in the cluster waits for.
    #[serde(default)]
    pub waits_for: Option<String>,
}

/// Who belongs to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Members {
    /// The term of the entry that says so.
    pub term: u64,
    /// The entry of the log that says so.
    pub entry: u64,
    /// Whether a majority has that entry, as far as this node knows.
    pub committed: bool,
    /// Those that vote: one list, or two of which each needs a majority, while members are changing.
    pub voters: Vec<Vec<Place>>,
    /// Those that are learning, before they vote.
    pub learners: Vec<Place>,
    /// Where peers reach them, `HOST:PORT`, by slot; of two in one slot, the newer one.
    #[serde(default)]
    pub addresses: BTreeMap<u8, String>,
}

/// One of the nodes that have had a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Place {
    /// The slot.
    pub slot: u8,
    /// Which of its nodes, counted from 1.
    pub generation: u64,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NodeRole {
    /// It decides, and a majority follows.
    Leader,
    /// It follows a leader that it hears from.
    Follower,
    /// It knows of no leader, or leads without a majority.
    Leaderless,
    /// A process of a volatile cluster without a memory, that waits until the leader lets it take its slot
    /// over.
    Joining,
}

impl NodeStatus {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

//! What a node says of itself to an operator.

use serde::{Deserialize, Serialize};

/// How one node is, and what it knows of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its fixed place.
    pub slot: u8,
    /// Which of the nodes that have had this slot it is, counted from 1.
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
    /// Whether the cluster has begun, as far as this node knows.
    pub begun: bool,
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
}

impl NodeStatus {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

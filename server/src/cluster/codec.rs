//! The consensus engine's values as bytes: what lies in the log and what peers send each other.
//!
//! ```text
//! log id:     term u64 · index u64                 optional: flag u8 before it
//! vote:       term u64 · node u64 · committed u8
//! entry:      log id · kind u8 (0 blank, 1 batch, 2 membership) · content
//! membership: count u32 × (count u32 × node u64) · count u32 × (node u64 · length u16 · address)
//! snapshot:   optional log id · optional log id of the membership · membership
//!
//! append:     vote · optional previous log id · optional committed log id · count u32 × entry
//!   reply:    0 | 1 · optional log id (only so far) | 2 (conflict) | 3 · higher vote
//! vote:       vote · optional last log id · transfer u8
//!   reply:    vote · granted u8 · optional last log id
//! transfer:   vote of the leader · node u64 · optional last log id
//!   reply:    accepted u8
//! ```
//! The version of all this is that of the peer protocol and of the log file.

use std::collections::{BTreeMap, BTreeSet};

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::vote::{RaftLeaderId as _, leader_id_std::LeaderId};

use super::batch::Sealed;
use super::bytes::{Malformed, Put as _, Reader};
use super::types::{
    Address, Entry, LogId, Membership, Payload, SnapshotMeta, StoredMembership, Types, Vote,
};

pub(super) type Append = AppendEntriesRequest<Types>;
pub(super) type AppendReply = AppendEntriesResponse<Types>;
pub(super) type Ballot = VoteRequest<Types>;
pub(super) type BallotReply = VoteResponse<Types>;
pub(super) type Transfer = TransferLeaderRequest<Types>;

pub(super) fn put_log_id(bytes: &mut Vec<u8>, id: &LogId) {
    bytes.u64(id.committed_leader_id().term);
    bytes.u64(id.index());
}

pub(super) fn log_id(reader: &mut Reader<'_>) -> Result<LogId, Malformed> {
    let term = reader.u64()?;
    Ok(LogId::new_term_index(term, reader.u64()?))
}

pub(super) fn put_maybe(bytes: &mut Vec<u8>, id: Option<&LogId>) {
    bytes.u8(id.is_some().into());
    if let Some(id) = id {
        put_log_id(bytes, id);
    }
}

pub(super) fn maybe(reader: &mut Reader<'_>) -> Result<Option<LogId>, Malformed> {
    match reader.flag()? {
        true => log_id(reader).map(Some),
        false => Ok(None),
    }
}

pub(super) fn put_vote(bytes: &mut Vec<u8>, vote: &Vote) {
    bytes.u64(vote.leader_id.term);
    bytes.u64(vote.leader_id.voted_for);
    bytes.u8(vote.committed.into());
}

pub(super) fn vote(reader: &mut Reader<'_>) -> Result<Vote, Malformed> {
    let term = reader.u64()?;
    let leader_id = LeaderId::new(term, reader.u64()?);
    let committed = reader.flag()?;
    Ok(Vote {
        leader_id,
        committed,
    })
}

pub(super) fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    put_log_id(bytes, &entry.log_id);
    match &entry.payload {
        Payload::Blank => bytes.u8(0),
        Payload::Normal(batch) => {
            bytes.u8(1);
            bytes.put(batch.bytes());
        }
        Payload::Membership(membership) => {
            bytes.u8(2);
            put_membership(bytes, membership);
        }
    }
}

pub(super) fn entry(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let log_id = log_id(reader)?;
    let payload = match reader.u8()? {
        0 => Payload::Blank,
        1 => Payload::Normal(Sealed::decode(reader)?),
        2 => Payload::Membership(membership(reader)?),
        _ => return Err(reader.wrong()),
    };
    Ok(Entry { log_id, payload })
}

fn put_membership(bytes: &mut Vec<u8>, membership: &Membership) {
    let configs = membership.get_joint_config();
    bytes.count(configs.len());
    for voters in configs {
        bytes.count(voters.len());
        voters.iter().for_each(|node| bytes.u64(*node));
    }
    let nodes: Vec<_> = membership.nodes().collect();
    bytes.count(nodes.len());
    for (node, address) in nodes {
        bytes.u64(*node);
        bytes.short(address.0.as_bytes());
    }
}

fn membership(reader: &mut Reader<'_>) -> Result<Membership, Malformed> {
    let mut configs = Vec::new();
    for _ in 0..reader.count(4)? {
        let mut voters = BTreeSet::new();
        for _ in 0..reader.count(8)? {
            voters.insert(reader.u64()?);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.count(10)? {
        let node = reader.u64()?;
        let address = std::str::from_utf8(reader.short()?);
        let address = address.map_err(|_| reader.wrong())?;
        nodes.insert(node, Address(address.to_owned()));
    }
    Membership::new(configs, nodes).map_err(|_| reader.wrong())
}

pub(super) fn put_meta(bytes: &mut Vec<u8>, meta: &SnapshotMeta) {
    put_maybe(bytes, meta.last_log_id.as_ref());
    put_maybe(bytes, meta.last_membership.log_id().as_ref());
    put_membership(bytes, meta.last_membership.membership());
}

pub(super) fn meta(reader: &mut Reader<'_>) -> Result<SnapshotMeta, Malformed> {
    let last_log_id = maybe(reader)?;
    let id = maybe(reader)?;
    Ok(SnapshotMeta {
        last_log_id,
        last_membership: StoredMembership::new(id, membership(reader)?),
    })
}

/// As many entries as fit into `most` bytes, but one at least; says how many there are.
pub(super) fn put_append(bytes: &mut Vec<u8>, append: &Append, most: usize) -> usize {
    put_vote(bytes, &append.vote);
    put_maybe(bytes, append.prev_log_id.as_ref());
    put_maybe(bytes, append.leader_commit.as_ref());
    let count_at = bytes.len();
    bytes.u32(0);
    let mut count = 0;
    for entry in &append.entries {
        let before = bytes.len();
        put_entry(bytes, entry);
        if count > 0 && bytes.len() > most {
            bytes.truncate(before);
            break;
        }
        count += 1;
    }
    let number = u32::try_from(count).expect("a frame is bounded");
    bytes[count_at..count_at + 4].copy_from_slice(&number.to_be_bytes());
    count
}

pub(super) fn append(reader: &mut Reader<'_>) -> Result<Append, Malformed> {
    let vote = vote(reader)?;
    let prev_log_id = maybe(reader)?;
    let leader_commit = maybe(reader)?;
    let count = reader.count(17)?;
    let entries = (0..count).map(|_| entry(reader));
    Ok(Append {
        vote,
        prev_log_id,
        entries: entries.collect::<Result<_, _>>()?,
        leader_commit,
    })
}

pub(super) fn put_append_reply(bytes: &mut Vec<u8>, reply: &AppendReply) {
    match reply {
        AppendReply::Success => bytes.u8(0),
        AppendReply::PartialSuccess(id) => {
            bytes.u8(1);
            put_maybe(bytes, id.as_ref());
        }
        AppendReply::Conflict => bytes.u8(2),
        AppendReply::HigherVote(vote) => {
            bytes.u8(3);
            put_vote(bytes, vote);
        }
    }
}

pub(super) fn append_reply(reader: &mut Reader<'_>) -> Result<AppendReply, Malformed> {
    Ok(match reader.u8()? {
        0 => AppendReply::Success,
        1 => AppendReply::PartialSuccess(maybe(reader)?),
        2 => AppendReply::Conflict,
        3 => AppendReply::HigherVote(vote(reader)?),
        _ => return Err(reader.wrong()),
    })
}

pub(super) fn put_ballot(bytes: &mut Vec<u8>, ballot: &Ballot) {
    put_vote(bytes, &ballot.vote);
    put_maybe(bytes, ballot.last_log_id.as_ref());
    bytes.u8(ballot.leadership_transfer.into());
}

pub(super) fn ballot(reader: &mut Reader<'_>) -> Result<Ballot, Malformed> {
    let vote = vote(reader)?;
    let mut ballot = Ballot::new(vote, maybe(reader)?);
    ballot.leadership_transfer = reader.flag()?;
    Ok(ballot)
}

pub(super) fn put_ballot_reply(bytes: &mut Vec<u8>, reply: &BallotReply) {
    put_vote(bytes, &reply.vote);
    bytes.u8(reply.vote_granted.into());
    put_maybe(bytes, reply.last_log_id.as_ref());
}

pub(super) fn ballot_reply(reader: &mut Reader<'_>) -> Result<BallotReply, Malformed> {
    let vote = vote(reader)?;
    let granted = reader.flag()?;
    Ok(BallotReply::new(vote, maybe(reader)?, granted))
}

pub(super) fn put_transfer(bytes: &mut Vec<u8>, transfer: &Transfer) {
    put_vote(bytes, transfer.from_leader());
    bytes.u64(*transfer.to_node_id());
    put_maybe(bytes, transfer.last_log_id());
}

pub(super) fn transfer(reader: &mut Reader<'_>) -> Result<Transfer, Malformed> {
    let from = vote(reader)?;
    let to = reader.u64()?;
    Ok(Transfer::new(from, to, maybe(reader)?))
}

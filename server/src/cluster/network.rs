//! How the engine reaches the other nodes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::OptionalSend;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{SnapshotResponse, TransferLeaderResponse};

use super::bytes::{Malformed, Put as _, Reader};
use super::codec::{self, Append, AppendReply, Ballot, BallotReply, Transfer};
use super::peer::Trust;
use super::peer::frame::{APPEND, PRE_VOTE, SNAPSHOT, TRANSFER, VOTE};
use super::peer::handshake::Caller;
use super::peer::link::{Link, LinkError};
use super::types::{Address, Member, Snapshot, SnapshotBytes, Types, Vote};

/// Makes the links of this node.
pub(super) struct Network {
    pub(super) trust: Arc<Trust>,
    pub(super) own: Member,
    /// For votes, which must not wait for a connection to be opened.
    quick: BTreeMap<u64, Arc<Link>>,
}

impl Network {
    pub(super) fn new(trust: Arc<Trust>, own: Member) -> Self {
        Self {
            trust,
            own,
            quick: BTreeMap::new(),
        }
    }

    fn link(&self, target: u64, node: &Address) -> Option<Link> {
        let to = Member::from_id(target)?;
        let own = Caller::Node(self.own);
        let trust = Arc::clone(&self.trust);
        Some(Link::new(trust, own, to.into(), node.0.clone()))
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Way;

    async fn new_client(&mut self, target: u64, node: &Address) -> Way {
        if !self.quick.contains_key(&target)
            && let Some(link) = self.link(target, node)
        {
            self.quick.insert(target, Arc::new(link));
        }
        Way {
            log: self.link(target, node),
            quick: self.quick.get(&target).cloned(),
        }
    }
}

/// The way to one other node.
pub(super) struct Way {
    log: Option<Link>,
    quick: Option<Arc<Link>>,
}

impl Way {
    fn log(&self) -> Result<&Link, RPCError<Types>> {
        self.log.as_ref().ok_or_else(nowhere)
    }

    async fn poll(
        &self,
        kind: u8,
        ballot: &Ballot,
        option: &RPCOption,
    ) -> Result<BallotReply, RPCError<Types>> {
        let mut body = Vec::new();
        codec::put_ballot(&mut body, ballot);
        let link = self.quick.as_ref().ok_or_else(nowhere)?;
        let reply = link.call(kind, body, option.soft_ttl()).await;
        let reply = reply.map_err(|error| failed(&error))?;
        let mut reader = Reader::new(&reply, "reply to a vote");
        codec::ballot_reply(&mut reader).map_err(|error| malformed(&error))
    }
}

fn nowhere() -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::from_string("there is no such node"))
}

fn failed(error: &LinkError) -> RPCError<Types> {
    match error {
        // Asking again at once would only burn the processor.
        LinkError::Frame(_) | LinkError::Refused(_) | LinkError::Closed => {
            RPCError::Unreachable(Unreachable::new(error))
        }
        LinkError::TimedOut | LinkError::Failed(_) => RPCError::Network(NetworkError::new(error)),
    }
}

fn malformed(error: &Malformed) -> RPCError<Types> {
    RPCError::Network(NetworkError::new(error))
}

impl RaftNetworkV2<Types> for Way {
    type SnapshotData = SnapshotBytes;

    async fn append_entries(
        &mut self,
        append: Append,
        option: RPCOption,
    ) -> Result<AppendReply, RPCError<Types>> {
        let mut body = Vec::new();
        let count = codec::put_append(&mut body, &append, APPEND_BYTES);
        // The engine's own time is that of a heartbeat, which a disk may well need for a sync.
        let time = match append.entries.is_empty() {
            true => option.soft_ttl(),
            false => option.soft_ttl().max(APPEND_TIME),
        };
        let reply = self.log()?.call(APPEND, body, time).await;
        let reply = reply.map_err(|error| failed(&error))?;
        let mut reader = Reader::new(&reply, "reply to an append");
        let reply = codec::append_reply(&mut reader).map_err(|error| malformed(&error))?;
        match reply {
            AppendReply::Success if count < append.entries.len() => {
                let last = append.entries[count - 1].log_id;
                Ok(AppendReply::PartialSuccess(Some(last)))
            }
            reply => Ok(reply),
        }
    }

    async fn vote(
        &mut self,
        ballot: Ballot,
        option: RPCOption,
    ) -> Result<BallotReply, RPCError<Types>> {
        self.poll(VOTE, &ballot, &option).await
    }

    async fn pre_vote(
        &mut self,
        ballot: Ballot,
        option: RPCOption,
    ) -> Result<BallotReply, RPCError<Types>> {
        self.poll(PRE_VOTE, &ballot, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let link = self.log()?;
        let sending = async {
            let total = snapshot.snapshot.len();
            let mut reply = Vec::new();
            let mut meta = Vec::new();
            codec::put_meta(&mut meta, &snapshot.meta);
            let mut offset = 0;
            loop {
                let end = total.min(offset + PART_BYTES);
                let mut body = Vec::new();
                codec::put_vote(&mut body, &vote);
                body.count(meta.len());
                body.put(&meta);
                body.u64(total as u64);
                body.u64(offset as u64);
                body.put(&snapshot.snapshot[offset..end]);
                let answered = link.call(SNAPSHOT, body, option.soft_ttl()).await;
                reply.clone_from(&answered.map_err(|error| failed(&error))?);
                offset = end;
                if offset == total {
                    break;
                }
            }
            let mut reader = Reader::new(&reply, "reply to a snapshot");
            let vote = codec::vote(&mut reader).map_err(|error| malformed(&error))?;
            Ok(SnapshotResponse::new(vote))
        };
        tokio::select! {
            sent = sending => sent,
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        transfer: Transfer,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let mut body = Vec::new();
        codec::put_transfer(&mut body, &transfer);
        let link = self.quick.as_ref().ok_or_else(nowhere)?;
        let reply = link.call(TRANSFER, body, option.soft_ttl()).await;
        match reply.map_err(|error| failed(&error))?.as_slice() {
            [1] => Ok(Ok(())),
            _ => {
                let error = io::Error::other("the other node does not take the lead");
                Err(RPCError::Network(NetworkError::new(&error)))
            }
        }
    }
}

/// About how many bytes of entries go in one frame, if no single one has more.
const APPEND_BYTES: usize = 1024 * 1024;
/// How long a node may take to store entries.
const APPEND_TIME: Duration = Duration::from_secs(1);
/// How much of a snapshot goes in one frame.
const PART_BYTES: usize = 1024 * 1024;

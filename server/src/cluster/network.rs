//! How the engine reaches the other nodes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt as _};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{SnapshotResponse, StreamAppendResult, TransferLeaderResponse};
use tokio::time::timeout;

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

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Answers<'s>, RPCError<Types>>>
    where
        S: Stream<Item = Append> + OptionalSend + Unpin + 'static,
    {
        stream_append_sequential(self, Box::pin(together(input)), option)
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

type Answers<'s> = BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>;

/// The same requests, but one that has no entries and only tells how far they are agreed on is left
/// out if the next one comes soon, which tells that too. A follower that is busy has half as many to answer.
fn together<S>(input: S) -> impl Stream<Item = Append>
where
    S: Stream<Item = Append> + Unpin,
{
    stream::unfold(input.fuse(), |mut input| async move {
        let mut request = input.next().await?;
        // Ends at once for a stream of one request: a heartbeat does not wait.
        let later = async {
            while request.entries.is_empty()
                && let Some(later) = input.next().await
            {
                request = later;
            }
        };
        let _ = timeout(TOGETHER_TIME, later).await;
        Some((request, input))
    })
}

/// How long a follower may wait for the news that entries are agreed on.
const TOGETHER_TIME: Duration = Duration::from_millis(1);
/// About how many bytes of entries go in one frame, if no single one has more.
const APPEND_BYTES: usize = 1024 * 1024;
/// How long a node may take to store entries.
const APPEND_TIME: Duration = Duration::from_secs(1);
/// How much of a snapshot goes in one frame.
const PART_BYTES: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use openraft::vote::RaftLeaderId as _;
    use openraft::vote::leader_id_std::LeaderId;
    use tokio::sync::mpsc;

    use super::*;
    use crate::cluster::types::{Entry, LogId, Payload};

    /// One that has this entry, if it has one, and says that entries up to that one are agreed on.
    fn request(entry: Option<u64>, agreed: u64) -> Append {
        let id = |index| LogId::new_term_index(1, index);
        let entry = entry.map(|index| Entry {
            log_id: id(index),
            payload: Payload::Blank,
        });
        Append {
            vote: Vote {
                leader_id: LeaderId::new(1, 1),
                committed: true,
            },
            prev_log_id: None,
            entries: entry.into_iter().collect(),
            leader_commit: Some(id(agreed)),
        }
    }

    fn agreed(request: &Append) -> (usize, Option<u64>) {
        let agreed = request.leader_commit.map(|id| id.index());
        (request.entries.len(), agreed)
    }

    #[tokio::test(start_paused = true)]
    async fn news_of_what_is_agreed_on_goes_with_entries_that_come_soon() {
        let (input, requests) = mpsc::unbounded_channel();
        let requests = stream::unfold(requests, |mut requests| async move {
            Some((requests.recv().await?, requests))
        });
        let mut requests = Box::pin(together(Box::pin(requests)));
        input.send(request(Some(1), 0)).unwrap();
        input.send(request(None, 1)).unwrap();
        input.send(request(None, 2)).unwrap();
        input.send(request(Some(3), 2)).unwrap();
        input.send(request(None, 3)).unwrap();
        let mut told = Vec::new();
        for _ in 0..3 {
            told.push(agreed(&requests.next().await.unwrap()));
        }
        assert_eq!(told, [(1, Some(0)), (1, Some(2)), (0, Some(3))]);
        // Nothing was lost by waiting in vain.
        input.send(request(Some(4), 3)).unwrap();
        let next = requests.next().await.unwrap();
        assert_eq!(agreed(&next), (1, Some(3)));
        drop(input);
        assert!(requests.next().await.is_none());
    }

    #[tokio::test]
    async fn a_heartbeat_is_sent_at_once() {
        let heartbeat = stream::once(async { request(None, 1) });
        let mut requests = Box::pin(together(Box::pin(heartbeat)));
        // Polled once: it waits for nothing.
        let sent = requests.next().now_or_never();
        assert_eq!(sent.flatten().as_ref().map(agreed), Some((0, Some(1))));
        assert!(requests.next().await.is_none());
    }
}

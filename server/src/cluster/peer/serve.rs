//! The accepting side of the peers' connections.
//!
//! A connection's requests are answered one after the other, in the order in which they come: the
//! engine's appends depend on that.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::handshake::Slot;
use openraft::raft::SnapshotResponse;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::frame::{
    self, ADMIT, APPEND, CLOCK, Ends, FRESH, Frame, FrameError, GROW, INIT, JOIN, JOIN_BY, MARK,
    PRE_VOTE, PROMOTE, REMOVE, REPLACE, SNAPSHOT, STATUS, STEP_DOWN, TRANSFER, UNKNOWN, VOTE,
    between,
};
use super::handshake::{self, ANSWER_BYTES, Caller, Entrant, Refused};
use super::{Stream, buffered};
use crate::cluster::bytes::{Malformed, Put as _, Reader};
use crate::cluster::clocks::{self, ClockHealth};
use crate::cluster::codec;
use crate::cluster::node::{Failure, Node};
use crate::cluster::presence::{NO_PART, Presence};
use crate::cluster::resize;
use crate::cluster::types::{Member, Snapshot, SnapshotMeta, Vote};
use crate::{socket, system};

/// Serves peers for as long as it is polled.
pub(in crate::cluster) async fn accept(listener: TcpListener, presence: Arc<Presence>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) if connections.len() < MOST_CONNECTIONS => {
                    let presence = Arc::clone(&presence);
                    connections.spawn(async move {
                        match serve(&presence, tcp, peer).await {
                            Ok(()) => {}
                            Err(error @ (PeerError::Refused(_) | PeerError::Frame(
                                FrameError::Elsewhere | FrameError::TooLong | FrameError::Malformed(_),
                            ))) => tracing::warn!(%peer, %error, "a peer was turned away"),
                            Err(error) => tracing::debug!(%peer, %error, "a peer has gone"),
                        }
                    });
                }
                Ok((_, peer)) => tracing::warn!(%peer, "too many peers: one is turned away"),
                Err(error) => {
                    tracing::warn!(%error, "a peer was not accepted");
                    tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
                }
            }
        }
    }
}

async fn serve(presence: &Presence, tcp: TcpStream, peer: SocketAddr) -> Result<(), PeerError> {
    socket::configure(&tcp, STALL_TIME);
    // Who this process is may change; what was sent to the one that it was is not for the other.
    let own = presence.known_as();
    let entered = timeout(HANDSHAKE_TIME, enter(presence, own, tcp)).await;
    let (mut stream, entrant) = entered.map_err(|_| PeerError::TooSlow)??;
    let caller = entrant.caller;
    // An operator who changes the secret wants to know who is not there yet.
    let _counted = (!entrant.proved_first).then(|| {
        tracing::info!(%caller, %peer, "a peer proves another secret than the first of this node");
        presence.other_secrets.hold()
    });
    let ends = between(presence.trust.domain, caller, own);
    let mut incoming = None;
    while let Some(request) = frame::read(&mut *stream, ends).await? {
        let done = match caller {
            Caller::Node(_) if presence.known_as() != own => return Err(Refused::Node.into()),
            Caller::Node(peer) => answer_node(presence, peer, &request, &mut incoming).await,
            Caller::Operator => answer_operator(presence, &request).await,
            Caller::Process(slot) => answer_process(presence, slot, &request).await,
        };
        let reply = match done {
            Ok(body) => request.reply(body),
            Err(why) => request.failure(&why.to_string()),
        };
        reply_to(&mut *stream, ends.reversed(), &reply).await?;
    }
    Ok(())
}

async fn reply_to(stream: &mut dyn Stream, ends: Ends, reply: &Frame) -> Result<(), PeerError> {
    let written = timeout(STALL_TIME, frame::write(stream, ends, reply)).await;
    Ok(written.map_err(|_| PeerError::TooSlow)??)
}

async fn enter(
    presence: &Presence,
    own: Member,
    tcp: TcpStream,
) -> Result<(Box<dyn Stream>, Entrant), PeerError> {
    let trust = &presence.trust;
    let mut stream: Box<dyn Stream> = match &trust.accept {
        None => buffered(tcp),
        Some(config) => {
            let acceptor = TlsAcceptor::from(config.get());
            buffered(acceptor.accept(tcp).await?)
        }
    };
    let nonce = system::random().map_err(std::io::Error::other)?;
    let hello = handshake::hello(own, nonce);
    stream.write_all(&hello).await?;
    stream.flush().await?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).await?;
    let (verdict, entrant) = handshake::judge(&hello, &answer, own, trust);
    stream.write_all(&verdict).await?;
    stream.flush().await?;
    Ok((stream, entrant?))
}

/// A snapshot that has come in part.
struct Incoming {
    vote: Vote,
    meta: SnapshotMeta,
    total: u64,
    bytes: Vec<u8>,
}

/// Answers a node. One whose slot another node has taken over is not heard any more.
async fn answer_node(
    presence: &Presence,
    peer: Member,
    request: &Frame,
    incoming: &mut Option<Incoming>,
) -> Result<Vec<u8>, Failure> {
    if presence.node().is_some_and(|node| !node.may_speak(peer)) {
        return Err("another node has taken this slot over".into());
    }
    match (request.kind, presence.node()) {
        (FRESH, _) => presence.is_fresh().await.map(|()| Vec::new()),
        (MARK, _) => presence.mark().await.map(|()| Vec::new()),
        // A data directory that was lost together with its mark looks like a new one. Nothing was
        // decided before all nodes had their marks, so a node without one must not decide anything.
        (_, Some(node)) if !node.has_begun() => Err(NO_PART.into()),
        (_, Some(node)) => answer_engine(node, peer, request, incoming).await,
        (_, None) => Err(NO_PART.into()),
    }
}

async fn answer_engine(
    node: &Node,
    peer: Member,
    request: &Frame,
    incoming: &mut Option<Incoming>,
) -> Result<Vec<u8>, Failure> {
    let raft = node.raft();
    let mut reader = Reader::new(&request.body, "request of a peer");
    let mut body = Vec::new();
    match request.kind {
        APPEND => {
            let append = codec::append(&mut reader)?;
            reader.end()?;
            let reply = raft.append_entries(append).await?;
            if !matches!(reply, codec::AppendReply::HigherVote(_)) {
                node.heard_from(peer.slot);
            }
            codec::put_append_reply(&mut body, &reply);
        }
        VOTE | PRE_VOTE if !node.may_vote() => {
            return Err("this node has not yet heard that it belongs to the cluster".into());
        }
        VOTE => {
            let reply = raft.vote(codec::ballot(&mut reader)?).await?;
            codec::put_ballot_reply(&mut body, &reply);
        }
        PRE_VOTE => {
            let reply = raft.pre_vote(codec::ballot(&mut reader)?).await?;
            codec::put_ballot_reply(&mut body, &reply);
        }
        SNAPSHOT => {
            if let Some((vote, snapshot)) = collect(reader, incoming)? {
                let reply = raft.install_full_snapshot(vote, snapshot).await?;
                let SnapshotResponse { vote } = reply;
                codec::put_vote(&mut body, &vote);
            }
            node.heard_from(peer.slot);
        }
        TRANSFER => {
            let transfer = codec::transfer(&mut reader)?;
            // All nodes are told, so that they let the one that is meant have it. Whoever sends it has asked
            // for the clock before, but that was a moment ago.
            let is_meant = *transfer.to_node_id() == node.member().id();
            let may = !is_meant || node.clocks.health() != ClockHealth::Differs;
            let taken = may && raft.handle_transfer_leader(transfer).await?.is_ok();
            body.u8(taken.into());
        }
        CLOCK => return Ok(clocks::answer(&node.clocks, peer)),
        _ => return Err(UNKNOWN.into()),
    }
    Ok(body)
}

/// Answers a process that may have no part in the cluster.
async fn answer_process(
    presence: &Presence,
    slot: Slot,
    request: &Frame,
) -> Result<Vec<u8>, Failure> {
    match request.kind {
        STATUS => Ok(presence.status().encode()),
        JOIN | JOIN_BY => {
            let node = presence.node().ok_or(NO_PART)?;
            let process = std::str::from_utf8(&request.body)?;
            let mut body = Vec::new();
            let (generation, entry) = node.let_in(slot, process).await?;
            body.u64(generation);
            if request.kind == JOIN_BY {
                body.u64(entry);
            }
            Ok(body)
        }
        _ => Err(UNKNOWN.into()),
    }
}

/// Puts the parts of a snapshot together; gives it when the last one has come.
fn collect(
    mut reader: Reader<'_>,
    incoming: &mut Option<Incoming>,
) -> Result<Option<(Vote, Snapshot)>, Malformed> {
    let vote = codec::vote(&mut reader)?;
    let length = reader.u32()?;
    let mut meta = Reader::new(reader.take(length as usize)?, "snapshot");
    let meta = codec::meta(&mut meta)?;
    let (total, offset) = (reader.u64()?, reader.u64()?);
    if offset == 0 {
        *incoming = Some(Incoming {
            vote,
            meta: meta.clone(),
            total,
            bytes: Vec::new(),
        });
    }
    let wrong = reader.wrong();
    let part = reader.rest();
    let begun = incoming.as_mut().ok_or(wrong)?;
    let fits = begun.vote == vote
        && begun.meta == meta
        && begun.total == total
        && begun.bytes.len() as u64 == offset
        && offset + part.len() as u64 <= total;
    if !fits {
        *incoming = None;
        return Err(wrong);
    }
    begun.bytes.extend_from_slice(part);
    if (begun.bytes.len() as u64) < total {
        return Ok(None);
    }
    let done = incoming.take().ok_or(wrong)?;
    let snapshot = Snapshot {
        meta: done.meta,
        snapshot: Arc::new(done.bytes),
    };
    Ok(Some((done.vote, snapshot)))
}

async fn answer_operator(presence: &Presence, request: &Frame) -> Result<Vec<u8>, Failure> {
    match request.kind {
        STATUS => return Ok(presence.status().encode()),
        INIT => return presence.init().await.map(|()| Vec::new()),
        _ => {}
    }
    let node = presence.node().ok_or(NO_PART)?;
    match request.kind {
        REPLACE => {
            let mut body = Vec::new();
            body.u64(node.replace(slot_in(request)?).await?);
            Ok(body)
        }
        PROMOTE => Ok(vec![node.promote(slot_in(request)?).await?.into()]),
        GROW => {
            let mut reader = Reader::new(&request.body, "request of an operator");
            let newcomers = resize::newcomers(&mut reader)?;
            reader.end()?;
            Ok(resize::put_members(&node.grow(newcomers).await?))
        }
        ADMIT => Ok(vec![node.admit().await?.into()]),
        REMOVE => {
            let slots = request.body.iter().map(|number| Slot::new(*number));
            let slots: Option<BTreeSet<Slot>> = slots.collect();
            node.shrink(&slots.ok_or("there is no such slot")?).await?;
            Ok(Vec::new())
        }
        STEP_DOWN => node.step_down().await.map(|()| Vec::new()),
        _ => Err(UNKNOWN.into()),
    }
}

fn slot_in(request: &Frame) -> Result<Slot, Malformed> {
    let mut reader = Reader::new(&request.body, "request of an operator");
    let slot = Slot::new(reader.u8()?).ok_or(reader.wrong())?;
    reader.end()?;
    Ok(slot)
}

/// Why a peer's connection ended.
#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("it took too long")]
    TooSlow,
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// More than five nodes and some operators ever need.
const MOST_CONNECTIONS: usize = 64;
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
const STALL_TIME: Duration = Duration::from_secs(5);
/// Out of file descriptors: trying again at once would only burn the processor.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(20);

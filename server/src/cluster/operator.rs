//! What the operator's command asks of a node, over its listener for peers.
//!
//! Whoever has the cluster file and the peer secret beside it is an operator.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::file::ClusterFile;
use super::peer::Trust;
use super::peer::frame::{ADMIT, GROW, INIT, PROMOTE, REMOVE, REPLACE, STATUS, STEP_DOWN};
use super::peer::handshake::{Callee, Caller};
use super::peer::link::{Link, LinkError};
use super::resize;
use super::status::{NodeStatus, Place};
use super::types::Address;
use crate::swap::Swap;

/// Asks the node of a slot how it is.
///
/// # Errors
/// The slot is not in the file, or the node does not answer within three seconds.
pub async fn status(
    file: &ClusterFile,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<NodeStatus, OperatorError> {
    let bytes = ask(file, slot, tls, STATUS, Vec::new(), PATIENCE).await?;
    NodeStatus::decode(&bytes).ok_or(OperatorError::Unintelligible { slot })
}

/// Begins the cluster, once for its identity: the node of this slot makes sure that no node has
/// been part of it before, has all of them mark the identity as used, and lets them elect a leader.
///
/// # Errors
/// A node does not answer, or the identity was used before; then nothing has begun. If it fails
/// after the identity was marked, a new one is needed.
pub async fn init(
    file: &ClusterFile,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<(), OperatorError> {
    ask(file, slot, tls, INIT, Vec::new(), INIT_PATIENCE)
        .await
        .map(drop)
}

/// Has the node of this slot hand the lead over to another one, if it leads.
///
/// # Errors
/// It does not lead, or no other node has taken over within two seconds.
pub async fn step_down(
    file: &ClusterFile,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<(), OperatorError> {
    ask(file, slot, tls, STEP_DOWN, Vec::new(), PATIENCE)
        .await
        .map(drop)
}

/// Has the leader let a new node take a slot over whose node is gone for good, and gives the
/// generation with which that has to be started, on a data directory of its own. Asked again before
/// [`promote`] has succeeded, it gives the same one.
///
/// # Errors
/// The node that is asked does not lead, or the node of the slot still answers.
pub async fn replace(
    file: &ClusterFile,
    leader: u8,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<u64, OperatorError> {
    let bytes = ask(file, leader, tls, REPLACE, vec![slot], INIT_PATIENCE).await?;
    let generation = bytes.try_into().map(u64::from_be_bytes);
    generation.map_err(|_| OperatorError::Unintelligible { slot: leader })
}

/// Has the leader let the new node of a slot vote in the place of the old one, if it has caught up;
/// says whether it has.
///
/// # Errors
/// The node that is asked does not lead, or nobody waits to take the slot over.
pub async fn promote(
    file: &ClusterFile,
    leader: u8,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<bool, OperatorError> {
    let bytes = ask(file, leader, tls, PROMOTE, vec![slot], INIT_PATIENCE).await?;
    Ok(bytes == [1])
}

/// Has the leader of three nodes let the two learn that the file has beside them, and gives the
/// generations with which they have to be started, each on a data directory of its own. Asked again before
/// [`admit`] has succeeded, it gives the same ones.
///
/// In a volatile cluster the two are started like all others, without a generation: from now on the leader lets them
/// in. What is given are generations that are lower than theirs, or their own.
///
/// If the five nodes of the file vote already, nothing happens, and nothing is given.
///
/// # Errors
/// The node that is asked does not lead, there are not three voters and five nodes in the file, or other nodes
/// are to join.
pub async fn grow(
    file: &ClusterFile,
    leader: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Vec<Place>, OperatorError> {
    let all = file.all().iter();
    let all = all.map(|node| (node.slot, Address(node.addresses.peers.clone())));
    let body = resize::put_newcomers(&all.collect());
    let bytes = ask(file, leader, tls, GROW, body, INIT_PATIENCE).await?;
    let members = resize::members(&bytes);
    let members = members.map_err(|_| OperatorError::Unintelligible { slot: leader })?;
    Ok(members.into_iter().map(Place::from).collect())
}

/// Has the leader let the two new nodes of [`grow`] vote beside the other three, if both have caught up; says
/// whether five nodes vote. In a volatile cluster it does so without being asked.
///
/// # Errors
/// The node that is asked does not lead, or nobody waits to join.
pub async fn admit(
    file: &ClusterFile,
    leader: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<bool, OperatorError> {
    let bytes = ask(file, leader, tls, ADMIT, Vec::new(), INIT_PATIENCE).await?;
    Ok(bytes == [1])
}

/// Has the leader remove two of five voters in one step, or two nodes that [`grow`] has let learn. When this
/// returns they are not part of the cluster any more; each ends when it hears of that.
///
/// # Errors
/// The node that is asked does not lead, or is one of the two: then it has handed the lead over to one that
/// stays, which is to be asked instead. There are not five voters; one that would stay is being replaced; or so few
/// of the others are there that they would not be a majority, or, in a volatile cluster, not all of them.
pub async fn remove(
    file: &ClusterFile,
    leader: u8,
    slots: &[u8],
    tls: Option<Arc<ClientConfig>>,
) -> Result<(), OperatorError> {
    let asked = ask(file, leader, tls, REMOVE, slots.to_vec(), INIT_PATIENCE).await;
    asked.map(drop)
}

async fn ask(
    file: &ClusterFile,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
    kind: u8,
    body: Vec<u8>,
    patience: Duration,
) -> Result<Vec<u8>, OperatorError> {
    let node = file.node(slot).ok_or(OperatorError::NoSuchSlot { slot })?;
    let trust = Trust {
        domain: file.identity(),
        secrets: file.peer_secrets().clone(),
        common: file.common(),
        accept: None,
        connect: tls.map(|tls| Arc::new(Swap::new(tls))),
    };
    let callee = Callee {
        slot: node.slot,
        generation: None,
    };
    let address = node.addresses.peers.clone();
    let link = Link::new(Arc::new(trust), Caller::Operator, callee, address);
    let answered = link.call(kind, body, patience).await;
    answered.map_err(|error| match error {
        LinkError::Failed(reason) => OperatorError::Refused { slot, reason },
        other => OperatorError::Unreachable {
            slot,
            address: node.addresses.peers.clone(),
            reason: other.to_string(),
        },
    })
}

/// Why a node did not do what an operator asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// Give a slot that is in the cluster file.
    #[error("slot {slot} is not in the cluster file")]
    NoSuchSlot {
        /// The slot that was asked for.
        slot: u8,
    },
    /// The node is not there, or does not let this operator in. Nothing is known of what it did.
    #[error("slot {slot} at {address} does not answer: {reason}")]
    Unreachable {
        /// Its slot.
        slot: u8,
        /// Where its peers reach it.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The node says why it did not.
    #[error("slot {slot} refuses: {reason}")]
    Refused {
        /// Its slot.
        slot: u8,
        /// What it says.
        reason: String,
    },
    /// It answers in a way that this version does not understand. Use the command of its version.
    #[error("slot {slot} answers what this version does not understand")]
    Unintelligible {
        /// Its slot.
        slot: u8,
    },
}

const PATIENCE: Duration = Duration::from_secs(3);
const INIT_PATIENCE: Duration = Duration::from_secs(15);

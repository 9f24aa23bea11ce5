//! What the operator's command asks of a node, over its listener for peers.
//!
//! Whoever has the cluster file and the peer secret beside it is an operator.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::file::ClusterFile;
use super::peer::Trust;
use super::peer::frame::{INIT, STATUS, STEP_DOWN};
use super::peer::handshake::{Callee, Caller};
use super::peer::link::{Link, LinkError};
use super::status::NodeStatus;

/// Asks the node of a slot how it is.
///
/// # Errors
/// The slot is not in the file, or the node does not answer within three seconds.
pub async fn status(
    file: &ClusterFile,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
) -> Result<NodeStatus, OperatorError> {
    let bytes = ask(file, slot, tls, STATUS, PATIENCE).await?;
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
    ask(file, slot, tls, INIT, INIT_PATIENCE).await.map(drop)
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
    ask(file, slot, tls, STEP_DOWN, PATIENCE).await.map(drop)
}

async fn ask(
    file: &ClusterFile,
    slot: u8,
    tls: Option<Arc<ClientConfig>>,
    kind: u8,
    patience: Duration,
) -> Result<Vec<u8>, OperatorError> {
    let node = file.node(slot).ok_or(OperatorError::NoSuchSlot { slot })?;
    let trust = Trust {
        domain: file.identity(),
        secret: file.peer_secret().clone(),
        common: file.common(),
        accept: None,
        connect: tls,
    };
    let callee = Callee {
        slot: node.slot,
        generation: None,
    };
    let address = node.addresses.peers.clone();
    let link = Link::new(Arc::new(trust), Caller::Operator, callee, address);
    let answered = link.call(kind, Vec::new(), patience).await;
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

//! How the nodes of a cluster talk to each other, and operators to them.
//!
//! Every node has a listener for its peers. A connection begins with TLS where that is on, then
//! both sides prove that they know a peer secret ([`handshake`], [`secrets`]), then requests go one way and
//! replies the other in [`frame`]s. The domain and the slot and generation of both ends stand in
//! the handshake and in every frame: whatever is for somebody else ends the connection before the
//! consensus engine sees it, because its own messages do not say for whom they are, and an address
//! outlives the node behind it.

pub(super) mod frame;
pub(super) mod handshake;
pub(super) mod link;
pub(super) mod secrets;
pub(super) mod serve;

use std::sync::Arc;

use highwater_lock::Domain;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};

use self::secrets::PeerSecrets;
use crate::swap::Swap;

/// A byte stream, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Reads as much at once as has come: a frame is read in parts.
fn buffered(stream: impl Stream + 'static) -> Box<dyn Stream> {
    Box::new(BufReader::with_capacity(BUFFER_BYTES, stream))
}

const BUFFER_BYTES: usize = 16 * 1024;

/// What all peers of a cluster share.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    pub(super) domain: Domain,
    pub(super) secrets: PeerSecrets,
    /// What all nodes must have in common, or their machines would not agree.
    pub(super) common: Vec<u8>,
    /// To be called with, where TLS is on.
    pub(super) accept: Option<Arc<Swap<ServerConfig>>>,
    /// To call with.
    pub(super) connect: Option<Arc<Swap<ClientConfig>>>,
}

impl Trust {
    /// What a proof is over: that its maker has the same cluster file and means this.
    fn proved<'a>(&'a self, parts: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let mut all = vec![&self.common[..]];
        all.extend_from_slice(parts);
        all
    }
}

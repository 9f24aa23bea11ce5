//! The challenge-response that opens every connection.
//!
//! The server sends a hello with a fresh nonce, the client answers with a keyed hash over it, the
//! server says yes or no in one byte. Here are the bytes only: who reads, writes and times out,
//! and where nonces come from, is the caller's business.
//!
//! ```
//! use highwater_protocol::handshake::{ACCEPTED, Challenge, Node, Nonce};
//! use highwater_protocol::Secret;
//!
//! let secret = Secret::new(*b"a shared client token")?;
//!
//! // Server: from 16 random bytes to the first 28 bytes of the connection.
//! let challenge = Challenge::new(Node::Single, Nonce::from([7; 16]));
//! let hello = challenge.hello();
//!
//! // Client: from those to the 32 bytes of the answer.
//! let answer = Challenge::from_hello(&hello, Node::Single)?.answer(&secret);
//!
//! // Server: compares, and sends ACCEPTED or REJECTED.
//! assert!(challenge.accepts([&secret], &answer));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::Choice;

use crate::Secret;

/// The protocol version of both hello and answer.
pub const VERSION: u16 = 3;
/// The length of the server's hello.
pub const HELLO_BYTES: usize = 28;
/// The length of the client's answer.
pub const ANSWER_BYTES: usize = 32;
/// The server's byte for a right answer; frames follow.
pub const ACCEPTED: u8 = 1;
/// The server's byte for a wrong secret; it closes after it. A client takes it as final for this
/// address, so a server that is starting, full or draining closes before its hello instead.
pub const REJECTED: u8 = 0;

const MAGIC: &[u8; 8] = b"TCKCLI3\0";
const ANSWER_LABEL: &[u8; 16] = b"TCK/CLIENT/AUTH3";
const SINGLE_IDENTITY_LABEL: &[u8] = b"ticketing/single/v3";
const MODE_SINGLE: u8 = 0;
const MODE_CLUSTER: u8 = 1;
const SLOT_SINGLE: u8 = 255;

/// The fixed place of a node in its cluster, 0 to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// The most slots a cluster has.
    pub const COUNT: u8 = 5;

    /// Gives the slot, or `None` from 5 up.
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number, 0 to 4.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// What stands at an address: one server by itself, or one member of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A single server. All of them share one constant identity.
    Single,
    /// A member of a cluster.
    Cluster {
        /// The identity that the cluster got when it was created.
        identity: [u8; 32],
        /// The member's fixed place.
        slot: Slot,
    },
}

impl Node {
    /// The identity that the answer is bound to: the cluster's, or the constant of single servers
    /// (SHA-256 of `ticketing/single/v3`).
    pub fn identity(&self) -> [u8; 32] {
        match self {
            Self::Single => Sha256::digest(SINGLE_IDENTITY_LABEL).into(),
            Self::Cluster { identity, .. } => *identity,
        }
    }

    fn mode(&self) -> u8 {
        match self {
            Self::Single => MODE_SINGLE,
            Self::Cluster { .. } => MODE_CLUSTER,
        }
    }

    fn slot(&self) -> u8 {
        match self {
            Self::Single => SLOT_SINGLE,
            Self::Cluster { slot, .. } => slot.get(),
        }
    }
}

/// 16 bytes that never repeat: take them from the system's random source for every connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Nonce([u8; 16]);

impl From<[u8; 16]> for Nonce {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// One challenge, as both sides know it after the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    node: Node,
    nonce: Nonce,
}

impl Challenge {
    /// Server side: the challenge that this node sets with a fresh nonce.
    pub const fn new(node: Node, nonce: Nonce) -> Self {
        Self { node, nonce }
    }

    /// Server side: the bytes to send first on a new connection.
    pub fn hello(&self) -> [u8; HELLO_BYTES] {
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(MAGIC);
        hello[8..10].copy_from_slice(&VERSION.to_be_bytes());
        hello[10] = self.node.mode();
        hello[11] = self.node.slot();
        hello[12..].copy_from_slice(&self.nonce.0);
        hello
    }

    /// Client side: reads a hello from an address where `expected` should stand.
    ///
    /// # Errors
    /// Something else stands there. This does not get better by trying again.
    pub fn from_hello(hello: &[u8; HELLO_BYTES], expected: Node) -> Result<Self, HelloError> {
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&hello[12..]);
        let version = u16::from_be_bytes([hello[8], hello[9]]);
        if &hello[..8] != MAGIC {
            Err(HelloError::Magic)
        } else if version != VERSION {
            Err(HelloError::Version { version })
        } else if hello[10] != expected.mode() {
            Err(HelloError::Mode { mode: hello[10] })
        } else if hello[11] != expected.slot() {
            Err(HelloError::Slot { slot: hello[11] })
        } else {
            Ok(Self::new(expected, Nonce(nonce)))
        }
    }

    /// Client side: the bytes to send in reply to the hello.
    pub fn answer(&self, secret: &Secret) -> [u8; ANSWER_BYTES] {
        self.keyed(secret).finalize().into_bytes().into()
    }

    /// Server side: whether the answer was made with one of the secrets.
    ///
    /// More than one is for a rotation: the old secret stays valid until the clients have
    /// restarted. The time it takes tells nothing about how much of the answer was right, nor
    /// which secret matched. No secret at all accepts nobody.
    pub fn accepts<'a>(
        &self,
        secrets: impl IntoIterator<Item = &'a Secret>,
        answer: &[u8; ANSWER_BYTES],
    ) -> bool {
        secrets
            .into_iter()
            .fold(Choice::from(0), |any, secret| {
                let right = self.keyed(secret).verify_slice(answer).is_ok();
                any | Choice::from(u8::from(right))
            })
            .into()
    }

    fn keyed(&self, secret: &Secret) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose())
            .expect("HMAC takes a key of any length");
        mac.update(ANSWER_LABEL);
        mac.update(&VERSION.to_be_bytes());
        mac.update(&[self.node.mode()]);
        mac.update(&self.node.identity());
        mac.update(&[self.node.slot()]);
        mac.update(&self.nonce.0);
        mac
    }
}

/// Why a hello is not the expected one. Each is a configuration mistake, or another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// Another protocol speaks there (perhaps TLS, or plain text where TLS is expected).
    #[error("the hello is not one of this protocol")]
    Magic,
    /// Another version of the protocol.
    #[error("the server speaks protocol version {version}, this is version 3")]
    Version {
        /// The server's version.
        version: u16,
    },
    /// A cluster member where a single server was expected, or the other way round.
    #[error("the server's mode is {mode} (0 single, 1 cluster), which is not the expected one")]
    Mode {
        /// The server's mode byte.
        mode: u8,
    },
    /// Another member of the cluster than the address list says.
    #[error("slot {slot} answers at the address of another slot")]
    Slot {
        /// The server's slot byte.
        slot: u8,
    },
}

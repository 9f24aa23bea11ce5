//! What a database compares: the fence that travels from a ticket to an adapter.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;

use crate::{FencingToken, Key};

/// Counts the fenced transactions of one holder, from 1 up.
///
/// With a step, an adapter admits `(token, step)` only if it is strictly higher than the last
/// one, so a repeated write is recognised. See [`Fence::with_step`].
pub type Step = NonZeroU64;

/// The identity of one token counter: tokens of different domains are not comparable.
///
/// Every lock service that starts without memory of the past is a new random domain. A mark in a
/// database belongs to one domain, and an adapter refuses every other one until an operator moves
/// the mark on purpose; so a rebuilt lock service fails closed instead of inverting the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain([u8; 32]);

impl Domain {
    /// The length of a domain in bytes.
    pub const BYTES: usize = 32;

    /// The domain with these bytes, as a lock service tells them.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A domain for tokens from elsewhere (an etcd revision, a ZooKeeper czxid, a Consul
    /// LockIndex): a name of 1 to 31 bytes, padded with zero bytes.
    ///
    /// Give every counter its own name, and a new name when the counter starts again.
    ///
    /// # Errors
    /// The name is empty, longer than 31 bytes, or contains a zero byte.
    pub fn named(name: &str) -> Result<Self, DomainError> {
        if name.is_empty() || name.len() >= Self::BYTES {
            return Err(DomainError::Length { bytes: name.len() });
        }
        if name.bytes().any(|byte| byte == 0) {
            return Err(DomainError::ZeroByte);
        }
        let mut bytes = [0; Self::BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self(bytes))
    }

    /// The bytes, as they are stored in the `domain` column.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Domain {
    /// 64 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({self})")
    }
}

impl core::str::FromStr for Domain {
    type Err = DomainError;

    /// Reads the 64 hexadecimal digits that `Display` writes.
    fn from_str(text: &str) -> Result<Self, DomainError> {
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::BYTES {
            return Err(DomainError::Digits);
        }
        let nibble = |digit: u8| (digit as char).to_digit(16).ok_or(DomainError::Digits);
        let mut bytes = [0; Self::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let value = nibble(pair[0])? * 16 + nibble(pair[1])?;
            *byte = u8::try_from(value).map_err(|_| DomainError::Digits)?;
        }
        Ok(Self(bytes))
    }
}

/// Why a text is not a [`Domain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// A name must have 1 to 31 bytes.
    #[error("a domain name has 1 to 31 bytes, this one has {bytes}")]
    Length {
        /// Its length in bytes.
        bytes: usize,
    },
    /// A name must not contain a zero byte, which is the padding.
    #[error("a domain name must not contain a zero byte")]
    ZeroByte,
    /// A written domain is exactly 64 hexadecimal digits.
    #[error("a domain is written as 64 hexadecimal digits")]
    Digits,
}

/// The key of a mark in the database: 1 to 255 bytes of any kind.
///
/// For a lock it is the lock's [`Key`]; for a slot of an N-slot lock it is the name, a space and
/// the slot number, which collides with no lock key because those contain no space.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceKey(Arc<[u8]>);

impl FenceKey {
    /// The longest fence key, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Takes any bytes, zero bytes included.
    ///
    /// # Errors
    /// No byte, or more than [`FenceKey::MAX_BYTES`].
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, FenceKeyError> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() || bytes.len() > Self::MAX_BYTES {
            return Err(FenceKeyError { bytes: bytes.len() });
        }
        Ok(Self(Arc::from(bytes)))
    }

    /// The key of one slot of an N-slot lock: name, space, slot number in decimal digits.
    pub fn slot(name: &Key, slot: u32) -> Self {
        Self(Arc::from(alloc::format!("{name} {slot}").into_bytes()))
    }

    /// The bytes, as they are stored in the `key` column.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&Key> for FenceKey {
    fn from(key: &Key) -> Self {
        Self(Arc::from(key.as_bytes()))
    }
}

impl From<Key> for FenceKey {
    fn from(key: Key) -> Self {
        Self::from(&key)
    }
}

impl fmt::Display for FenceKey {
    /// As text, with everything that is not printable ASCII escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for FenceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FenceKey(\"{self}\")")
    }
}

/// The bytes are too few or too many for a [`FenceKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fence key has 1 to 255 bytes, this one has {bytes}")]
pub struct FenceKeyError {
    /// Their number.
    pub bytes: usize,
}

/// One key and the token its holder offers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// What is protected.
    pub key: FenceKey,
    /// The offered token.
    pub token: FencingToken,
}

/// What a fenced transaction offers to the database: keys, their tokens, and the domain that the
/// tokens belong to.
///
/// A client's ticket gives one. It can also be built by hand, so that tokens of other systems
/// work with the adapters.
///
/// ```
/// use highwater_lock::{Domain, Fence, FenceKey, FencingToken};
///
/// let domain = Domain::named("etcd-prod-1")?;
/// let token = FencingToken::try_from(8_231)?; // the lock key's create revision
/// let fence = Fence::new(domain, FenceKey::new("stock/apple")?, token);
/// assert_eq!(fence.marks().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    domain: Domain,
    /// Strictly increasing by key, never empty.
    marks: Vec<Mark>,
    step: Option<Step>,
}

impl Fence {
    /// The fence of one key.
    pub fn new(domain: Domain, key: impl Into<FenceKey>, token: FencingToken) -> Self {
        Self {
            domain,
            marks: alloc::vec![Mark {
                key: key.into(),
                token
            }],
            step: None,
        }
    }

    /// The fence of several keys, each with its token.
    ///
    /// The marks are sorted by the bytes of their keys, and equal ones are merged.
    ///
    /// # Errors
    /// No mark, or one key with two different tokens.
    pub fn from_marks(
        domain: Domain,
        marks: impl IntoIterator<Item = Mark>,
    ) -> Result<Self, FenceError> {
        let mut marks: Vec<Mark> = marks.into_iter().collect();
        marks.sort_unstable();
        marks.dedup();
        if marks.is_empty() {
            return Err(FenceError::Empty);
        }
        for pair in marks.windows(2) {
            if pair[0].key == pair[1].key {
                return Err(FenceError::TwoTokens {
                    key: pair[0].key.clone(),
                });
            }
        }
        Ok(Self {
            domain,
            marks,
            step: None,
        })
    }

    /// One fence that holds the marks of both, for work under several locks.
    ///
    /// # Errors
    /// The fences belong to different domains, carry different steps, or offer two tokens for one
    /// key.
    pub fn and(self, other: Fence) -> Result<Self, FenceError> {
        if self.domain != other.domain {
            return Err(FenceError::TwoDomains);
        }
        if self.step != other.step {
            return Err(FenceError::TwoSteps);
        }
        let step = self.step;
        let joined = Self::from_marks(self.domain, self.marks.into_iter().chain(other.marks))?;
        Ok(Self { step, ..joined })
    }

    /// The same fence with a step: this transaction is admitted once.
    ///
    /// Count it up from 1 for each transaction under one token. Do not mix transactions with and
    /// without a step under one token: one without a step is admitted by an equal token.
    #[must_use]
    pub fn with_step(mut self, step: Step) -> Self {
        self.step = Some(step);
        self
    }

    /// The domain of all its tokens.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Keys and tokens, strictly increasing by the bytes of the key; never none.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The step, if one was given.
    pub fn step(&self) -> Option<Step> {
        self.step
    }
}

/// Why marks do not make a [`Fence`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// No mark at all.
    #[error("a fence needs at least one key")]
    Empty,
    /// One key with two tokens: at most one of them can be current.
    #[error("key {key} has two different tokens in one fence")]
    TwoTokens {
        /// The key.
        key: FenceKey,
    },
    /// Tokens of different domains are not comparable.
    #[error("one fence cannot hold tokens of two domains")]
    TwoDomains,
    /// A fence has one step for all its keys.
    #[error("one fence cannot hold two different steps")]
    TwoSteps,
}

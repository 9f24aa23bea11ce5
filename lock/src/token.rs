//! The fencing token: the number that orders the holders of a key.

use core::fmt;
use core::num::NonZeroU64;

/// The number of one ownership of a key; a later owner always has a higher one.
///
/// Tokens come from one counter per domain, so they are strictly increasing over every new
/// ownership of *any* key in it, and a key that is released or deleted never starts again.
/// Zero is not a token. A token is only comparable with tokens of the same
/// [`Domain`](crate::Domain).
///
/// The lock service hands out `1..=u64::MAX`; databases store at most `i64::MAX`, and an adapter
/// refuses a higher one instead of converting it (see the fencing crate).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// The lowest token.
    pub const MIN: Self = Self(NonZeroU64::MIN);
    /// The highest token the wire can carry.
    pub const MAX: Self = Self(NonZeroU64::MAX);

    /// Gives the token with this number, or `None` for zero.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, for the wire and for databases.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<NonZeroU64> for FencingToken {
    fn from(number: NonZeroU64) -> Self {
        Self(number)
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = ZeroToken;

    fn try_from(number: u64) -> Result<Self, ZeroToken> {
        Self::new(number).ok_or(ZeroToken)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.get()
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Zero was offered as a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("zero is not a fencing token")]
pub struct ZeroToken;

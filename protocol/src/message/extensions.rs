//! Which opcodes beyond the base protocol a server has.

use core::fmt;

/// A set of extensions: the capability answer of a server.
///
/// A client sends an extension only if the server told that it has it. What a later server tells
/// beyond the constants here is kept and means nothing to this version.
///
/// ```
/// use highwater_protocol::Extensions;
///
/// let told = Extensions::EXTEND.and(Extensions::QUERY);
/// assert!(told.contains(Extensions::QUERY));
/// assert!(!told.contains(Extensions::QUERY.and(Extensions::SLOTS)));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Extensions(u32);

impl Extensions {
    /// None: the base protocol.
    pub const NONE: Self = Self(0);
    /// `x`: extend a lease.
    pub const EXTEND: Self = Self(1);
    /// `c`: leave the queue.
    pub const CANCEL: Self = Self(1 << 1);
    /// `a`: acquire with times in milliseconds.
    pub const ACQUIRE: Self = Self(1 << 2);
    /// `n`: acquire one of N slots.
    pub const SLOTS: Self = Self(1 << 3);
    /// `h`: release with a minimum hold.
    pub const MINIMUM_HOLD: Self = Self(1 << 4);
    /// `q`: ask for the state of a key.
    pub const QUERY: Self = Self(1 << 5);
    /// Everything that this version knows.
    pub const ALL: Self = Self((1 << 6) - 1);

    /// The set with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits as they travel.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `others` are in this set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({:#08b})", self.0)
    }
}

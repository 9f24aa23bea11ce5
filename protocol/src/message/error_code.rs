//! The codes of error replies.

use super::{RequestKind, Shape};

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum ErrorCode {
    /// A key breaks the rule for keys. Do not repeat the request.
    #[error("bad key")]
    BadKey = 1,
    /// The lease is out of range. Do not repeat the request.
    #[error("bad lease")]
    BadLease = 2,
    /// The server grants nothing now (unhealthy clock, draining). Try again within the wait.
    #[error("the server is not active")]
    NotActive = 3,
    /// The cluster has no leader now. Try again within the wait.
    #[error("there is no leader")]
    NoLeader = 4,
    /// The keys are not a canonical set. Do not repeat the request.
    #[error("bad key set")]
    BadKeySet = 5,
    /// The token is live, but for other keys. Do not repeat the request.
    #[error("the token belongs to another key set")]
    GroupMismatch = 6,
    /// Zero is not a token. Do not repeat the request.
    #[error("bad token")]
    BadToken = 7,
    /// A wait or a minimum hold is longer than the protocol or the server allows. Only to
    /// extensions. Do not repeat the request.
    #[error("bad wait or minimum hold")]
    BadTime = 8,
    /// A name has no slots, or more than the server allows. Only to extensions. Do not repeat the
    /// request.
    #[error("bad number of slots")]
    BadSlots = 9,
    /// The name is in use now as another kind of lock: a plain one, one with slots, or one with
    /// another number of slots. Only to extensions. Agree on one kind for the name.
    #[error("the name is in use as another kind of lock")]
    OtherUse = 10,
}

impl ErrorCode {
    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        self as u8
    }

    /// The code of a byte, or `None`.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::BadKey,
            2 => Self::BadLease,
            3 => Self::NotActive,
            4 => Self::NoLeader,
            5 => Self::BadKeySet,
            6 => Self::GroupMismatch,
            7 => Self::BadToken,
            8 => Self::BadTime,
            9 => Self::BadSlots,
            10 => Self::OtherUse,
            _ => return None,
        })
    }

    /// Whether it can answer a request of this kind.
    pub fn fits(self, kind: RequestKind) -> bool {
        use RequestKind::{
            Acquire, AcquireSlot, AcquireTimed, Cancel, Domain, Extend, Query, Release, Retain,
        };
        match self {
            Self::NotActive | Self::NoLeader => true,
            Self::BadKey => !matches!(kind, Domain | Cancel),
            Self::BadLease => kind.is_acquire() || kind == Extend,
            Self::BadKeySet => matches!(
                kind,
                Acquire(Shape::Set) | Release(Shape::Set) | Extend | AcquireTimed | Retain
            ),
            Self::GroupMismatch | Self::BadToken => match kind {
                Release(_) | Extend | Retain => true,
                Acquire(_) | AcquireTimed | AcquireSlot | Domain | Cancel | Query => false,
            },
            Self::BadTime => matches!(kind, AcquireTimed | AcquireSlot | Retain),
            Self::BadSlots => kind == AcquireSlot,
            Self::OtherUse => matches!(kind, AcquireTimed | AcquireSlot),
        }
    }
}

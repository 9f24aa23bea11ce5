//! What clients ask and servers answer.
//!
//! Values of these types are always legal: what a peer sent wrongly is either an error that ends
//! the connection or an [`Incoming::Refused`], never a strange request. The bytes are the
//! codec's business.

use core::num::{NonZeroU8, NonZeroU64};
use core::time::Duration;

use highwater_lock::{Domain, FencingToken, KeySet};

use crate::handshake::Slot;

/// The number that pairs a reply with its request; unique on its connection while in use.
pub type RequestNumber = NonZeroU64;

/// The length of a lease on the base protocol: 1 to 250 whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseSeconds(NonZeroU8);

impl LeaseSeconds {
    /// The longest lease that the base protocol can ask for.
    pub const MAX: u8 = 250;

    /// Gives the lease, or `None` for 0 and from 251 up.
    pub const fn new(seconds: u8) -> Option<Self> {
        match NonZeroU8::new(seconds) {
            Some(seconds) if seconds.get() <= Self::MAX => Some(Self(seconds)),
            _ => None,
        }
    }

    /// The number of seconds.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// The same time as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0.get() as u64)
    }
}

/// The length of a lease on the extensions: 1 ms to 1 hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseMillis(u32);

impl LeaseMillis {
    /// The longest extension, in milliseconds.
    pub const MAX: u32 = 3_600_000;

    /// Gives the lease, or `None` for 0 and beyond an hour.
    pub const fn new(milliseconds: u32) -> Option<Self> {
        if milliseconds == 0 || milliseconds > Self::MAX {
            None
        } else {
            Some(Self(milliseconds))
        }
    }

    /// The number of milliseconds.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The same time as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }
}

/// Whether a request names one key or several: replies repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One key (`A`, `R`).
    One,
    /// A set of 2 to 16 keys (`S`, `G`).
    Set,
}

impl Shape {
    /// The shape in which these keys travel.
    pub fn of(keys: &KeySet) -> Self {
        if keys.len() == 1 {
            Self::One
        } else {
            Self::Set
        }
    }
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Wait for the keys and take them (`A` for one key, `S` for a set).
    Acquire {
        /// Pairs the reply.
        id: RequestNumber,
        /// All of them, under one token.
        keys: KeySet,
        /// How long to wait for them, in seconds; 0 is one try that never queues.
        wait_seconds: u8,
        /// How long to hold them.
        lease: LeaseSeconds,
    },
    /// Give the keys back (`R`, `G`).
    Release {
        /// Pairs the reply.
        id: RequestNumber,
        /// Exactly the keys of the grant.
        keys: KeySet,
        /// The token of the grant.
        token: FencingToken,
    },
    /// Which domain do the tokens belong to? (`d`)
    Domain {
        /// Pairs the reply.
        id: RequestNumber,
    },
    /// Hold the keys for at least this long from now (`x`). Never shortens a lease.
    Extend {
        /// Pairs the reply.
        id: RequestNumber,
        /// Exactly the keys of the grant.
        keys: KeySet,
        /// The token of the grant.
        token: FencingToken,
        /// From the moment at which the server handles it.
        lease: LeaseMillis,
    },
    /// Leave the queue (`c`). A grant is not touched.
    Cancel {
        /// Pairs the reply.
        id: RequestNumber,
        /// The id of the acquire on the same connection.
        acquire: RequestNumber,
    },
}

impl Request {
    /// The number that its reply must carry.
    pub fn id(&self) -> RequestNumber {
        match self {
            Self::Acquire { id, .. }
            | Self::Release { id, .. }
            | Self::Domain { id }
            | Self::Extend { id, .. }
            | Self::Cancel { id, .. } => *id,
        }
    }

    /// Which replies fit it.
    pub fn kind(&self) -> RequestKind {
        match self {
            Self::Acquire { keys, .. } => RequestKind::Acquire(Shape::of(keys)),
            Self::Release { keys, .. } => RequestKind::Release(Shape::of(keys)),
            Self::Domain { .. } => RequestKind::Domain,
            Self::Extend { .. } => RequestKind::Extend,
            Self::Cancel { .. } => RequestKind::Cancel,
        }
    }
}

/// A request without its contents: what a client must remember to judge a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// `A` or `S`.
    Acquire(Shape),
    /// `R` or `G`.
    Release(Shape),
    /// `d`.
    Domain,
    /// `x`.
    Extend,
    /// `c`.
    Cancel,
}

/// A whole frame from a client, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A legal request.
    Valid(Request),
    /// A frame that can be read but must not be obeyed: answer [`Reply::Error`] with this code
    /// and go on. Its id is in use until then, like that of any request.
    Refused {
        /// The id to answer.
        id: RequestNumber,
        /// [`ErrorCode::BadKey`], [`BadLease`](ErrorCode::BadLease),
        /// [`BadKeySet`](ErrorCode::BadKeySet) or [`BadToken`](ErrorCode::BadToken).
        code: ErrorCode,
    },
}

impl Incoming {
    /// The id to answer.
    pub fn id(&self) -> RequestNumber {
        match self {
            Self::Valid(request) => request.id(),
            Self::Refused { id, .. } => *id,
        }
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The keys are held, under this token (`A` or `S`).
    Granted {
        /// Of the request.
        id: RequestNumber,
        /// Of the request.
        shape: Shape,
        /// Higher than every token before it in its domain.
        token: FencingToken,
    },
    /// The keys are free (`R` or `G`).
    Released {
        /// Of the request.
        id: RequestNumber,
        /// Of the request.
        shape: Shape,
    },
    /// The token does not hold the keys now (`N`). To releases and extensions.
    NotHeld {
        /// Of the request.
        id: RequestNumber,
    },
    /// Definitely not acquired within the wait (`T`).
    TimedOut {
        /// Of the request.
        id: RequestNumber,
    },
    /// Definitely not acquired: a limit was reached (`B`).
    Busy {
        /// Of the request.
        id: RequestNumber,
    },
    /// Not done: another node leads (`M`).
    Moved {
        /// Of the request.
        id: RequestNumber,
        /// Which one, if known. Never known on a single server.
        leader: Option<Slot>,
    },
    /// Nobody can say whether it was done (`I`).
    Indeterminate {
        /// Of the request.
        id: RequestNumber,
    },
    /// Not done (`E`).
    Error {
        /// Of the request.
        id: RequestNumber,
        /// Why not.
        code: ErrorCode,
    },
    /// Unasked: which node leads now (`L`).
    Leader {
        /// `None` when there is no leader.
        leader: Option<Slot>,
    },
    /// The domain of this server's tokens (`d`).
    Domain {
        /// Of the request.
        id: RequestNumber,
        /// All tokens granted on this connection belong to it.
        domain: Domain,
    },
    /// The lease runs on (`x`).
    Extended {
        /// Of the request.
        id: RequestNumber,
        /// How long, from the moment at which the server handled the request: at least what was
        /// asked, at most `u32::MAX` ms.
        remaining_ms: u32,
    },
    /// The outcome of a cancel (`c`).
    Cancelled {
        /// Of the cancel, not of the acquire.
        id: RequestNumber,
        /// `true`: it stood in the queue and is out of it; the acquire itself was answered `T`
        /// before this. `false`: it did not stand in the queue; what it got is in its own reply.
        was_queued: bool,
    },
}

impl Reply {
    /// The request it answers; `None` for the unasked [`Reply::Leader`].
    pub fn id(&self) -> Option<RequestNumber> {
        match self {
            Self::Granted { id, .. }
            | Self::Released { id, .. }
            | Self::NotHeld { id }
            | Self::TimedOut { id }
            | Self::Busy { id }
            | Self::Moved { id, .. }
            | Self::Indeterminate { id }
            | Self::Error { id, .. }
            | Self::Domain { id, .. }
            | Self::Extended { id, .. }
            | Self::Cancelled { id, .. } => Some(*id),
            Self::Leader { .. } => None,
        }
    }

    /// Whether it can answer a request of this kind. A misfit ends the connection.
    pub fn fits(&self, kind: RequestKind) -> bool {
        use RequestKind::{Acquire, Cancel, Domain, Extend, Release};
        match self {
            Self::Granted { shape, .. } => kind == Acquire(*shape),
            Self::Released { shape, .. } => kind == Release(*shape),
            Self::NotHeld { .. } => matches!(kind, Release(_) | Extend),
            Self::TimedOut { .. } | Self::Busy { .. } => matches!(kind, Acquire(_)),
            Self::Moved { .. } | Self::Indeterminate { .. } => true,
            Self::Error { code, .. } => code.fits(kind),
            Self::Leader { .. } => false,
            Self::Domain { .. } => kind == Domain,
            Self::Extended { .. } => kind == Extend,
            Self::Cancelled { .. } => kind == Cancel,
        }
    }
}

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
            _ => return None,
        })
    }

    /// Whether it can answer a request of this kind.
    pub fn fits(self, kind: RequestKind) -> bool {
        use RequestKind::{Acquire, Cancel, Domain, Extend, Release};
        match self {
            Self::NotActive | Self::NoLeader => true,
            Self::BadKey => matches!(kind, Acquire(_) | Release(_) | Extend),
            Self::BadLease => matches!(kind, Acquire(_) | Extend),
            Self::BadKeySet => {
                matches!(kind, Acquire(Shape::Set) | Release(Shape::Set) | Extend)
            }
            Self::GroupMismatch | Self::BadToken => match kind {
                Release(_) | Extend => true,
                Acquire(_) | Domain | Cancel => false,
            },
        }
    }
}

//! What a client asks, and a whole frame of it after judgement.

use core::num::{NonZeroU32, NonZeroU64};

use highwater_lock::{FencingToken, Key, KeySet};

#[cfg(doc)]
use super::Reply;
use super::{ErrorCode, LeaseMillis, LeaseSeconds, SpanMillis};

/// The number that pairs a reply with its request; unique on its connection while in use.
pub type RequestNumber = NonZeroU64;

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
        /// The id of the acquire (`A`, `S`, `a`, `n`) on the same connection.
        acquire: RequestNumber,
    },
    /// Wait for the keys and take them, with times in milliseconds (`a`).
    AcquireTimed {
        /// Pairs the reply.
        id: RequestNumber,
        /// All of them, under one token.
        keys: KeySet,
        /// How long to wait for them; zero is one try that never queues.
        wait: SpanMillis,
        /// How long to hold them.
        lease: LeaseMillis,
    },
    /// Wait for one of the slots of a name and take it (`n`).
    AcquireSlot {
        /// Pairs the reply.
        id: RequestNumber,
        /// What has the slots.
        name: Key,
        /// How many it has; all who use the name agree on it.
        slots: NonZeroU32,
        /// As in [`Request::AcquireTimed`].
        wait: SpanMillis,
        /// As in [`Request::AcquireTimed`].
        lease: LeaseMillis,
    },
    /// Give the keys back, and keep them from everybody until a time after the grant (`h`).
    Retain {
        /// Pairs the reply.
        id: RequestNumber,
        /// Exactly the keys of the grant; for a slot, its name.
        keys: KeySet,
        /// The token of the grant.
        token: FencingToken,
        /// Counted from the grant, on the server's clock; zero frees them now.
        minimum: SpanMillis,
    },
    /// What holds a key, and how many wait for it? (`q`)
    Query {
        /// Pairs the reply.
        id: RequestNumber,
        /// The key, or the name of an N-slot lock.
        key: Key,
        /// Tell of the first taken slot from this one on. A plain lock is slot 0 of itself.
        from_slot: u32,
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
            | Self::Cancel { id, .. }
            | Self::AcquireTimed { id, .. }
            | Self::AcquireSlot { id, .. }
            | Self::Retain { id, .. }
            | Self::Query { id, .. } => *id,
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
            Self::AcquireTimed { .. } => RequestKind::AcquireTimed,
            Self::AcquireSlot { .. } => RequestKind::AcquireSlot,
            Self::Retain { .. } => RequestKind::Retain,
            Self::Query { .. } => RequestKind::Query,
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
    /// `a`.
    AcquireTimed,
    /// `n`.
    AcquireSlot,
    /// `h`.
    Retain,
    /// `q`.
    Query,
}

impl RequestKind {
    /// Whether it asks for a lock, whose grant is then somebody's.
    pub fn is_acquire(self) -> bool {
        matches!(
            self,
            Self::Acquire(_) | Self::AcquireTimed | Self::AcquireSlot
        )
    }
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
        /// [`BadKeySet`](ErrorCode::BadKeySet), [`BadToken`](ErrorCode::BadToken),
        /// [`BadTime`](ErrorCode::BadTime) or [`BadSlots`](ErrorCode::BadSlots).
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

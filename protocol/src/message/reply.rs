//! What a server answers, and which answers fit which request.

use core::num::NonZeroU32;

use highwater_lock::{Domain, FencingToken};

use super::{ErrorCode, Extensions, RequestKind, RequestNumber, Shape};
use crate::handshake::Slot;

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
    /// The token does not hold the keys now (`N`). To releases of both kinds and extensions.
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
        /// The opcodes beyond the base protocol and `d` itself that this server has.
        extensions: Extensions,
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
    /// The keys are held, under this token (`a`).
    GrantedTimed {
        /// Of the request.
        id: RequestNumber,
        /// Higher than every token before it in its domain.
        token: FencingToken,
        /// How long the request stood in the queue, rounded down. So the moment before the
        /// request was sent, plus this, plus the lease, is never later than the end of the lease.
        waited_ms: u32,
    },
    /// A slot is held, under a token of its own (`n`).
    GrantedSlot {
        /// Of the request.
        id: RequestNumber,
        /// As in [`Reply::GrantedTimed`].
        token: FencingToken,
        /// As in [`Reply::GrantedTimed`].
        waited_ms: u32,
        /// Which one, from 0 up.
        slot: u32,
    },
    /// The keys are not yours any more, and free now or when their minimum hold is over (`h`).
    Retained {
        /// Of the request.
        id: RequestNumber,
    },
    /// What a key is like at the moment at which the server handles the question (`q`).
    Status {
        /// Of the request.
        id: RequestNumber,
        /// Old as soon as it is sent: never a reason to write anything.
        status: KeyStatus,
    },
}

/// What a query tells of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    /// What holds it; for an N-slot name, its first taken slot from the one that was asked for.
    pub state: KeyState,
    /// How many requests queue for it.
    pub waiters: u32,
    /// How many slots it has; `None` for a plain lock, and for a key that nobody uses.
    pub slots: Option<NonZeroU32>,
    /// How many of them are taken, retained ones included; 0 or 1 for a plain lock.
    pub taken: u32,
}

/// What holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Nothing. With waiters, it is blocked by a set whose turn is next and that waits for others
    /// of its keys.
    Free,
    /// Somebody.
    Held {
        /// Of the ownership.
        token: FencingToken,
        /// Which slot; 0 for a plain lock.
        slot: u32,
        /// How long the lease still runs, rounded down. Zero may last: the key is not free before
        /// the server has decided the end of the lease.
        remaining_ms: u32,
    },
    /// Nobody, and nobody can have it before its minimum hold is over.
    Retained {
        /// Of the ownership that is over.
        token: FencingToken,
        /// Which slot; 0 for a plain lock.
        slot: u32,
        /// How long the minimum hold still runs, rounded down.
        remaining_ms: u32,
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
            | Self::Cancelled { id, .. }
            | Self::GrantedTimed { id, .. }
            | Self::GrantedSlot { id, .. }
            | Self::Retained { id }
            | Self::Status { id, .. } => Some(*id),
            Self::Leader { .. } => None,
        }
    }

    /// Whether it can answer a request of this kind. A misfit ends the connection.
    pub fn fits(&self, kind: RequestKind) -> bool {
        use RequestKind::{Acquire, Cancel, Domain, Extend, Release, Retain};
        match self {
            Self::Granted { shape, .. } => kind == Acquire(*shape),
            Self::Released { shape, .. } => kind == Release(*shape),
            Self::NotHeld { .. } => matches!(kind, Release(_) | Extend | Retain),
            Self::TimedOut { .. } | Self::Busy { .. } => kind.is_acquire(),
            Self::Moved { .. } | Self::Indeterminate { .. } => true,
            Self::Error { code, .. } => code.fits(kind),
            Self::Leader { .. } => false,
            Self::Domain { .. } => kind == Domain,
            Self::Extended { .. } => kind == Extend,
            Self::Cancelled { .. } => kind == Cancel,
            Self::GrantedTimed { .. } => kind == RequestKind::AcquireTimed,
            Self::GrantedSlot { .. } => kind == RequestKind::AcquireSlot,
            Self::Retained { .. } => kind == Retain,
            Self::Status { .. } => kind == RequestKind::Query,
        }
    }
}

//! What the machine can be told to do.
//!
//! Commands are plain values: the server makes them from requests, a cluster replicates them. What
//! they cause stands in [`outcome`](crate::Outcome).

use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

use crate::{FencingToken, Key, KeySet};

/// The reign of one leader. Waiters belong to it and do not outlive it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// One connection of one leader; the server never uses a number again within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// The number which a client gave to a request on its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

macro_rules! number {
    ($($name:ident),*) => {$(
        impl $name {
            /// The value with this number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl From<u64> for $name {
            fn from(number: u64) -> Self {
                Self(number)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number!(Epoch, ConnectionId, RequestId);

/// Who asks: the answer to an acquire, whenever it comes, goes to this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId {
    /// The connection the request came over.
    pub connection: ConnectionId,
    /// The request on that connection.
    pub request: RequestId,
}

impl WaiterId {
    /// The waiter of this request on this connection.
    pub const fn new(connection: ConnectionId, request: RequestId) -> Self {
        Self {
            connection,
            request,
        }
    }
}

/// An operation, and the epoch of the leader that proposed it.
///
/// The first command of a newer epoch removes all waiters of older ones before anything else
/// happens. A command of an older epoch is rejected and changes nothing, time included: whatever a
/// deposed leader wanted to expire or extend does not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The proposer's epoch.
    pub epoch: Epoch,
    /// What to do.
    pub operation: Operation,
}

impl Command {
    /// The command of a leader.
    pub const fn new(epoch: Epoch, operation: Operation) -> Self {
        Self { epoch, operation }
    }
}

/// One operation on the locks.
///
/// Before each one the machine moves its time on, times out waiters and expires holds; see
/// [`Machine::apply`](crate::Machine::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing but the passing of time.
    Tick,
    /// Asks for all keys of a set under one token, or queues for them.
    ///
    /// Granted when no key is held and nobody queues for one; otherwise queued behind everybody
    /// who came earlier for any of the keys. Not reentrant: the holder queues like everybody.
    Acquire {
        /// Gets the answer. Must not be queued already.
        waiter: WaiterId,
        /// The keys, all or none.
        keys: KeySet,
        /// How long to stay in the queue; zero is one try and never queues.
        wait: Duration,
        /// How long the lock lives from the grant on, unless extended.
        lease: Duration,
    },
    /// Asks for one of the N slots of a name, or queues for one.
    ///
    /// Each slot has its own token; all waiters of the name stand in one queue and get the lowest
    /// free slot. N is fixed while anybody holds or queues.
    AcquireSlot {
        /// Gets the answer. Must not be queued already.
        waiter: WaiterId,
        /// The name that has the slots.
        name: Key,
        /// How many there are.
        slots: NonZeroU32,
        /// As in [`Operation::Acquire`].
        wait: Duration,
        /// As in [`Operation::Acquire`].
        lease: Duration,
    },
    /// Gives a lock back; whoever heads the queue gets it in the same step.
    Release {
        /// Exactly the keys of the grant; for a slot, the one name.
        keys: KeySet,
        /// The token of the grant.
        token: FencingToken,
        /// Keep the keys from everybody until this long after the grant; zero frees them now.
        minimum_hold: Duration,
    },
    /// Moves the expiry to `now + lease` if that is later than it is now.
    Extend {
        /// Exactly the keys of the grant; for a slot, the one name.
        keys: KeySet,
        /// The token of the grant.
        token: FencingToken,
        /// How long from now on.
        lease: Duration,
    },
    /// Gives up one place in the queues. A grant that was made already is not touched.
    Cancel {
        /// The request that queued.
        waiter: WaiterId,
    },
    /// Gives up all places of a connection. Its grants live on by their leases.
    Disconnect {
        /// The connection that ended.
        connection: ConnectionId,
    },
    /// Ends whatever holds a key, by order of an operator, and burns a token.
    ///
    /// A hold of several keys ends as a whole, and so do all slots of an N-slot name. The burned
    /// token is higher than every token of the old holders and lower than any successor's: raise
    /// the database's mark to it to shut out the old holder before a successor writes. It is burned
    /// even if nothing holds the key, because an expired holder may still be writing.
    ForceRelease {
        /// The key, or the name of an N-slot lock.
        key: Key,
    },
}

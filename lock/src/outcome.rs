//! What a command caused: the reply to its sender, and everything that happened to others.
//!
//! Values only, made by the machine. Delivering them is the server's part.

use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::time::Duration;

use crate::{Epoch, FenceKey, FencingToken, Key, KeySet, Timestamp, WaiterId};

/// One ownership that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The request it answers.
    pub waiter: WaiterId,
    /// All the keys, or the one name of a slot.
    pub keys: KeySet,
    /// Which slot, for an N-slot lock.
    pub slot: Option<u32>,
    /// Higher than every token given out before, for any key.
    pub token: FencingToken,
    /// When it began.
    pub granted_at: Timestamp,
    /// When it ends, unless it is extended or released before.
    pub expires: Timestamp,
}

impl Grant {
    /// The keys under which databases know this ownership, in the order of the lock's keys.
    pub fn fence_keys(&self) -> Vec<FenceKey> {
        match self.slot {
            Some(slot) => self
                .keys
                .iter()
                .map(|name| FenceKey::slot(name, slot))
                .collect(),
            None => self.keys.iter().map(FenceKey::from).collect(),
        }
    }
}

/// One ownership that a force-release ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// All the keys, or the one name of a slot.
    pub keys: KeySet,
    /// Which slot, for an N-slot lock.
    pub slot: Option<u32>,
    /// The token it had.
    pub token: FencingToken,
}

/// The answer to the sender of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a tick: it was only about time.
    Ticked,
    /// To an acquire: the lock is yours.
    Granted(Grant),
    /// To an acquire: in the queue. The answer comes later, as an [`Event`].
    Queued,
    /// To an acquire with wait zero: somebody holds or queues for a key.
    TimedOut,
    /// To an acquire: definitely not acquired, because a limit is reached. Try again later.
    Busy(Busy),
    /// The command is not possible as it stands. Nothing changed, except that time moved on
    /// (for [`Rejection::StaleEpoch`] not even that).
    Rejected(Rejection),
    /// To a release: that ownership is over, or will be when its minimum hold is.
    Released,
    /// To a release or an extension: the token is not that of a live ownership.
    NotHeld,
    /// To a release or an extension: the token is live, but with other keys. Nothing changed.
    GroupMismatch,
    /// To an extension.
    Extended {
        /// When the ownership ends now; never earlier than before.
        expires: Timestamp,
    },
    /// To a cancel: the place is given up, and the request will not be granted.
    Cancelled,
    /// To a cancel: no such request is queued. It may have been granted.
    NotQueued,
    /// To a disconnect.
    Disconnected {
        /// How many places were given up.
        waiters: u32,
    },
    /// To a force-release.
    ForceReleased {
        /// Higher than the tokens of all that ended, lower than any later one.
        burned: FencingToken,
        /// What ended: nothing, one ownership, or every taken slot in slot order.
        ended: Vec<Ended>,
    },
}

/// Something that happened to somebody else than the sender of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A queued request has its lock now.
    Granted(Grant),
    /// A queued request was not granted within its wait, and never will be.
    TimedOut(WaiterId),
    /// An ownership reached the end of its lease.
    Expired {
        /// All the keys, or the one name of a slot.
        keys: KeySet,
        /// Which slot, for an N-slot lock.
        slot: Option<u32>,
        /// The token it had.
        token: FencingToken,
    },
    /// The minimum hold of a released ownership is over.
    RetentionEnded {
        /// All the keys, or the one name of a slot.
        keys: KeySet,
        /// Which slot, for an N-slot lock.
        slot: Option<u32>,
        /// The token it had.
        token: FencingToken,
    },
    /// A queued request of an older epoch was removed, and never will be granted.
    Dropped(WaiterId),
}

/// All that one command caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer to the sender.
    pub reply: Reply,
    /// What happened to others, in the order in which it happened.
    pub events: Vec<Event>,
}

/// Which limit an acquire ran into. It has no effect; try again later, with a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Busy {
    /// [`Limits::keys`](crate::Limits::keys) are in use.
    #[error("too many keys are in use")]
    Keys,
    /// [`Limits::waiters`](crate::Limits::waiters) are queued.
    #[error("too many requests are queued")]
    Waiters,
    /// [`Limits::waiters_per_key`](crate::Limits::waiters_per_key) queue for one of the keys.
    #[error("too many requests are queued for one key")]
    WaitersPerKey,
    /// [`Limits::waiters_per_connection`](crate::Limits::waiters_per_connection) of this
    /// connection are queued.
    #[error("too many requests of one connection are queued")]
    WaitersPerConnection,
}

/// Why a command is not possible as it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// A newer leader has spoken. Its proposer must step down.
    #[error("epoch {current} has begun")]
    StaleEpoch {
        /// The epoch the machine is in.
        current: Epoch,
    },
    /// This request is queued already; the caller uses an id twice.
    #[error("this request is queued already")]
    DuplicateWaiter,
    /// The lease is zero or too long. Ask for another one.
    #[error("a lease is more than zero and at most {longest:?}")]
    Lease {
        /// The longest that is allowed.
        longest: Duration,
    },
    /// The wait is too long. Ask for a shorter one.
    #[error("a wait is at most {longest:?}")]
    Wait {
        /// The longest that is allowed.
        longest: Duration,
    },
    /// The minimum hold is too long. The lock is still held: release it again with a shorter one.
    #[error("a minimum hold is at most {longest:?}")]
    MinimumHold {
        /// The longest that is allowed.
        longest: Duration,
    },
    /// The number of slots is too high.
    #[error("a name has at most {most} slots")]
    Slots {
        /// The most that are allowed.
        most: u32,
    },
    /// The name is in use with another number of slots. Agree on one, or wait until it is free.
    #[error("name {name} is in use with {slots} slots")]
    OtherSlots {
        /// The name.
        name: Key,
        /// How many it has now.
        slots: NonZeroU32,
    },
    /// A key is in use as the name of an N-slot lock, so it cannot be a plain lock.
    #[error("name {name} is in use with slots")]
    HasSlots {
        /// The key.
        name: Key,
    },
    /// The name is in use as a plain lock, so it cannot have slots.
    #[error("name {name} is in use as a plain lock")]
    HasNoSlots {
        /// The name.
        name: Key,
    },
    /// The last token is given out. This domain is at its end: nothing is ever granted again.
    #[error("no token is left")]
    TokensExhausted,
}

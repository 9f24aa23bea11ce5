//! The deterministic core of the Highwater lock service.
//!
//! One state machine decides every grant, release, extension and expiry; the single node, the
//! replicated cluster and the simulations all run this code. It has no clock, no I/O and no
//! randomness: time and every other outside fact are arguments, so the same history always gives
//! the same state and the same outcomes.
//!
//! The crate also holds the words that all other crates share: what a [`Key`] is, what a
//! [`FencingToken`] means, and the [`Fence`] that a database adapter compares.
#![no_std]

extern crate alloc;

mod command;
mod fence;
mod hash;
mod key;
mod limits;
mod machine;
mod outcome;
mod time;
mod token;

pub use command::{Command, ConnectionId, Epoch, Operation, RequestId, WaiterId};
pub use fence::{Domain, DomainError, Fence, FenceError, FenceKey, FenceKeyError, Mark, Step};
pub use hash::HashSeed;
pub use key::{Key, KeyError, KeySet, KeySetError};
pub use limits::Limits;
pub use machine::{HoldState, HolderView, KeyStatus, Machine, NameView, RestoreError};
pub use outcome::{Busy, Ended, Event, Grant, Outcome, Rejection, Reply};
pub use time::Timestamp;
pub use token::{FencingToken, ZeroToken};

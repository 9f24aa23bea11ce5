//! Short ways to write commands.

use std::num::NonZeroU32;
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Epoch, FencingToken, Key, KeySet, Operation, RequestId, WaiterId,
};

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Keys separated by commas.
pub(crate) fn keys(names: &str) -> KeySet {
    KeySet::new(names.split(',').map(key)).unwrap()
}

pub(crate) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

pub(crate) fn waiter(connection: u64, request: u64) -> WaiterId {
    WaiterId::new(ConnectionId::new(connection), RequestId::new(request))
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn command(operation: Operation) -> Command {
    Command::new(Epoch::new(1), operation)
}

pub(crate) fn acquire(waiter: WaiterId, names: &str, wait: u64, lease: u64) -> Operation {
    Operation::Acquire {
        waiter,
        keys: keys(names),
        wait: seconds(wait),
        lease: seconds(lease),
    }
}

pub(crate) fn acquire_slot(
    waiter: WaiterId,
    name: &str,
    slots: u32,
    wait: u64,
    lease: u64,
) -> Operation {
    Operation::AcquireSlot {
        waiter,
        name: key(name),
        slots: NonZeroU32::new(slots).unwrap(),
        wait: seconds(wait),
        lease: seconds(lease),
    }
}

pub(crate) fn release(names: &str, number: u64, minimum_hold: u64) -> Operation {
    Operation::Release {
        keys: keys(names),
        token: token(number),
        minimum_hold: seconds(minimum_hold),
    }
}

pub(crate) fn extend(names: &str, number: u64, lease: u64) -> Operation {
    Operation::Extend {
        keys: keys(names),
        token: token(number),
        lease: seconds(lease),
    }
}

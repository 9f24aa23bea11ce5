//! A request of a client as an operation of the lock core.

use std::num::NonZeroU32;
use std::time::Duration;

use highwater_lock::{ConnectionId, FencingToken, Key, KeySet, Operation, RequestId, WaiterId};

use crate::{CallId, Request};

pub(super) fn operation(connection: u64, call: CallId, request: &Request) -> Operation {
    let micros = Duration::from_micros;
    let connection = ConnectionId::new(connection);
    let waiter = |call: CallId| WaiterId::new(connection, RequestId::new(call.0));
    let key = |name: &String| Key::new(name).expect("clients send keys");
    let set = |names: &[String]| KeySet::new(names.iter().map(key)).expect("clients send sets");
    let token = |number: u64| FencingToken::new(number).expect("clients send tokens");
    match request {
        Request::Acquire {
            keys,
            slots,
            wait,
            lease,
        } => match slots.and_then(NonZeroU32::new) {
            Some(slots) => Operation::AcquireSlot {
                waiter: waiter(call),
                name: key(&keys[0]),
                slots,
                wait: micros(*wait),
                lease: micros(*lease),
            },
            None => Operation::Acquire {
                waiter: waiter(call),
                keys: set(keys),
                wait: micros(*wait),
                lease: micros(*lease),
            },
        },
        Request::Release {
            keys,
            token: number,
            hold,
        } => Operation::Release {
            keys: set(keys),
            token: token(*number),
            minimum_hold: micros(*hold),
        },
        Request::Extend {
            keys,
            token: number,
            lease,
        } => Operation::Extend {
            keys: set(keys),
            token: token(*number),
            lease: micros(*lease),
        },
        Request::Cancel { other } => Operation::Cancel {
            waiter: waiter(*other),
        },
        Request::ForceRelease { key: name } => Operation::ForceRelease { key: key(name) },
        Request::Write { .. } => unreachable!("writes go to the database"),
    }
}

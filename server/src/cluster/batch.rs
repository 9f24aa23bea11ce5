//! What one log entry carries: commands of one leader, under one stamp.
//!
//! Every node applies the commands of an entry in their order with the entry's own epoch and
//! stamp, so all machines decide the same. The bytes have a version, because they lie in logs and
//! travel between nodes of adjacent versions.
//!
//! ```text
//! batch:     version u8 = 1 · epoch u64 · slot u8 of the leader · stamp u64 (µs) · number u64 · count u32 · operations
//! operation: kind u8 · fields; times are u64 nanoseconds
//!   0 tick
//!   1 acquire       connection u64 · request u64 · wait · lease · keys
//!   2 acquire slot  connection u64 · request u64 · wait · lease · slots u32 · key
//!   3 release       token u64 · minimum hold · keys
//!   4 extend        token u64 · lease · keys
//!   5 cancel        connection u64 · request u64
//!   6 disconnect    connection u64
//!   7 force release key
//! keys: count u8 · keys in byte order        key: length u8 · UTF-8
//! ```

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use highwater_lock::{
    ConnectionId, Epoch, FencingToken, Key, KeySet, Operation, RequestId, Timestamp, WaiterId,
};

use highwater_protocol::handshake::Slot;

use super::bytes::{Malformed, Put, Reader};

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The term of the leader that proposed it.
    pub(super) epoch: Epoch,
    /// The slot of that leader.
    pub(super) leader: Slot,
    /// Lease time at which it was proposed.
    pub(super) stamp: Timestamp,
    /// Counted by the leader within its epoch, so that it knows its own again.
    pub(super) number: u64,
    pub(super) operations: Vec<Operation>,
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, number, .. } = self;
        write!(f, "{epoch}/{number}: {} commands", self.operations.len())
    }
}

const VERSION: u8 = 1;

impl Batch {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.u8(VERSION);
        bytes.u64(self.epoch.get());
        bytes.u8(self.leader.get());
        bytes.u64(self.stamp.as_micros());
        bytes.u64(self.number);
        bytes.count(self.operations.len());
        for operation in &self.operations {
            encode(operation, bytes);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        if reader.u8()? != VERSION {
            return Err(reader.wrong());
        }
        let epoch = Epoch::new(reader.u64()?);
        let leader = Slot::new(reader.u8()?).ok_or(reader.wrong())?;
        let stamp = Timestamp::from_micros(reader.u64()?);
        let number = reader.u64()?;
        let count = reader.count(1)?;
        let operations = (0..count).map(|_| decode(reader));
        Ok(Self {
            epoch,
            leader,
            stamp,
            number,
            operations: operations.collect::<Result<_, _>>()?,
        })
    }
}

/// A batch with its bytes, which the log and every follower are given. Clones are the same.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Sealed(Arc<Content>);

#[derive(PartialEq, Eq)]
struct Content {
    batch: Batch,
    bytes: Box<[u8]>,
}

impl Sealed {
    pub(super) fn new(batch: Batch) -> Self {
        let weights = batch.operations.iter().map(weight);
        let mut bytes = Vec::with_capacity(HEAD_BYTES + weights.sum::<usize>());
        batch.encode(&mut bytes);
        let bytes = bytes.into_boxed_slice();
        Self(Arc::new(Content { batch, bytes }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let before = reader.rest();
        let batch = Batch::decode(reader)?;
        let read = before.len() - reader.rest().len();
        let bytes = before[..read].into();
        Ok(Self(Arc::new(Content { batch, bytes })))
    }
}

impl Deref for Sealed {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.0.batch
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.batch, f)
    }
}

impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.batch, f)
    }
}

/// Of a batch in front of its operations.
const HEAD_BYTES: usize = 30;

/// About how many bytes an operation takes in an entry.
pub(super) fn weight(operation: &Operation) -> usize {
    let keys = match operation {
        Operation::Acquire { keys, .. }
        | Operation::Release { keys, .. }
        | Operation::Extend { keys, .. } => keys.keys(),
        Operation::AcquireSlot { name, .. } => std::slice::from_ref(name),
        _ => &[],
    };
    40 + keys
        .iter()
        .map(|key| 1 + key.as_bytes().len())
        .sum::<usize>()
}

fn encode(operation: &Operation, bytes: &mut Vec<u8>) {
    match operation {
        Operation::Tick => bytes.u8(0),
        Operation::Acquire {
            waiter,
            keys,
            wait,
            lease,
        } => {
            bytes.u8(1);
            put_waiter(bytes, *waiter);
            put_time(bytes, *wait);
            put_time(bytes, *lease);
            put_keys(bytes, keys);
        }
        Operation::AcquireSlot {
            waiter,
            name,
            slots,
            wait,
            lease,
        } => {
            bytes.u8(2);
            put_waiter(bytes, *waiter);
            put_time(bytes, *wait);
            put_time(bytes, *lease);
            bytes.u32(slots.get());
            put_key(bytes, name);
        }
        Operation::Release {
            keys,
            token,
            minimum_hold,
        } => {
            bytes.u8(3);
            bytes.u64(token.get());
            put_time(bytes, *minimum_hold);
            put_keys(bytes, keys);
        }
        Operation::Extend { keys, token, lease } => {
            bytes.u8(4);
            bytes.u64(token.get());
            put_time(bytes, *lease);
            put_keys(bytes, keys);
        }
        Operation::Cancel { waiter } => {
            bytes.u8(5);
            put_waiter(bytes, *waiter);
        }
        Operation::Disconnect { connection } => {
            bytes.u8(6);
            bytes.u64(connection.get());
        }
        Operation::ForceRelease { key } => {
            bytes.u8(7);
            put_key(bytes, key);
        }
    }
}

fn decode(reader: &mut Reader<'_>) -> Result<Operation, Malformed> {
    Ok(match reader.u8()? {
        0 => Operation::Tick,
        1 => Operation::Acquire {
            waiter: waiter(reader)?,
            wait: time(reader)?,
            lease: time(reader)?,
            keys: keys(reader)?,
        },
        2 => Operation::AcquireSlot {
            waiter: waiter(reader)?,
            wait: time(reader)?,
            lease: time(reader)?,
            slots: NonZeroU32::new(reader.u32()?).ok_or(reader.wrong())?,
            name: key(reader)?,
        },
        3 => Operation::Release {
            token: token(reader)?,
            minimum_hold: time(reader)?,
            keys: keys(reader)?,
        },
        4 => Operation::Extend {
            token: token(reader)?,
            lease: time(reader)?,
            keys: keys(reader)?,
        },
        5 => Operation::Cancel {
            waiter: waiter(reader)?,
        },
        6 => Operation::Disconnect {
            connection: ConnectionId::new(reader.u64()?),
        },
        7 => Operation::ForceRelease { key: key(reader)? },
        _ => return Err(reader.wrong()),
    })
}

fn put_waiter(bytes: &mut Vec<u8>, waiter: WaiterId) {
    bytes.u64(waiter.connection.get());
    bytes.u64(waiter.request.get());
}

fn waiter(reader: &mut Reader<'_>) -> Result<WaiterId, Malformed> {
    let connection = ConnectionId::new(reader.u64()?);
    Ok(WaiterId::new(connection, RequestId::new(reader.u64()?)))
}

/// Exactly, or the leader's own machine would decide by another time than the others.
fn put_time(bytes: &mut Vec<u8>, time: Duration) {
    bytes.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn time(reader: &mut Reader<'_>) -> Result<Duration, Malformed> {
    Ok(Duration::from_nanos(reader.u64()?))
}

fn token(reader: &mut Reader<'_>) -> Result<FencingToken, Malformed> {
    FencingToken::new(reader.u64()?).ok_or(reader.wrong())
}

fn put_keys(bytes: &mut Vec<u8>, keys: &KeySet) {
    bytes.u8(u8::try_from(keys.keys().len()).expect("sets are short"));
    for key in keys.keys() {
        put_key(bytes, key);
    }
}

fn keys(reader: &mut Reader<'_>) -> Result<KeySet, Malformed> {
    let count = reader.u8()?;
    let keys: Result<Vec<Key>, _> = (0..count).map(|_| key(reader)).collect();
    KeySet::from_sorted(keys?).map_err(|_| reader.wrong())
}

fn put_key(bytes: &mut Vec<u8>, key: &Key) {
    bytes.u8(u8::try_from(key.as_bytes().len()).expect("keys are short"));
    bytes.put(key.as_bytes());
}

fn key(reader: &mut Reader<'_>) -> Result<Key, Malformed> {
    let length = reader.u8()?;
    let name = std::str::from_utf8(reader.take(length.into())?);
    let name = name.map_err(|_| reader.wrong())?;
    Key::new(name).map_err(|_| reader.wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind.
    pub(crate) fn all() -> Batch {
        let waiter = WaiterId::new(ConnectionId::new(7), RequestId::new(8));
        let name = Key::new("stock/apple").unwrap();
        let keys = KeySet::new([name.clone(), Key::new("b").unwrap()]).unwrap();
        let (wait, lease) = (Duration::from_millis(950), Duration::from_secs(3));
        let token = FencingToken::MAX;
        Batch {
            epoch: Epoch::new(3),
            leader: Slot::new(2).unwrap(),
            stamp: Timestamp::from_micros(5),
            number: 9,
            operations: vec![
                Operation::Tick,
                Operation::Acquire {
                    waiter,
                    keys: keys.clone(),
                    wait,
                    lease,
                },
                Operation::AcquireSlot {
                    waiter,
                    name: name.clone(),
                    slots: NonZeroU32::MAX,
                    wait,
                    lease,
                },
                Operation::Release {
                    keys: keys.clone(),
                    token,
                    minimum_hold: lease,
                },
                Operation::Extend { keys, token, lease },
                Operation::Cancel { waiter },
                Operation::Disconnect {
                    connection: ConnectionId::new(1),
                },
                Operation::ForceRelease { key: name },
            ],
        }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_and_a_cut_one_is_not() {
        let sealed = Sealed::new(all());
        let bytes = sealed.bytes();
        let followed = [bytes, &[1, 2, 3]].concat();
        let mut reader = Reader::new(&followed, "batch");
        let read = Sealed::decode(&mut reader).unwrap();
        assert_eq!(read, sealed);
        assert_eq!(read.bytes(), bytes);
        assert_eq!(reader.rest(), [1, 2, 3]);
        for length in 0..bytes.len() {
            let cut = Sealed::decode(&mut Reader::new(&bytes[..length], "batch"));
            assert!(cut.is_err(), "{length}");
        }
    }
}

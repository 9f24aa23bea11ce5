//! What a client sends: its bounds, its judgement, its bytes.
//!
//! Here is decided which mistakes are answered and which end the connection; the table of lengths
//! of the base protocol is the published one, so a server behaves like the one that the published
//! clients know.

use core::num::NonZeroU32;

use highwater_lock::{FencingToken, Key, KeySet};

use super::{frame, put_u32, put_u64, read_id};
use crate::frame::{Fields, FrameError};
use crate::message::{
    ErrorCode, Incoming, LeaseMillis, LeaseSeconds, Request, RequestNumber, Shape, SpanMillis,
};

pub(super) fn request_bounds(opcode: u8) -> Option<(usize, usize)> {
    Some(match opcode {
        b'A' => (10, 138),
        b'R' => (16, 144),
        b'S' => (11, 2_075),
        b'G' => (17, 2_081),
        b'd' => (8, 8),
        b'x' | b'h' => (21, 2_085),
        b'c' => (16, 16),
        b'a' => (17, 2_081),
        b'n' => (20, 148),
        b'q' => (12, 140),
        _ => return None,
    })
}

/// Something that can be read; the code says why it must not be obeyed.
type Judged<T> = Result<T, ErrorCode>;

pub(super) fn read_request(opcode: u8, body: &[u8]) -> Result<Incoming, FrameError> {
    let mut fields = Fields::new(body);
    let id = read_id(&mut fields)?;
    let judged = match opcode {
        b'A' | b'S' => read_acquire(id, opcode == b'S', &mut fields)?,
        b'R' | b'G' => {
            let token = read_token(&mut fields)?;
            let keys = read_keys(opcode == b'G', 2, &mut fields)?;
            keys.and_then(|keys| {
                Ok(Request::Release {
                    id,
                    keys,
                    token: token?,
                })
            })
        }
        b'd' => Ok(Request::Domain { id }),
        b'x' => {
            let token = read_token(&mut fields)?;
            let lease = read_lease(&mut fields)?;
            let keys = read_keys(true, 1, &mut fields)?;
            keys.and_then(|keys| {
                Ok(Request::Extend {
                    id,
                    keys,
                    token: token?,
                    lease: lease?,
                })
            })
        }
        b'c' => Ok(Request::Cancel {
            id,
            acquire: read_id(&mut fields)?,
        }),
        b'a' => {
            let (wait, lease) = (read_span(&mut fields)?, read_lease(&mut fields)?);
            let keys = read_keys(true, 1, &mut fields)?;
            keys.and_then(|keys| {
                Ok(Request::AcquireTimed {
                    id,
                    keys,
                    wait: wait?,
                    lease: lease?,
                })
            })
        }
        b'n' => read_acquire_slot(id, &mut fields)?,
        b'h' => {
            let token = read_token(&mut fields)?;
            let minimum = read_span(&mut fields)?;
            let keys = read_keys(true, 1, &mut fields)?;
            keys.and_then(|keys| {
                Ok(Request::Retain {
                    id,
                    keys,
                    token: token?,
                    minimum: minimum?,
                })
            })
        }
        b'q' => {
            let from_slot = fields.u32()?;
            read_key(fields.rest())?.map(|key| Request::Query { id, key, from_slot })
        }
        _ => return Err(FrameError::Opcode { opcode }),
    };
    fields.end()?;
    Ok(match judged {
        Ok(request) => Incoming::Valid(request),
        Err(code) => Incoming::Refused { id, code },
    })
}

fn read_acquire(
    id: RequestNumber,
    counted: bool,
    fields: &mut Fields<'_>,
) -> Result<Judged<Request>, FrameError> {
    let (wait_seconds, lease) = (fields.u8()?, fields.u8()?);
    let keys = read_keys(counted, 2, fields)?;
    let lease = LeaseSeconds::new(lease).ok_or(ErrorCode::BadLease);
    Ok(keys.and_then(|keys| {
        Ok(Request::Acquire {
            id,
            keys,
            wait_seconds,
            lease: lease?,
        })
    }))
}

fn read_acquire_slot(
    id: RequestNumber,
    fields: &mut Fields<'_>,
) -> Result<Judged<Request>, FrameError> {
    let (wait, lease) = (read_span(fields)?, read_lease(fields)?);
    let slots = NonZeroU32::new(fields.u32()?).ok_or(ErrorCode::BadSlots);
    let name = read_key(fields.rest())?;
    Ok(name.and_then(|name| {
        Ok(Request::AcquireSlot {
            id,
            name,
            wait: wait?,
            lease: lease?,
            slots: slots?,
        })
    }))
}

fn read_token(fields: &mut Fields<'_>) -> Result<Judged<FencingToken>, FrameError> {
    Ok(FencingToken::new(fields.u64()?).ok_or(ErrorCode::BadToken))
}

fn read_lease(fields: &mut Fields<'_>) -> Result<Judged<LeaseMillis>, FrameError> {
    Ok(LeaseMillis::new(fields.u32()?).ok_or(ErrorCode::BadLease))
}

fn read_span(fields: &mut Fields<'_>) -> Result<Judged<SpanMillis>, FrameError> {
    Ok(SpanMillis::new(fields.u32()?).ok_or(ErrorCode::BadTime))
}

/// Reads a counted list of keys, or one key that takes the rest of the body.
///
/// The whole structure is walked even when something in it is already wrong: a list that can be
/// followed to its end is answered, one that cannot ends the connection.
fn read_keys(
    counted: bool,
    fewest: u8,
    fields: &mut Fields<'_>,
) -> Result<Judged<KeySet>, FrameError> {
    if !counted {
        return Ok(read_key(fields.rest())?.map(KeySet::from));
    }
    let count = fields.u8()?;
    let mut keys = if usize::from(count) > KeySet::MAX_KEYS || count < fewest {
        Err(ErrorCode::BadKeySet)
    } else {
        Ok(Vec::with_capacity(usize::from(count)))
    };
    for _ in 0..count {
        let length = usize::from(fields.u8()?);
        let key = read_key(fields.bytes(length)?)?;
        keys = keys.and_then(|mut keys| {
            keys.push(key?);
            Ok(keys)
        });
    }
    Ok(keys.and_then(|keys| KeySet::from_sorted(keys).map_err(|_| ErrorCode::BadKeySet)))
}

fn read_key(bytes: &[u8]) -> Result<Judged<Key>, FrameError> {
    let name = core::str::from_utf8(bytes).map_err(|_| FrameError::Utf8)?;
    Ok(Key::new(name).map_err(|_| ErrorCode::BadKey))
}

impl Request {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Acquire {
                id,
                keys,
                wait_seconds,
                lease,
            } => frame(out, by_shape(keys, b'A', b'S'), |out| {
                put_u64(out, id.get());
                out.extend_from_slice(&[*wait_seconds, lease.get()]);
                put_keys(out, keys);
            }),
            Self::Release { id, keys, token } => frame(out, by_shape(keys, b'R', b'G'), |out| {
                put_u64(out, id.get());
                put_u64(out, token.get());
                put_keys(out, keys);
            }),
            Self::Domain { id } => frame(out, b'd', |out| put_u64(out, id.get())),
            Self::Extend {
                id,
                keys,
                token,
                lease,
            } => frame(out, b'x', |out| {
                put_u64(out, id.get());
                put_u64(out, token.get());
                put_u32(out, lease.get());
                put_counted(out, keys);
            }),
            Self::Cancel { id, acquire } => frame(out, b'c', |out| {
                put_u64(out, id.get());
                put_u64(out, acquire.get());
            }),
            Self::AcquireTimed {
                id,
                keys,
                wait,
                lease,
            } => frame(out, b'a', |out| {
                put_u64(out, id.get());
                put_u32(out, wait.get());
                put_u32(out, lease.get());
                put_counted(out, keys);
            }),
            Self::AcquireSlot {
                id,
                name,
                slots,
                wait,
                lease,
            } => frame(out, b'n', |out| {
                put_u64(out, id.get());
                put_u32(out, wait.get());
                put_u32(out, lease.get());
                put_u32(out, slots.get());
                out.extend_from_slice(name.as_bytes());
            }),
            Self::Retain {
                id,
                keys,
                token,
                minimum,
            } => frame(out, b'h', |out| {
                put_u64(out, id.get());
                put_u64(out, token.get());
                put_u32(out, minimum.get());
                put_counted(out, keys);
            }),
            Self::Query { id, key, from_slot } => frame(out, b'q', |out| {
                put_u64(out, id.get());
                put_u32(out, *from_slot);
                out.extend_from_slice(key.as_bytes());
            }),
        }
    }
}

fn by_shape(keys: &KeySet, one: u8, set: u8) -> u8 {
    match Shape::of(keys) {
        Shape::One => one,
        Shape::Set => set,
    }
}

fn put_keys(out: &mut Vec<u8>, keys: &KeySet) {
    match keys.keys() {
        [key] => out.extend_from_slice(key.as_bytes()),
        _ => put_counted(out, keys),
    }
}

fn put_counted(out: &mut Vec<u8>, keys: &KeySet) {
    out.push(u8::try_from(keys.len()).expect("a set has at most 16 keys"));
    for key in keys.keys() {
        out.push(u8::try_from(key.as_bytes().len()).expect("a key has at most 128 bytes"));
        out.extend_from_slice(key.as_bytes());
    }
}

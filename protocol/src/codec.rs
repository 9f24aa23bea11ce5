//! Between messages and bytes, in both directions.
//!
//! The layout of every frame stands in the crate's documentation. Here is also decided which
//! mistakes of a client are answered and which end its connection; the table of request lengths
//! is the published one, so a server behaves like the one that the published clients know.

use highwater_lock::{Domain, FencingToken, Key, KeySet};

use crate::frame::{Fields, FrameBuffer, FrameError, HEADER_BYTES};
use crate::handshake::Slot;
use crate::message::{
    ErrorCode, Incoming, LeaseMillis, LeaseSeconds, Reply, Request, RequestNumber, Shape,
};

/// The longest request frame, in bytes: a release of a set of 16 keys of 128 bytes.
pub const MAX_REQUEST_BYTES: usize = HEADER_BYTES + 2_085;
/// The longest reply frame of the base protocol, in bytes.
pub const MAX_BASE_REPLY_BYTES: usize = HEADER_BYTES + 16;
/// The longest reply frame, in bytes: the domain, which only our own client asks for.
pub const MAX_REPLY_BYTES: usize = HEADER_BYTES + 40;

const NO_LEADER: u8 = 255;

fn request_bounds(opcode: u8) -> Option<(usize, usize)> {
    Some(match opcode {
        b'A' => (10, 138),
        b'R' => (16, 144),
        b'S' => (11, 2_075),
        b'G' => (17, 2_081),
        b'd' => (8, 8),
        b'x' => (21, 2_085),
        b'c' => (16, 16),
        _ => return None,
    })
}

fn reply_bounds(opcode: u8) -> Option<(usize, usize)> {
    let exactly = match opcode {
        b'A' | b'S' => 16,
        b'R' | b'G' | b'N' | b'T' | b'B' | b'I' => 8,
        b'M' | b'E' | b'c' => 9,
        b'L' => 1,
        b'd' => 40,
        b'x' => 12,
        _ => return None,
    };
    Some((exactly, exactly))
}

/// Reads what a client sends.
///
/// Feed it every chunk that arrives, in order; take frames until it gives `None`, which means that
/// the chunk is used up:
///
/// ```
/// use highwater_protocol::{Incoming, RequestDecoder};
///
/// let mut decoder = RequestDecoder::new();
/// let mut chunk: &[u8] = b"R\0\x11\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x2aq";
/// while let Some(incoming) = decoder.next(&mut chunk)? {
///     assert!(matches!(incoming, Incoming::Valid(request) if request.id().get() == 7));
/// }
/// # Ok::<(), highwater_protocol::FrameError>(())
/// ```
///
/// Between chunks it keeps less than one frame, so at most [`MAX_REQUEST_BYTES`]; it allocates
/// nothing until a frame arrives in pieces.
#[derive(Debug)]
pub struct RequestDecoder {
    frames: FrameBuffer,
    failed: Option<FrameError>,
}

/// Reads what a server sends. Used like [`RequestDecoder`]; keeps at most [`MAX_REPLY_BYTES`].
#[derive(Debug)]
pub struct ReplyDecoder {
    frames: FrameBuffer,
    failed: Option<FrameError>,
}

macro_rules! decoder {
    ($decoder:ident, $message:ty, $bounds:path, $read:path) => {
        impl $decoder {
            /// A decoder at the start of a frame.
            pub const fn new() -> Self {
                Self {
                    frames: FrameBuffer::new($bounds),
                    failed: None,
                }
            }

            /// Takes the next message off the front of `chunk`, or uses the chunk up and gives
            /// `None`.
            ///
            /// # Errors
            /// The bytes cannot be followed any further: end the connection. Every later call
            /// gives the same error.
            pub fn next(&mut self, chunk: &mut &[u8]) -> Result<Option<$message>, FrameError> {
                if let Some(error) = self.failed {
                    return Err(error);
                }
                self.frames
                    .next(chunk, $read)
                    .inspect_err(|error| self.failed = Some(*error))
            }

            /// Whether a frame has begun and not ended: the peer owes bytes.
            pub fn is_mid_frame(&self) -> bool {
                self.frames.is_mid_frame()
            }

            /// How many bytes of memory the unfinished frame takes, its bound for tests.
            pub fn capacity(&self) -> usize {
                self.frames.capacity()
            }
        }

        impl Default for $decoder {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

decoder!(RequestDecoder, Incoming, request_bounds, read_request);
decoder!(ReplyDecoder, Reply, reply_bounds, read_reply);

fn read_id(fields: &mut Fields<'_>) -> Result<RequestNumber, FrameError> {
    RequestNumber::new(fields.u64()?).ok_or(FrameError::ZeroId)
}

fn read_request(opcode: u8, body: &[u8]) -> Result<Incoming, FrameError> {
    let mut fields = Fields::new(body);
    let id = read_id(&mut fields)?;
    let judged = match opcode {
        b'A' | b'S' => {
            let (wait_seconds, lease) = (fields.u8()?, fields.u8()?);
            let keys = read_keys(opcode == b'S', 2, &mut fields)?;
            let lease = LeaseSeconds::new(lease).ok_or(ErrorCode::BadLease);
            keys.and_then(|keys| {
                Ok(Request::Acquire {
                    id,
                    keys,
                    wait_seconds,
                    lease: lease?,
                })
            })
        }
        b'R' | b'G' => {
            let token = FencingToken::new(fields.u64()?).ok_or(ErrorCode::BadToken);
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
            let token = FencingToken::new(fields.u64()?).ok_or(ErrorCode::BadToken);
            let lease = LeaseMillis::new(fields.u32()?).ok_or(ErrorCode::BadLease);
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
        _ => return Err(FrameError::Opcode { opcode }),
    };
    fields.end()?;
    Ok(match judged {
        Ok(request) => Incoming::Valid(request),
        Err(code) => Incoming::Refused { id, code },
    })
}

/// Reads a counted list of keys, or one key that takes the rest of the body.
///
/// The whole structure is walked even when something in it is already wrong: a list that can be
/// followed to its end is answered, one that cannot ends the connection.
fn read_keys(
    counted: bool,
    fewest: u8,
    fields: &mut Fields<'_>,
) -> Result<Result<KeySet, ErrorCode>, FrameError> {
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

fn read_key(bytes: &[u8]) -> Result<Result<Key, ErrorCode>, FrameError> {
    let name = core::str::from_utf8(bytes).map_err(|_| FrameError::Utf8)?;
    Ok(Key::new(name).map_err(|_| ErrorCode::BadKey))
}

fn read_reply(opcode: u8, body: &[u8]) -> Result<Reply, FrameError> {
    let mut fields = Fields::new(body);
    if opcode == b'L' {
        let leader = read_leader(fields.u8()?)?;
        return fields.end().map(|()| Reply::Leader { leader });
    }
    let id = read_id(&mut fields)?;
    let shape = if matches!(opcode, b'S' | b'G') {
        Shape::Set
    } else {
        Shape::One
    };
    let reply = match opcode {
        b'A' | b'S' => Reply::Granted {
            id,
            shape,
            token: FencingToken::new(fields.u64()?).ok_or(FrameError::Value)?,
        },
        b'R' | b'G' => Reply::Released { id, shape },
        b'N' => Reply::NotHeld { id },
        b'T' => Reply::TimedOut { id },
        b'B' => Reply::Busy { id },
        b'M' => Reply::Moved {
            id,
            leader: read_leader(fields.u8()?)?,
        },
        b'I' => Reply::Indeterminate { id },
        b'E' => Reply::Error {
            id,
            code: ErrorCode::from_byte(fields.u8()?).ok_or(FrameError::Value)?,
        },
        b'd' => Reply::Domain {
            id,
            domain: Domain::from_bytes(fields.array()?),
        },
        b'x' => Reply::Extended {
            id,
            remaining_ms: fields.u32()?,
        },
        b'c' => Reply::Cancelled {
            id,
            was_queued: match fields.u8()? {
                0 => false,
                1 => true,
                _ => return Err(FrameError::Value),
            },
        },
        _ => return Err(FrameError::Opcode { opcode }),
    };
    fields.end().map(|()| reply)
}

fn read_leader(byte: u8) -> Result<Option<Slot>, FrameError> {
    match byte {
        NO_LEADER => Ok(None),
        slot => Slot::new(slot).map(Some).ok_or(FrameError::Value),
    }
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
                out.extend_from_slice(&lease.get().to_be_bytes());
                put_counted(out, keys);
            }),
            Self::Cancel { id, acquire } => frame(out, b'c', |out| {
                put_u64(out, id.get());
                put_u64(out, acquire.get());
            }),
        }
    }
}

impl Reply {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, self.opcode(), |out| {
            if let Some(id) = self.id() {
                put_u64(out, id.get());
            }
            match self {
                Self::Granted { token, .. } => put_u64(out, token.get()),
                Self::Moved { leader, .. } | Self::Leader { leader } => {
                    out.push(leader.map_or(NO_LEADER, Slot::get));
                }
                Self::Error { code, .. } => out.push(code.to_byte()),
                Self::Domain { domain, .. } => out.extend_from_slice(domain.as_bytes()),
                Self::Extended { remaining_ms, .. } => {
                    out.extend_from_slice(&remaining_ms.to_be_bytes());
                }
                Self::Cancelled { was_queued, .. } => out.push(u8::from(*was_queued)),
                Self::Released { .. }
                | Self::NotHeld { .. }
                | Self::TimedOut { .. }
                | Self::Busy { .. }
                | Self::Indeterminate { .. } => {}
            }
        });
    }

    fn opcode(&self) -> u8 {
        match self {
            Self::Granted { shape, .. } => match shape {
                Shape::One => b'A',
                Shape::Set => b'S',
            },
            Self::Released { shape, .. } => match shape {
                Shape::One => b'R',
                Shape::Set => b'G',
            },
            Self::NotHeld { .. } => b'N',
            Self::TimedOut { .. } => b'T',
            Self::Busy { .. } => b'B',
            Self::Moved { .. } => b'M',
            Self::Indeterminate { .. } => b'I',
            Self::Error { .. } => b'E',
            Self::Leader { .. } => b'L',
            Self::Domain { .. } => b'd',
            Self::Extended { .. } => b'x',
            Self::Cancelled { .. } => b'c',
        }
    }
}

fn by_shape(keys: &KeySet, one: u8, set: u8) -> u8 {
    match Shape::of(keys) {
        Shape::One => one,
        Shape::Set => set,
    }
}

fn frame(out: &mut Vec<u8>, opcode: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[opcode, 0, 0]);
    let start = out.len();
    body(out);
    let length = u16::try_from(out.len() - start).expect("every body is far below 64 KiB");
    out[start - 2..start].copy_from_slice(&length.to_be_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
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

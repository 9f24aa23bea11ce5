//! What a server sends: its bounds, its meaning, its bytes.

use core::num::NonZeroU32;

use highwater_lock::{Domain, FencingToken};

use super::{Fields, frame, put_u32, put_u64, read_id};
use crate::frame::FrameError;
use crate::handshake::Slot;
use crate::message::{ErrorCode, Extensions, KeyState, KeyStatus, Reply, Shape};

const NO_LEADER: u8 = 255;
const FREE: u8 = 0;
const HELD: u8 = 1;
const RETAINED: u8 = 2;

pub(super) fn reply_bounds(opcode: u8) -> Option<(usize, usize)> {
    let exactly = match opcode {
        b'A' | b'S' => 16,
        b'R' | b'G' | b'N' | b'T' | b'B' | b'I' | b'h' => 8,
        b'M' | b'E' | b'c' => 9,
        b'L' => 1,
        b'd' => 44,
        b'x' => 12,
        b'a' => 20,
        b'n' => 24,
        b'q' => 37,
        _ => return None,
    };
    Some((exactly, exactly))
}

pub(super) fn read_reply(opcode: u8, body: &[u8]) -> Result<Reply, FrameError> {
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
            token: read_token(&mut fields)?,
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
            extensions: Extensions::from_bits(fields.u32()?),
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
        b'a' => Reply::GrantedTimed {
            id,
            token: read_token(&mut fields)?,
            waited_ms: fields.u32()?,
        },
        b'n' => Reply::GrantedSlot {
            id,
            token: read_token(&mut fields)?,
            waited_ms: fields.u32()?,
            slot: fields.u32()?,
        },
        b'h' => Reply::Retained { id },
        b'q' => Reply::Status {
            id,
            status: read_status(&mut fields)?,
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

fn read_token(fields: &mut Fields<'_>) -> Result<FencingToken, FrameError> {
    FencingToken::new(fields.u64()?).ok_or(FrameError::Value)
}

fn read_status(fields: &mut Fields<'_>) -> Result<KeyStatus, FrameError> {
    let (state, slot) = (fields.u8()?, fields.u32()?);
    let token = FencingToken::new(fields.u64()?);
    let remaining_ms = fields.u32()?;
    let waiters = fields.u32()?;
    let slots = NonZeroU32::new(fields.u32()?);
    let taken = fields.u32()?;
    let places = slots.map_or(1, NonZeroU32::get);
    let state = match (state, token) {
        (FREE, None) if slot == 0 && remaining_ms == 0 => KeyState::Free,
        (HELD, Some(token)) if slot < places && taken > 0 => KeyState::Held {
            token,
            slot,
            remaining_ms,
        },
        (RETAINED, Some(token)) if slot < places && taken > 0 => KeyState::Retained {
            token,
            slot,
            remaining_ms,
        },
        _ => return Err(FrameError::Value),
    };
    if taken > places {
        return Err(FrameError::Value);
    }
    Ok(KeyStatus {
        state,
        waiters,
        slots,
        taken,
    })
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
                Self::Domain {
                    domain, extensions, ..
                } => {
                    out.extend_from_slice(domain.as_bytes());
                    put_u32(out, extensions.bits());
                }
                Self::Extended { remaining_ms, .. } => put_u32(out, *remaining_ms),
                Self::Cancelled { was_queued, .. } => out.push(u8::from(*was_queued)),
                Self::GrantedTimed {
                    token, waited_ms, ..
                } => {
                    put_u64(out, token.get());
                    put_u32(out, *waited_ms);
                }
                Self::GrantedSlot {
                    token,
                    waited_ms,
                    slot,
                    ..
                } => {
                    put_u64(out, token.get());
                    put_u32(out, *waited_ms);
                    put_u32(out, *slot);
                }
                Self::Status { status, .. } => put_status(out, status),
                Self::Released { .. }
                | Self::Retained { .. }
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
            Self::GrantedTimed { .. } => b'a',
            Self::GrantedSlot { .. } => b'n',
            Self::Retained { .. } => b'h',
            Self::Status { .. } => b'q',
        }
    }
}

fn put_status(out: &mut Vec<u8>, status: &KeyStatus) {
    let (state, slot, token, remaining_ms) = match status.state {
        KeyState::Free => (FREE, 0, 0, 0),
        KeyState::Held {
            token,
            slot,
            remaining_ms,
        } => (HELD, slot, token.get(), remaining_ms),
        KeyState::Retained {
            token,
            slot,
            remaining_ms,
        } => (RETAINED, slot, token.get(), remaining_ms),
    };
    out.push(state);
    put_u32(out, slot);
    put_u64(out, token);
    put_u32(out, remaining_ms);
    put_u32(out, status.waiters);
    put_u32(out, status.slots.map_or(0, NonZeroU32::get));
    put_u32(out, status.taken);
}

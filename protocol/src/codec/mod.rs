//! Between messages and bytes, in both directions.
//!
//! The layout of every frame stands in the crate's documentation. Here are the two decoders and
//! the bounds of all frames together; what a client sends is read and judged in [`request`], what
//! a server sends in [`reply`].

mod reply;
mod request;

use self::reply::{read_reply, reply_bounds};
use self::request::{read_request, request_bounds};
use crate::frame::{Fields, FrameBuffer, FrameError, HEADER_BYTES};
use crate::message::{Incoming, Reply, RequestNumber};

/// The longest request frame, in bytes: an extension of a set of 16 keys of 128 bytes.
pub const MAX_REQUEST_BYTES: usize = HEADER_BYTES + 2_085;
/// The longest reply frame of the base protocol, in bytes.
pub const MAX_BASE_REPLY_BYTES: usize = HEADER_BYTES + 16;
/// The longest reply frame, in bytes: the domain, which only our own client asks for.
pub const MAX_REPLY_BYTES: usize = HEADER_BYTES + 44;

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

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

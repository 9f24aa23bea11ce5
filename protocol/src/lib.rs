//! The bytes between Highwater's clients and servers, without any I/O.
//!
//! Frames, messages, the challenge-response and every bound of them. Nothing here opens a socket,
//! reads a clock or makes randomness: bytes, nonces and secrets are arguments, so client, server,
//! simulation and fuzzing all use this one implementation. Start with [`Request`] and [`Reply`],
//! then [`RequestDecoder`].
//!
//! # A connection
//!
//! TCP, then TLS if it is on, then the challenge-response of [`handshake`] (28 bytes from the
//! server, 32 bytes back, 1 byte of verdict), then frames in both directions. Numbers are
//! big-endian.
//!
//! A frame is `opcode u8 · body length u16 · body`. Every request carries an id that is not zero
//! and not in use on the connection; every request gets exactly one reply with that id; replies
//! come in any order. The base protocol is the one that published clients speak:
//!
//! | request | opcode | body |
//! |---|---|---|
//! | acquire | `A` | id u64 · wait u8 (s) · lease u8 (s, 1..=250) · key (rest of the body, 1..=128 bytes) |
//! | release | `R` | id u64 · token u64 · key (rest of the body) |
//! | acquire set | `S` | id u64 · wait u8 · lease u8 · count u8 (2..=16) · count × (length u8 · key) |
//! | release set | `G` | id u64 · token u64 · count u8 · count × (length u8 · key) |
//!
//! | reply | opcode | body | to |
//! |---|---|---|---|
//! | granted | `A`, `S` | id u64 · token u64 | `A`, `S` |
//! | released | `R`, `G` | id u64 | `R`, `G` |
//! | not held | `N` | id u64 | `R`, `G`, `x` |
//! | timed out | `T` | id u64 | `A`, `S` |
//! | busy | `B` | id u64 | `A`, `S` |
//! | moved | `M` | id u64 · leader slot u8 (255 unknown) | any |
//! | indeterminate | `I` | id u64 | any |
//! | error | `E` | id u64 · code u8 ([`ErrorCode`]) | any that the code fits |
//! | leader | `L` | leader slot u8 (255 none) | unasked |
//!
//! # What is answered and what ends the connection
//!
//! A frame whose structure cannot be followed is a [`FrameError`]: unknown opcode, a length
//! outside the bounds (bodies of at most 138 `A`, 144 `R`, 2075 `S`, 2081 `G` bytes; replies of
//! at most 16), id 0, fields that do not end with the body, a key that is not UTF-8. An id still
//! in use is an error of the same kind, which only the connection can see. A frame that can be
//! followed and asks for nonsense is [`Incoming::Refused`] with the code to answer: an empty key,
//! a longer one inside a set, or a forbidden byte (1), a lease of 0 or above 250 (2), a set that
//! is not sorted, not distinct or not of 2 to 16 keys (5), a zero token (7). When several are
//! wrong, the number of keys is judged first, then the keys, their order, and then the rest.
//!
//! # Extensions
//!
//! Lower-case opcodes are Highwater's own; a base client never sends them. A server without them
//! ends the connection, so a client asks `d` first, on a fresh connection with nothing in flight,
//! and on a close falls back to the base protocol.
//!
//! | request | opcode | body |
//! |---|---|---|
//! | domain | `d` | id u64 |
//! | extend | `x` | id u64 · token u64 · lease u32 (ms, 1..=3 600 000) · count u8 (1..=16) · count × (length u8 · key) |
//! | cancel | `c` | id u64 · id of the acquire u64 |
//!
//! | reply | opcode | body | to |
//! |---|---|---|---|
//! | domain | `d` | id u64 · domain 32 bytes | `d` |
//! | extended | `x` | id u64 · remaining lease u32 (ms) | `x` |
//! | cancelled | `c` | id u64 · u8 (1 it stood in the queue, 0 it did not) | `c` |
//!
//! A refused extension is answered by `E`: 1 or 5 for the keys, 2 for the lease, 7 for a zero
//! token, 6 for a token of another key set. The longest extension bodies are 2085 bytes (`x`) and,
//! for replies, 40 bytes (`d`); a client that never sends extensions never gets such a reply.
//! A server that knows an extension by its opcode and cannot serve it now answers `E` 3.
//!
//! These opcodes are set aside, so that later ones fit together. Until a server serves them they
//! are unknown, and end the connection:
//!
//! | request | opcode | body | reply |
//! |---|---|---|---|
//! | acquire | `a` | id u64 · wait u32 (ms) · lease u32 (ms) · count u8 · count × (length u8 · key) | `a`: id u64 · token u64 · waited u32 (ms) |
//! | acquire one of N slots | `n` | id u64 · wait u32 (ms) · lease u32 (ms) · slots u32 · name (rest of the body) | `n`: id u64 · token u64 · waited u32 (ms) · slot u32 |
//! | release with minimum hold | `h` | id u64 · token u64 · minimum u32 (ms from the grant) · count u8 · count × (length u8 · key) | `h`: id u64 |
//! | query one key | `q` | id u64 · key (rest of the body) | `q`: id u64 · token u64 (0 free) · waiters u32 |

mod codec;
mod frame;
pub mod handshake;
mod message;
mod secret;

pub use codec::{
    MAX_BASE_REPLY_BYTES, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, ReplyDecoder, RequestDecoder,
};
pub use frame::FrameError;
pub use highwater_lock::{Domain, FencingToken, Key, KeySet};
pub use message::{
    ErrorCode, Incoming, LeaseMillis, LeaseSeconds, Reply, Request, RequestKind, RequestNumber,
    Shape,
};
pub use secret::{Secret, SecretError};

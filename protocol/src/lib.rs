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
//! | not held | `N` | id u64 | `R`, `G` |
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
//! wrong, the number of keys is judged first, then the keys, their order, and then the other
//! fields as they stand in the body.
//!
//! # Extensions
//!
//! Lower-case opcodes are Highwater's own; a base client never sends them, and gets no reply that
//! the base protocol does not have. A base server ends the connection at the first of them, so a
//! client asks `d` first, on a fresh connection with nothing in flight, and on a close falls back
//! to the base protocol for this server: nothing is lost by the question. The answer tells which
//! of the others the server has ([`Extensions`]), and a client sends no others. Unknown bits mean
//! nothing. An opcode whose bit is not set is unknown to that server and ends the connection.
//!
//! | request | opcode | bit | body |
//! |---|---|---|---|
//! | domain | `d` | – | id u64 |
//! | extend | `x` | 1 | id u64 · token u64 · lease u32 · count u8 · count × (length u8 · key) |
//! | cancel | `c` | 2 | id u64 · id of the acquire u64 |
//! | acquire | `a` | 4 | id u64 · wait u32 · lease u32 · count u8 · count × (length u8 · key) |
//! | acquire one of N slots | `n` | 8 | id u64 · wait u32 · lease u32 · slots u32 · name (rest of the body, 1..=128 bytes) |
//! | release with a minimum hold | `h` | 16 | id u64 · token u64 · minimum u32 · count u8 · count × (length u8 · key) |
//! | query | `q` | 32 | id u64 · from slot u32 · key (rest of the body, 1..=128 bytes) |
//!
//! Times are in milliseconds: a wait or a minimum 0..=3 600 000, a lease 1..=3 600 000; lists have
//! 1 to 16 keys, canonical as in `S`. The longest bodies are 2085 bytes (`x`, `h`), 2081 (`a`),
//! 148 (`n`) and 140 (`q`).
//!
//! | reply | opcode | body | to |
//! |---|---|---|---|
//! | domain | `d` | id u64 · domain 32 bytes · extensions u32 (the sum of the bits) | `d` |
//! | extended | `x` | id u64 · remaining lease u32 | `x` |
//! | cancelled | `c` | id u64 · u8 (1 it stood in the queue, 0 it did not) | `c` |
//! | granted | `a` | id u64 · token u64 · waited u32 | `a` |
//! | slot granted | `n` | id u64 · token u64 · waited u32 · slot u32 (0 up to N-1) | `n` |
//! | released | `h` | id u64 | `h` |
//! | status | `q` | id u64 · state u8 (0 free, 1 held, 2 retained) · slot u32 · token u64 (0 free) · remaining u32 · waiters u32 · slots u32 (0 a plain lock, or a key that nobody uses) · taken u32 | `q` |
//!
//! - An acquire of either kind is also answered `T` and `B`, like `A`; an extension or a release of
//!   either kind also `N`. All can be answered `M`, `I` and `E`.
//! - `T` to `a` and `n` comes when the wait is over, not before, so a client gives it some time
//!   more. (`A` and `S` are answered a little early, for clients that do not.)
//! - `waited` is rounded down, and counted from the moment at which the server handled the
//!   request: the moment before sending, plus `waited`, plus the lease is never after its end.
//! - An acquire that is cancelled with `c` is answered `T` before the `c`.
//! - A slot is extended and released by its name as the only key, and its token. All who use a
//!   name give the same N as long as anybody holds or queues for it.
//! - A key released by `h` is retained: nobody has it until `minimum` after its grant, it cannot
//!   be extended, and a repeated release with its token is answered as a release again.
//! - A query tells of the first taken slot from `from slot` on; a plain lock is slot 0. So slots
//!   are walked by asking again from `slot` + 1. `taken` counts all of them. The answer may be old
//!   when it arrives. A client that can ask can also release what it learns of, but tokens are
//!   sequential and every client can do that anyway.
//! - Errors: 1 and 5 for keys, 2 for a lease, 7 for a zero token, 6 for a token of another key set,
//!   8 for a wait or minimum that is too long, 9 for no slots or more than the server allows, 10
//!   for a name that is in use as another kind of lock. 8 to 10 answer extensions alone; an `A` or
//!   `S` for a name with slots gets 1. Times that the server's own limits refuse get 2 and 8 too.
//! - A server that knows an extension and cannot serve it now answers `E` 3.

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
    ErrorCode, Extensions, Incoming, KeyState, KeyStatus, LeaseMillis, LeaseSeconds, Reply,
    Request, RequestKind, RequestNumber, Shape, SpanMillis,
};
pub use secret::{Secret, SecretError};

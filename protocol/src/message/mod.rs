//! What clients ask and servers answer.
//!
//! Values of these types are always legal: what a peer sent wrongly is either an error that ends
//! the connection or an [`Incoming::Refused`], never a strange request. The bytes are the
//! codec's business.

mod error_code;
mod extensions;
mod quantity;
mod reply;
mod request;

pub use self::error_code::ErrorCode;
pub use self::extensions::Extensions;
pub use self::quantity::{LeaseMillis, LeaseSeconds, SpanMillis};
pub use self::reply::{KeyState, KeyStatus, Reply};
pub use self::request::{Incoming, Request, RequestKind, RequestNumber, Shape};

//! Everything that the client tells about itself, in one place.
//!
//! With the feature `tracing` these are spans and events of that crate; without it they are
//! nothing. Neither knows a secret.

#[cfg_attr(feature = "tracing", path = "on.rs")]
#[cfg_attr(not(feature = "tracing"), path = "off.rs")]
mod switch;

pub(crate) use switch::*;

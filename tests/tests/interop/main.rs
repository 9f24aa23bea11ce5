//! The published client `ticketing` 0.4.0, unchanged, against our server.
//!
//! Only its public API is used. What it does with a connection is its own business; what we
//! promise is that it gets what it expects. Its own network tests run in `cargo xtask interop`.

mod bank;
mod locks;
mod restart;
mod support;
mod tls;

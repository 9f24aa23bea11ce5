//! What operators see and do, over real sockets: the admin listener, and new credentials.
//!
//! `http` and `client` are the two sides that talk to a server; each other module is one promise.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

mod access;
mod bounds;
mod client;
mod health;
mod http;
mod leaders;
mod locks;
mod metrics;
mod release;
mod reload;
mod tls;

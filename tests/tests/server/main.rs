//! The server over a real socket, byte by byte.
//!
//! Requests are written by hand, so that these tests notice when server and codec change
//! together. `wire` is the client; each other module is one promise of the server.

mod bounds;
mod delivery;
mod errors;
mod handshake;
mod lifecycle;
mod matrix;
mod queue;
mod tls;
mod wire;

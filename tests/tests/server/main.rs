//! The server over a real socket, byte by byte.
//!
//! Requests are written by hand, so that these tests notice when server and codec change
//! together. `wire` is the client; each other module is one promise of the server.

mod bounds;
mod busy;
mod counted;
mod delivery;
mod durable;
mod errors;
mod extensions;
mod fields;
mod handshake;
mod hostile;
mod lifecycle;
mod logged;
mod matrix;
mod queue;
mod table;
mod tls;
mod wire;

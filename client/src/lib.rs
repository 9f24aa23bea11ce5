//! The Highwater lock client: leases, fencing tokens and honest outcomes.
//!
//! A [`Client`] keeps connections to a lock server, takes locks on it and gives them back. What it
//! cannot do is make a write safe: a process can be paused past its lease at any moment. So a
//! [`Ticket`] gives a [`Fence`], which the database compares inside the transaction that writes;
//! that is the job of the fencing crate.
//!
//! ```no_run
//! use std::time::Duration;
//! use highwater_client::{AcquireOptions, Client, Key, Secret};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("locks.example:5225")
//!     .token(Secret::from_file_content(std::fs::read("client-token")?)?)
//!     .connect()
//!     .await?;
//! let options = AcquireOptions::new()
//!     .wait(Duration::from_secs(5))
//!     .lease(Duration::from_secs(30));
//! let ticket = client.acquire(&Key::new("stock/apple")?, options).await?;
//! let fence = ticket.fence(); // for every transaction that writes the stock of apples
//! # drop(fence);
//! ticket.release().await?;
//! client.close().await;
//! # Ok(()) }
//! ```
//!
//! What each outcome means, how long a ticket is good, slots and minimum holds: [`guide`].
//!
//! # Leader election
//!
//! A job that one of many processes may run: [`leader`].
//!
//! # Features
//!
//! - `blocking`: the module `blocking`, the same names for programs without async.
//! - `leader-contract`: the module `leader::contract`, tests for a lock service of yours.
//! - `macros`: the attributes `#[leader]` and `#[leader_group]`, see the module `leader::attributes`.
//! - `tracing`: spans and events. Counters are always there ([`Client::stats`]).
//!
//! # The path of a call
//!
//! `acquire`, `extend`, `query` and `release` choose a connection from the `pool` and pass a `call`
//! to its `session`, which writes the request and matches the reply. A `keeper` opens (`setup`) and
//! runs each session, and opens the next one after it.

mod acquire;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod call;
mod client;
mod error;
mod extend;
mod hint;
mod keeper;
pub mod leader;
mod life;
mod limits;
mod options;
mod pool;
mod query;
mod release;
mod retry;
mod session;
mod setup;
mod shared;
mod stats;
mod system;
mod ticket;
mod tls;
mod trace;

#[doc = include_str!("../../docs/client.md")]
pub mod guide {}

pub use builder::Builder;
pub use client::Client;
pub use error::{AcquireError, ConnectError, ExtendError, Lost, QueryError, Release, ReleaseError};
pub use highwater_lock::{
    Domain, Fence, FenceKey, FencingToken, Key, KeyError, KeySet, KeySetError,
};
pub use highwater_protocol::handshake::HelloError;
pub use highwater_protocol::{ErrorCode, Extensions, KeyState, KeyStatus, Secret, SecretError};
pub use hint::ConnectHint;
pub use options::AcquireOptions;
pub use stats::Stats;
pub use ticket::Ticket;
pub use tls::{ClientTls, TlsError};

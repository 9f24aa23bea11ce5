//! The Highwater lock server, to run inside another program or under the `highwater` command.
//!
//! It gives out turns and fencing tokens over TCP, in the order in which they are asked for. It
//! does not make writes safe by itself: the database must compare the token in the transaction
//! that writes, which is the job of the fencing crate.
//!
//! ```
//! # use highwater_server::Server;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder()
//!     .in_memory()
//!     .listen("127.0.0.1:0".parse()?)
//!     .no_auth()
//!     .start()
//!     .await?;
//! println!("{} in domain {}", server.local_addr(), server.domain());
//! server.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # The path of a request
//!
//! `listener` accepts, `connection::setup` lets in, `connection` reads frames, `desk` runs them
//! through the lock machine in the order of arrival, `translate` knows what they mean, `outbox`
//! holds the reply, `connection::transport` sends it.
//!
//! # Trust
//!
//! Tokens are sequential and a release needs only key and token, so every client that is let in
//! can release every lock.

mod admin;
mod builder;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod config;
mod connection;
mod desk;
mod front;
mod limits;
mod listener;
mod metrics;
mod outbox;
mod readiness;
mod reload;
mod server;
mod socket;
mod storage;
mod swap;
mod system;
mod throttle;
mod tls;
mod translate;

pub use admin::{Admin, AdminLimits, AdminToken, AdminTokenError};
pub use builder::{Builder, StartError};
pub use desk::Counts;
pub use highwater_lock::{Domain, FencingToken};
pub use highwater_protocol::{Secret, SecretError};
pub use limits::Limits;
pub use readiness::Readiness;
pub use reload::ReloadError;
pub use server::Server;
pub use storage::{
    AfterRestart, RestoreError, Restored, StorageCounts, StorageError, restore_as_new_domain,
};
#[cfg(feature = "cluster")]
pub use tls::tls_client_from_pem_file;
pub use tls::{TlsError, tls_from_pem_files};

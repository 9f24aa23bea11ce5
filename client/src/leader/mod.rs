//! Leader election: at most one of many runs a job, and knows when it may not any more.
//!
//! A [`LeaderElector`] runs an action while this process is the leader of a name; a
//! [`LeaderGroupElector`] does so for up to N leaders of one name. The action gets a
//! [`LeaderContext`]: its [`fence`](LeaderContext::fence) goes to every transaction that writes, so
//! that the database refuses a leader that was replaced without knowing.
//!
//! ```
//! use std::time::Duration;
//! use highwater_client::leader::{InProcess, LeaderElector, LeaderOptions};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = LeaderOptions::builder()
//!     .wait(Duration::ZERO)
//!     .lease(Duration::from_secs(10))
//!     .auto_extend(true)
//!     .node("node-a")
//!     .build()?;
//! // In production: `Highwater::new(client)`.
//! let elector = LeaderElector::new(InProcess::new(), options);
//! let closed = elector
//!     .run_if_leader("invoice/close", |leader| async move {
//!         let fence = leader.fence(); // for every transaction that writes invoices
//!         # drop(fence);
//!         17
//!     })
//!     .await?;
//! assert_eq!(closed, Some(17)); // `None`: somebody else leads
//! # Ok(()) }
//! ```
//!
//! What is guaranteed and what is not, all outcomes, and how to come here from ShedLock and others:
//! [`guide`].
//!
//! # The path of a term
//!
//! `elector` asks a `backend` for a lease and makes a `term` of it; a `guard` owns the term, and a
//! task in `watchman` extends it and notices its end. Extensions lie behind a `gate`, which the release
//! closes. `context` is what the action sees, `run` what
//! it runs in, and `hub` who is told: of `events`, and of the `level` that is so now.

mod again;
mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
mod campaign;
mod candidates;
mod context;
#[cfg(feature = "leader-contract")]
pub mod contract;
mod elector;
mod events;
mod gate;
mod guard;
mod highwater;
mod history;
mod hub;
mod in_process;
mod level;
mod options;
mod outcome;
mod policy;
mod run;
mod schedule;
mod stats;
mod strategic;
mod stream;
mod term;
mod watchman;

#[doc = include_str!("../../../docs/leader-election.md")]
pub mod guide {}

#[cfg(feature = "macros")]
#[doc = include_str!("../../../docs/leader-attributes.md")]
pub mod attributes {}

#[cfg(feature = "macros")]
pub use highwater_client_macros::{leader, leader_group};

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "attribute.rs"]
pub mod __attribute;

pub use backend::{
    Backend, BackendError, BoxFuture, Candidacy, Clock, Grant, Holder, LeaderState, Lease,
    Standing, TokioClock,
};
pub use candidates::Candidates;
pub use context::LeaderContext;
pub use elector::{Elector, Group, Kind, LeaderElector, LeaderGroupElector, Single};
pub use events::{Events, Lagged, LeaderEvent, Occurrence};
pub use guard::LeaderGuard;
pub use highwater::Highwater;
pub use history::{HistorySink, MemoryHistory, TermRecord};
pub use in_process::InProcess;
pub use level::{LeaderWatch, Leading};
pub use options::{
    LeaderGroupOptions, LeaderGroupOptionsBuilder, LeaderOptions, LeaderOptionsBuilder, LossPolicy,
    NodeId, OptionsError,
};
pub use outcome::{
    Cause, LeaderError, LeaderResult, LeaseEnd, NotLeader, RenewError, TermOutcome, TermReport,
};
pub use policy::{FailurePolicy, PolicyResult};
pub(crate) use run::Panic;
pub use schedule::Schedule;
#[cfg(feature = "tracing")]
pub(crate) use schedule::discard;
pub(crate) use schedule::{caught, told};
pub use stats::LeaderStats;
pub use strategic::{
    Candidate, CandidateRegistry, Field, Fifo, Random, Scored, StrategicElector, Strategy,
};
pub use stream::{LeaderStream, StreamError, StreamLease};

//! Several nodes that agree on every grant, release, extension and expiry before they answer.
//!
//! The lock machine runs on every node, fed by one replicated log. `desk` is where the requests of
//! clients meet it; `presence` is the process, which in a volatile cluster is not a node from its start
//! on; `node` holds a node together, `succession` is how a new one takes a slot over, `survey` what one
//! learns by asking the others; `replica`, `log`, `journal` and `snapshots` are
//! what the consensus engine stores in, and `retention` is how much of the log is kept; `network` and `peer` carry what nodes say to each other;
//! `batch` and `codec` are the bytes of all that; `file` is what all nodes are told in common.
//!
//! Which engine that is, and why, stands in `docs/adr/0010-consensus.md`. No file outside of this
//! directory names it.

/// The level of log lines if nobody says another one: the consensus engine has much to say that only
/// its makers understand.
pub const LOG_FILTER: &str = "info,openraft=error";

/// The target of the decision trace: what each node applies from the log, grant by grant, at level
/// `trace`. It is a way to check a cluster, and costs throughput: every decision is a line.
pub const DECISIONS: &str = "highwater_server::decisions";

mod batch;
mod bytes;
mod clocks;
mod codec;
mod desk;
mod file;
mod journal;
mod log;
mod marks;
mod metrics;
mod network;
mod node;
mod operator;
mod peer;
mod presence;
mod replica;
mod resize;
mod retention;
mod rules;
mod snapshots;
mod start;
mod status;
mod succession;
mod survey;
#[cfg(test)]
mod testing;
mod types;

pub use self::clocks::{ClockHealth, ClockStatus, PeerClock};
pub use self::file::{ClusterFile, ClusterFileError, ClusterMode, NewCluster, NodeAddresses};
pub(crate) use self::metrics::metrics;
pub use self::operator::{
    OperatorError, admit, grow, init, promote, remove, replace, status, step_down,
};
pub(crate) use self::rules::{Pace, SNAPSHOT_EVERY};
pub use self::start::ClusterError;
pub(crate) use self::start::{Running, Seat, start};
pub use self::status::{Members, NodeRole, NodeStatus, Place};
#[doc(hidden)]
pub use crate::system::ClockSkew;

//! What `highwater bench` measures: cycles of acquire and acknowledged release, per second and in
//! latency, against the lock server, against a cluster and against yardsticks on the same workload.
//!
//! - [`echo`]: a server on the same runtime that answers each frame at once with a reply of the same
//!   size and keeps nothing. No lock server can be faster over the same client and system.
//! - Any other lock service behind [`Locks`]; etcd is one in a crate of its own, `bench/etcd`, because its
//!   client needs a compiler of its own and many libraries.
//! - [`Nodes`]: a cluster of three nodes on this machine.
//! - Redis (feature `redis`): `SET NX PX` with a token of `INCR`, and a release that a script checks.
//!
//! The targets take turns within each round, so what else the machine does hits all of them; a figure
//! is the median of its rounds, and a ratio the median of the ratios within the rounds.

pub mod echo;
mod load;
mod measure;
mod nodes;
pub mod process;
#[cfg(feature = "redis")]
mod redis;
mod report;
mod target;

pub use load::{Broken, Pattern};
pub use measure::{Settings, measure};
pub use nodes::{Kept, Nodes, Status};
pub use report::{Figures, Latency, Report, Row};
pub use target::{Answer, Kind, Locks, OtherHeld, Target};

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The target cannot be reached.
    #[error("{target} cannot be reached")]
    Connect {
        /// Which.
        target: Kind,
        /// What its client says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A lock was not taken or not given back.
    #[error("a cycle on {target} failed")]
    Cycle {
        /// Where.
        target: Kind,
        /// What happened.
        source: Broken,
    },
    /// This build knows nothing of Redis.
    #[error("this build cannot speak to Redis: build with the feature bench-redis")]
    NoRedis,
    /// There is nothing to measure.
    #[error("there has to be at least one target, task, key and round, and some time")]
    Empty,
}

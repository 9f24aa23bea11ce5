//! The lock core on several replicas, in a world that is nothing but a seed.
//!
//! Three or five nodes keep a replicated log with the core behind it; clients take locks and write
//! into a database with a fence; frames, connections, clocks, disks and processes fail by the ratios
//! in [`Faults`]. Then everything is healed, and every lock has to be granted once more. The same
//! seed gives the same history, to the byte.
//!
//! The log is a toy on purpose (`node.rs`): what is under test is the lock core, what a server has to
//! do around it, and the checker. Bugs can be put into that shell ([`Mutant`]) to see whether the
//! checker finds them.

mod client;
mod context;
mod database;
mod decided;
mod faults;
mod frame;
mod log;
mod many;
mod mutant;
mod node;
mod patch;
mod random;
mod replica;
mod replication;
mod request;
mod shell;
mod stats;
mod world;

pub use faults::Faults;
pub use many::{Runs, run_all};
pub use mutant::Mutant;
pub use stats::Stats;

use self::world::World;
use crate::{Assumptions, History, Report, check};

/// The locks that clients ask for, and the slots of those that have some.
const NAMES: [(&str, Option<u32>); 6] = [
    ("apple", None),
    ("banana", None),
    ("cherry", None),
    ("date", None),
    ("elder", Some(2)),
    ("fig", Some(3)),
];

/// What holds in the simulation: the skew of its clocks, and how soon after healing all is well. No
/// lease is longer than 4 seconds, and a clock that jumped back stands still for at most 5.
pub const ASSUMPTIONS: Assumptions = Assumptions {
    clock_rate_ppm: 20_000,
    recovery: 15_000_000,
};

/// One run and what came of it.
#[derive(Clone, Debug)]
pub struct Run {
    /// The seed that gives it again.
    pub seed: u64,
    /// The bug that was put in.
    pub mutant: Option<Mutant>,
    /// Three or five.
    pub nodes: usize,
    /// Whether nodes keep log and vote on a disk; if not, a process that dies is replaced.
    pub is_durable: bool,
    /// Everything that happened.
    pub history: History,
    /// What the checker says.
    pub report: Report,
    /// How much of each kind happened.
    pub stats: Stats,
}

/// Runs the world of this seed, with a bug if one is asked for, and checks its history.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Run {
    let mut world = World::new(seed, mutant);
    world.run();
    let (nodes, is_durable) = (world.size(), world.is_durable);
    let (history, stats) = world.finish();
    let report = check(&history, ASSUMPTIONS);
    Run {
        seed,
        mutant,
        nodes,
        is_durable,
        history,
        report,
        stats,
    }
}

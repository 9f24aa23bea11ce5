//! What a lock service did, as its clients and its nodes saw it, and whether that was allowed.
//!
//! - [`History`] is a list of [`Event`]s with the moment of each, and has a stable text form, one
//!   event a line, for artefacts of failed runs.
//! - [`check()`] looks for broken promises in it. It knows nothing but the history: no line of it is
//!   shared with the lock core.
//! - [`simulation`] runs the lock core on 3 or 5 replicas behind a toy replicated log, with faults
//!   by ratio and a seed, and gives every run to the checker.
//!
//! The checker works on what is there. A test that only sees clients records calls, answers and
//! rows of the database; one that also sees the nodes adds their decisions, and more is checked.
//!
//! ```
//! use highwater_history::{Assumptions, History, Rule, check};
//!
//! // Two clients hold one key: the first had it for ten seconds, and gave nothing back.
//! let history: History = "\
//! 1000 acquire call=1 connection=1 wait=0 lease=10000000 key=orders
//! 2000 granted call=1 token=7
//! 5000 acquire call=2 connection=2 wait=0 lease=10000000 key=orders
//! 6000 granted call=2 token=8
//! ".parse()?;
//! let assumptions = Assumptions { clock_rate_ppm: 1_000, recovery: 15_000_000 };
//! let report = check(&history, assumptions);
//! assert!(report.breaks(Rule::TwoHolders));
//! println!("{}", report.violations[0].explain(&history));
//! # Ok::<(), highwater_history::ReadError>(())
//! ```

mod check;
mod event;
pub mod simulation;
mod text;
mod violation;

pub use check::{Assumptions, Report, check};
pub use event::{Answer, CallId, Decision, Entry, Event, History, Request};
pub use text::ReadError;
pub use violation::{Rule, Violation};

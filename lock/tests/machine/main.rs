//! Tests of the lock machine: scripts, random histories against a naive model, all small
//! histories, and snapshots.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

mod build;
mod exhaustive;
mod fuzz;
mod fuzz_target;
#[path = "../../../fuzz/harness.rs"]
mod harness;
mod listing;
mod naive;
mod random;
mod scripts;
mod snapshots;
mod status;
mod witness;

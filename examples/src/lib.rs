//! Examples of Highwater, one folder a lesson, under `examples/` of the repository.
//!
//! - `inventory` – the main job: an inventory deduction that a stale holder cannot corrupt.
//!   `cargo run --release -p highwater-examples --example inventory`
//! - `leader_job` – a periodic job on three processes, whose leader is killed, frozen and cut off.
//!   `cargo run --release -p highwater-examples --example leader_job`
//! - `timeline` – what can happen to leaders, second by second, in virtual time.
//!   `cargo run --release -p highwater-examples --example timeline`

/// The README, whose code is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

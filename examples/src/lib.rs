//! Examples of Highwater, one folder a lesson, under `examples/` of the repository.
//!
//! - `inventory` – the main job: an inventory deduction that a stale holder cannot corrupt.
//!   `cargo run --release --example inventory`

/// The README, whose code is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

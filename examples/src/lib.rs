//! Examples of Highwater, one folder a lesson, under `examples/` of the repository.
//!
//! - `inventory` – the main job: an inventory deduction that a stale holder cannot corrupt.
//!   `cargo run --release --example inventory`
//! - `timeline` – what can happen to leaders, second by second, in virtual time.
//!   `cargo run --release --example timeline`

/// The README, whose code is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

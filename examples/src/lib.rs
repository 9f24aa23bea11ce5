//! Examples of Highwater, one folder a lesson, under `examples/` of the repository.
//!
//! - `inventory` – the main job: an inventory deduction that a stale holder cannot corrupt.
//!   `cargo run --release --example inventory`
//!
//! The library itself holds nothing but the README, whose code is compiled here as a test.
#![doc = include_str!("../../README.md")]

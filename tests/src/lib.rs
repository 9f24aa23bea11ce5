//! What the integration tests share: database servers, waiting, and the fencing conformance suite.
//!
//! The tests themselves are the binaries in `tests/tests/`, one per boundary.

pub mod conformance;
pub mod databases;
pub mod wait;
pub mod wire;

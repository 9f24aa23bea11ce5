//! Every fencing adapter behind one face.
//!
//! The conformance suite, the proof and the benchmarks are written once and run over all adapters;
//! [`adapter`] is what makes that possible. It is no interface for applications: they use the
//! adapter of their driver directly.

pub mod adapter;
#[cfg(all(unix, feature = "prove"))]
pub mod prove;
pub mod relay;

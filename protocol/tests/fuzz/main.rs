//! The fuzz targets of this crate, run over their corpora and over random changes of them.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

mod corpus;
#[path = "../../../fuzz/harness.rs"]
mod harness;
mod targets;

#[test]
fn the_corpora_are_what_this_test_writes() {
    harness::keep("frame", &corpus::frame());
    harness::keep("message", &corpus::message());
    harness::keep("handshake", &corpus::handshake());
}

#[test]
fn frames() {
    harness::replay("frame", targets::frame, 20);
    harness::change("frame", targets::frame, 10_000);
}

#[test]
fn messages() {
    harness::replay("message", targets::message, 40);
    harness::change("message", targets::message, 20_000);
}

#[test]
fn handshakes() {
    harness::replay("handshake", targets::handshake, 10);
    harness::change("handshake", targets::handshake, 1_000);
}

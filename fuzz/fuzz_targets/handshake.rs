#![no_main]

#[path = "../../protocol/tests/fuzz/targets.rs"]
#[allow(dead_code, reason = "one of three targets")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::handshake(bytes));

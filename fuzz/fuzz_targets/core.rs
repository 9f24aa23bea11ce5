#![no_main]

#[path = "../../lock/tests/machine/fuzz_target.rs"]
mod fuzz_target;
#[path = "../../lock/tests/machine/naive.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod naive;
#[path = "../../lock/tests/machine/witness.rs"]
mod witness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_target::core(bytes));

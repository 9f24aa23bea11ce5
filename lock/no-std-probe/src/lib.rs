//! Proves that the lock core needs no std: it fails to build as soon as std is linked.
//!
//! A static library without std has to define the panic handler itself, and std defines one too:
//! if the core or one of its dependencies pulls std in, the compiler finds two. The library is
//! built and never run; `cargo xtask verify` builds it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use core::panic::PanicInfo;

use dlmalloc::GlobalDlmalloc;
use highwater_lock::{Command, Epoch, FencingToken, Limits, Machine, Operation, Timestamp};

#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// Uses the machine from end to end, so that nothing of it is left out of the build.
pub fn probe(micros: u64, bytes: &[u8]) -> usize {
    let mut machine = match Machine::restore(bytes, Limits::default()) {
        Ok(machine) => machine,
        Err(_) => Machine::new(Limits::default(), FencingToken::MIN),
    };
    let tick = Command::new(Epoch::new(1), Operation::Tick);
    let outcome = machine.apply(Timestamp::from_micros(micros), tick);
    machine.assert_valid();
    outcome.events.len() + machine.snapshot().len()
}

//! Damage to the bytes of a snapshot, for mutants. Knows the format as it is now.

use highwater_lock::{FencingToken, Limits, Machine, Timestamp};

const NEXT_TOKEN: usize = 24;
const HOLDS: usize = 32;

/// The counter goes on behind what is still held.
pub(super) fn forget_tokens(machine: &mut Machine, limits: Limits) {
    let mut bytes = machine.snapshot();
    let next = u64::from_be_bytes(bytes[NEXT_TOKEN..HOLDS].try_into().expect("eight bytes"));
    // The lowest that a machine with these holds may have.
    let lower = (1..next).find_map(|next| {
        bytes[NEXT_TOKEN..HOLDS].copy_from_slice(&next.to_be_bytes());
        Machine::restore(&bytes, limits.clone()).ok()
    });
    if let Some(lower) = lower {
        *machine = lower;
    }
}

pub(super) fn set_deadline(bytes: &mut [u8], token: FencingToken, from: Timestamp, to: Timestamp) {
    let token = token.get().to_be_bytes();
    let from = from.as_micros().to_be_bytes();
    let starts = 0..bytes.len().saturating_sub(25);
    let is_hold = |at: &usize| {
        bytes[*at..*at + 8] == token && bytes[*at + 16] == 0 && bytes[*at + 17..*at + 25] == from
    };
    if let Some(at) = starts.into_iter().find(is_hold) {
        bytes[at + 17..at + 25].copy_from_slice(&to.as_micros().to_be_bytes());
    }
}

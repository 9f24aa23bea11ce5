//! Keyed hashes, for tables that find things and are never asked for an order.
//!
//! The seed is an argument, like every other outside fact. It decides how fast a table is for an
//! attacker who chooses the keys, and nothing else: no outcome and no snapshot depends on it.

use core::fmt;
use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::Key;

/// What the hash tables of one [`Machine`](crate::Machine) are keyed with.
///
/// The names of locks come from clients. Whoever knows the seed can choose names that all fall into
/// one place of a table, and a command then costs as much as there are of them. So a server takes 16 bytes from the system's random source at every start, and never
/// shows them. Machines with different seeds give the same outcomes and the same snapshots.
///
/// The default is a constant: for tests, simulations, and keys that nobody hostile chooses.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct HashSeed {
    low: u64,
    high: u64,
}

impl HashSeed {
    /// The seed with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self {
            low: number as u64,
            high: (number >> 64) as u64,
        }
    }

    /// SipHash: the bytes are chosen by clients.
    pub(crate) fn key(self, key: &Key) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.low, self.high);
        hasher.write(key.as_bytes());
        fold(hasher.finish())
    }

    /// For numbers that we count ourselves a mixer is enough.
    pub(crate) fn number(self, number: u64) -> u32 {
        let mixed = (number ^ self.low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32) ^ self.high).wrapping_mul(0xd6e8_feb8_6659_fd93);
        fold(mixed)
    }
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSeed(..)")
    }
}

fn fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

//! The one source of chance: a seed in, the same numbers out, on every machine.

/// SplitMix64: every seed is a good one, and the state is one number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high bits, so that the bias is that of the remainder of 2^64.
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Whether something happens that does so in this many of a thousand cases.
    pub(crate) fn happens(&mut self, per_thousand: u32) -> bool {
        self.below(1_000) < u64::from(per_thousand)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
}

//! How often values fell between which bounds.
//!
//! A plain one for places that are guarded anyway, and one that many tasks record into at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts values by the first bound that is not below them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for what is above all of them.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// An empty histogram over bounds in increasing order.
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0,
        }
    }

    pub(crate) fn record(&mut self, value: u64) {
        self.counts[place(self.bounds, value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Each bound with the number of values up to it.
    pub(crate) fn up_to(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut total = 0;
        self.bounds
            .iter()
            .zip(&self.counts)
            .map(move |(bound, count)| {
                total += count;
                (*bound, total)
            })
    }

    /// How many values there were.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All values together.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }
}

/// A [`Histogram`] that needs no guard. A reader may see a value counted and not yet summed.
#[derive(Debug)]
pub(crate) struct SharedHistogram {
    bounds: &'static [u64],
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl SharedHistogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, value: u64) {
        self.counts[place(self.bounds, value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What it holds now.
    pub(crate) fn read(&self) -> Histogram {
        let counts = self.counts.iter();
        Histogram {
            bounds: self.bounds,
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

fn place(bounds: &[u64], value: u64) -> usize {
    bounds.partition_point(|bound| *bound < value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_its_own_bound_and_all_above() {
        let shared = SharedHistogram::new(&[10, 20]);
        let mut plain = Histogram::new(&[10, 20]);
        for value in [0, 10, 11, 20, 21, 1_000] {
            shared.record(value);
            plain.record(value);
        }
        assert_eq!(plain.up_to().collect::<Vec<_>>(), [(10, 2), (20, 4)]);
        assert_eq!((plain.count(), plain.sum()), (6, 1_062));
        assert_eq!(shared.read(), plain);
    }
}

//! The slots of one N-slot name: which are taken, and which is the lowest free one.
//!
//! Knows nothing of leases or queues. Free slots are kept as ranges, so a name with four billion
//! slots costs no more than its holders.

use alloc::collections::BTreeMap;
use core::num::NonZeroU32;

use super::slab::Id;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    count: NonZeroU32,
    taken: BTreeMap<u32, Id>,
    /// Ranges of free slots, start to end (not included); never empty, never touching.
    free: BTreeMap<u32, u32>,
}

impl Slots {
    pub(super) fn new(count: NonZeroU32) -> Self {
        Self {
            count,
            taken: BTreeMap::new(),
            free: BTreeMap::from([(0, count.get())]),
        }
    }

    pub(super) fn count(&self) -> NonZeroU32 {
        self.count
    }

    pub(super) fn taken(&self) -> &BTreeMap<u32, Id> {
        &self.taken
    }

    /// The holder of the first taken slot from this one on.
    pub(super) fn first_taken(&self, from: u32) -> Option<Id> {
        let mut taken = self.taken.range(from..);
        taken.next().map(|(_, hold)| *hold)
    }

    pub(super) fn lowest_free(&self) -> Option<u32> {
        self.free.first_key_value().map(|(start, _)| *start)
    }

    /// Takes a free slot. False, without effect, if it is not free or there is no such slot.
    #[must_use]
    pub(super) fn take(&mut self, slot: u32, hold: Id) -> bool {
        let range = self.free.range(..=slot).next_back();
        let Some((start, end)) = range.map(|(start, end)| (*start, *end)) else {
            return false;
        };
        if slot >= end {
            return false;
        }
        self.free.remove(&start);
        if start < slot {
            self.free.insert(start, slot);
        }
        if slot + 1 < end {
            self.free.insert(slot + 1, end);
        }
        self.taken.insert(slot, hold);
        true
    }

    pub(super) fn give_back(&mut self, slot: u32, hold: Id) {
        let owner = self.taken.remove(&slot);
        assert_eq!(owner, Some(hold), "a slot is given back by its owner");
        let mut start = slot;
        let mut end = slot + 1;
        if let Some((before, before_end)) = self.free.range(..slot).next_back()
            && *before_end == slot
        {
            start = *before;
        }
        if let Some(after_end) = self.free.remove(&end) {
            end = after_end;
        }
        self.free.insert(start, end);
    }

    /// The same slots taken, built anew: equal to this one if the free ranges are right.
    pub(super) fn rebuilt(&self) -> Self {
        let mut slots = Self::new(self.count);
        for (slot, hold) in &self.taken {
            // A refusal shows as a difference, which is what the caller looks for.
            let _ = slots.take(*slot, *hold);
        }
        slots
    }
}

//! Walks over the names in use, a piece at a time.
//!
//! For whoever looks at a machine from outside. Each step costs the same however much is held,
//! queued, or taken of one name, so that the caller decides how much it does at once.

use core::num::NonZeroU32;
use core::ops::Range;

use super::names::Name;
use super::{HolderView, Machine};
use crate::Key;

/// One name in use, as a query shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameView {
    /// The key, or the name of an N-slot lock.
    pub key: Key,
    /// How many slots it has, for an N-slot lock.
    pub slots: Option<NonZeroU32>,
    /// How many holders it has: at most one, or one for each taken slot.
    pub taken: u32,
    /// What holds it; for an N-slot lock, its lowest taken slot.
    pub holder: Option<HolderView>,
    /// How many requests queue for it.
    pub queue: usize,
}

impl Machine {
    /// How many places there are for names, empty ones included; see [`Machine::keys_at`].
    pub fn places(&self) -> usize {
        self.names.places()
    }

    /// The names in use that stand in these places. Places beyond the last one are empty.
    ///
    /// A name stays in its place as long as it is in use. So who goes from zero to
    /// [`places`](Machine::places) in as many steps as they like, with commands in between, sees
    /// every name exactly once that is in use all the time. The order means nothing, and a restore
    /// changes it.
    pub fn keys_at(&self, places: Range<usize>) -> impl Iterator<Item = &Key> {
        let places = places.start..places.end.min(self.places());
        places.filter_map(|place| self.names.at(place).map(Name::key))
    }

    /// One name, or `None` if nobody holds it or queues for it.
    pub fn name(&self, key: &Key) -> Option<NameView> {
        self.names.get(key).map(|name| self.name_view(name))
    }

    /// What holds this name from this slot on, in slot order; a plain lock has slot 0 only. A step
    /// costs the logarithm of what is held.
    pub fn holders_from(&self, key: &Key, slot: u32) -> impl Iterator<Item = HolderView> {
        let name = self.names.get(key);
        let plain = name.and_then(|name| name.owner(None).filter(|_| slot == 0));
        let slots = name.and_then(Name::slots);
        let taken = slots.map(|slots| slots.taken().range(slot..));
        let taken = taken.into_iter().flatten().map(|(_, id)| *id);
        let owners = plain.into_iter().chain(taken);
        owners.filter_map(|id| self.view(id))
    }

    fn name_view(&self, name: &Name) -> NameView {
        let (slots, taken, first) = match name.slots() {
            None => {
                let owner = name.owner(None);
                (None, u32::from(owner.is_some()), owner)
            }
            Some(slots) => {
                // There is at most one holder for each slot, and those are counted in 32 bits.
                let count = u32::try_from(slots.taken().len()).unwrap_or(u32::MAX);
                (Some(slots.count()), count, slots.first_taken(0))
            }
        };
        NameView {
            key: name.key().clone(),
            slots,
            taken,
            holder: first.and_then(|id| self.view(id)),
            queue: name.queue_len(),
        }
    }
}

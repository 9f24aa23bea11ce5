//! Walks over the names in use, a piece at a time.
//!
//! For whoever looks at a machine from outside. Each step costs the same however much is held,
//! queued, or taken of one name, so that the caller decides how much it does at once.

use core::num::NonZeroU32;
use core::ops::Bound;

use super::names::{Name, Owners};
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
    /// The names in use from this one on, in byte order. A step costs the logarithm of what is
    /// held and queued.
    pub fn names_from(&self, start: Bound<&Key>) -> impl Iterator<Item = NameView> {
        let names = self.names.range(start);
        names.map(|(key, name)| self.name_view(key, name))
    }

    /// One name, or `None` if nobody holds it or queues for it.
    pub fn name(&self, key: &Key) -> Option<NameView> {
        Some(self.name_view(key, self.names.get(key)?))
    }

    /// What holds this name from this slot on, in slot order; a plain lock has slot 0 only. A step
    /// costs the logarithm of what is held.
    pub fn holders_from(&self, key: &Key, slot: u32) -> impl Iterator<Item = HolderView> {
        let owners = self.names.get(key).map(|name| &name.owners);
        let (plain, slots) = match owners {
            Some(Owners::Plain(owner)) => (owner.filter(|_| slot == 0), None),
            Some(Owners::Slots(slots)) => (None, Some(slots.taken().range(slot..))),
            None => (None, None),
        };
        let taken = slots.into_iter().flatten().map(|(_, token)| *token);
        let tokens = plain.into_iter().chain(taken);
        tokens.filter_map(|token| self.view(token))
    }

    fn name_view(&self, key: &Key, name: &Name) -> NameView {
        let (slots, taken, first) = match &name.owners {
            Owners::Plain(owner) => (None, u32::from(owner.is_some()), *owner),
            Owners::Slots(slots) => {
                let taken = slots.taken();
                // There is at most one holder for each slot, and those are counted in 32 bits.
                let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
                let first = taken.first_key_value().map(|(_, token)| *token);
                (Some(slots.count()), count, first)
            }
        };
        NameView {
            key: key.clone(),
            slots,
            taken,
            holder: first.and_then(|token| self.view(token)),
            queue: name.queue.len(),
        }
    }
}

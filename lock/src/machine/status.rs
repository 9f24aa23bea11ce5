//! What a client may ask of a key.
//!
//! Reads only. What operators and tests may ask stands in the [parent module](super).

use core::num::NonZeroU32;

use super::{HolderView, Machine};
use crate::Key;

/// How a key is used, as a query shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyStatus {
    /// One holder, if there is one where the query looked.
    pub holder: Option<HolderView>,
    /// How many slots the name has; `None` for a plain lock, and for a key that nobody uses.
    pub slots: Option<NonZeroU32>,
    /// How many holders there are in all.
    pub taken: usize,
    /// How many requests queue for it.
    pub waiters: usize,
}

impl Machine {
    /// What a query may tell of a key: how it is used, and its first holder whose slot is at least
    /// `from_slot`. A plain lock is slot 0 of itself. The cost does not grow with the slots.
    pub fn status(&self, key: &Key, from_slot: u32) -> KeyStatus {
        let Some(name) = self.names.get(key) else {
            return KeyStatus::default();
        };
        let (slots, taken, owner) = match name.slots() {
            None => {
                let owner = name.owner(None);
                (None, usize::from(owner.is_some()), owner)
            }
            Some(slots) => {
                let owner = slots.first_taken(from_slot);
                (Some(slots.count()), slots.taken().len(), owner)
            }
        };
        let owner = owner.filter(|_| slots.is_some() || from_slot == 0);
        KeyStatus {
            holder: owner.and_then(|id| self.view(id)),
            slots,
            taken,
            waiters: name.queue_len(),
        }
    }
}

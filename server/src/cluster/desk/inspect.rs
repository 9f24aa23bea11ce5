//! What an operator sees of this node's copy of the locks.

use highwater_lock::{Key, Timestamp};

use super::Desk;
use crate::desk::{Lock, Names, Page, Readings};

impl Desk {
    pub(crate) fn readings(&self) -> Readings {
        let uptime = self.clock.timestamp().saturating_since(Timestamp::ZERO);
        let state = self.state();
        Readings {
            tally: state.tally.clone(),
            counts: state.counts(),
            holds: state.machine.holds(),
            uptime,
        }
    }

    /// See [`Page::look`].
    pub(crate) fn look_for(&self, from: usize, page: &mut Page) -> Option<usize> {
        page.look(&self.state().machine, from)
    }

    /// See [`Names::of`].
    pub(crate) fn names(&self, keys: &[Key]) -> Names {
        let state = self.state();
        let now = state.lease_time(self.clock.timestamp());
        Names::of(&state.machine, now, keys)
    }

    /// See [`Lock::of`].
    pub(crate) fn lock(&self, key: &Key, from_slot: u32, most: usize) -> Option<Lock> {
        let state = self.state();
        let now = state.lease_time(self.clock.timestamp());
        Lock::of(&state.machine, now, key, from_slot, most)
    }
}

//! What an operator sees of this node's copy of the locks.

use highwater_lock::{Key, Timestamp};

use super::Desk;
use crate::desk::{Lock, NAMES_AT_ONCE, Names, PLACES_AT_ONCE, Page, Readings};

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

    pub(crate) fn look_for(&self, from: usize, page: &mut Page) -> Option<usize> {
        let state = self.state();
        let next = from.saturating_add(PLACES_AT_ONCE);
        for key in state.machine.keys_at(from..next) {
            page.offer(key);
        }
        (next < state.machine.places()).then_some(next)
    }

    pub(crate) fn names(&self, keys: &[Key]) -> Names {
        let state = self.state();
        let keys = keys.iter().take(NAMES_AT_ONCE);
        Names {
            now: state.lease_time(self.clock.timestamp()),
            names: keys.filter_map(|key| state.machine.name(key)).collect(),
        }
    }

    pub(crate) fn lock(&self, key: &Key, from_slot: u32, most: usize) -> Option<Lock> {
        let state = self.state();
        let holders = state.machine.holders_from(key, from_slot);
        Some(Lock {
            now: state.lease_time(self.clock.timestamp()),
            name: state.machine.name(key)?,
            holders: holders.take(most).collect(),
        })
    }
}

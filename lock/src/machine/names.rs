//! Every name in use: what holds it, and who queues for it.
//!
//! Holds and waiters are known here by token and ticket only; what they are stands in
//! [`holds`](super::holds) and [`waiters`](super::waiters). A name that nobody holds or queues for
//! is forgotten at once.

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ops::Bound;

use super::slots::Slots;
use super::waiters::Ticket;
use crate::{FencingToken, Key, Rejection};

/// What a name is used as. Fixed while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Slots(NonZeroU32),
}

impl Kind {
    /// How many keys a name of this kind counts as.
    fn weight(self) -> u64 {
        match self {
            Self::Plain => 1,
            Self::Slots(count) => u64::from(count.get()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owners {
    Plain(Option<FencingToken>),
    Slots(Box<Slots>),
}

#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) owners: Owners,
    /// Tickets count up, so the order of the set is the order of arrival.
    pub(super) queue: BTreeSet<Ticket>,
}

impl Name {
    fn new(kind: Kind) -> Self {
        Self {
            owners: match kind {
                Kind::Plain => Owners::Plain(None),
                Kind::Slots(count) => Owners::Slots(Box::new(Slots::new(count))),
            },
            queue: BTreeSet::new(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match &self.owners {
            Owners::Plain(_) => Kind::Plain,
            Owners::Slots(slots) => Kind::Slots(slots.count()),
        }
    }

    fn has_room(&self) -> bool {
        match &self.owners {
            Owners::Plain(owner) => owner.is_none(),
            Owners::Slots(slots) => slots.lowest_free().is_some(),
        }
    }

    pub(super) fn is_in_use(&self) -> bool {
        let held = match &self.owners {
            Owners::Plain(owner) => owner.is_some(),
            Owners::Slots(slots) => !slots.taken().is_empty(),
        };
        held || !self.queue.is_empty()
    }

    /// The tokens that hold it, in slot order.
    pub(super) fn tokens(&self) -> Vec<FencingToken> {
        match &self.owners {
            Owners::Plain(owner) => owner.iter().copied().collect(),
            Owners::Slots(slots) => slots.taken().values().copied().collect(),
        }
    }
}

/// What a request would meet.
#[derive(Debug)]
pub(super) struct Survey {
    /// A name is in use as something else.
    pub(super) conflict: Option<Rejection>,
    /// Every key has room, and nobody queues for one.
    pub(super) open: bool,
    /// How many keys more would be in use.
    pub(super) new_keys: u64,
    /// The length of the longest of the queues.
    pub(super) longest_queue: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    names: BTreeMap<Key, Name>,
    /// The weights of all names.
    in_use: u64,
}

impl Names {
    pub(super) fn get(&self, key: &Key) -> Option<&Name> {
        self.names.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Name)> {
        self.names.iter()
    }

    pub(super) fn range(&self, start: Bound<&Key>) -> impl Iterator<Item = (&Key, &Name)> {
        self.names.range::<Key, _>((start, Bound::Unbounded))
    }

    pub(super) fn in_use(&self) -> u64 {
        self.in_use
    }

    pub(super) fn head(&self, key: &Key) -> Option<Ticket> {
        self.names.get(key)?.queue.first().copied()
    }

    pub(super) fn survey(&self, keys: &[Key], kind: Kind) -> Survey {
        let mut survey = Survey {
            conflict: None,
            open: true,
            new_keys: 0,
            longest_queue: 0,
        };
        for key in keys {
            let Some(name) = self.names.get(key) else {
                survey.new_keys += kind.weight();
                continue;
            };
            survey.open &= name.has_room() && name.queue.is_empty();
            survey.longest_queue = survey.longest_queue.max(name.queue.len());
            survey.conflict = survey.conflict.or_else(|| conflict(key, kind, name.kind()));
        }
        survey
    }

    /// Whether this ticket heads the queue of every key, and every key has room.
    pub(super) fn is_grantable(&self, keys: &[Key], ticket: Ticket) -> bool {
        keys.iter().all(|key| {
            self.names
                .get(key)
                .is_some_and(|name| name.queue.first() == Some(&ticket) && name.has_room())
        })
    }

    /// Gives every key to this token; for a slot name, the lowest free slot, which is returned.
    pub(super) fn take(&mut self, keys: &[Key], kind: Kind, token: FencingToken) -> Option<u32> {
        let mut taken = None;
        for key in keys {
            match &mut self.entry(key, kind).owners {
                Owners::Plain(owner) => {
                    assert_eq!(*owner, None, "a key has one holder");
                    *owner = Some(token);
                }
                Owners::Slots(slots) => {
                    let slot = slots.lowest_free().expect("the caller saw a free slot");
                    assert!(slots.take(slot, token), "a slot has one holder");
                    taken = Some(slot);
                }
            }
        }
        taken
    }

    /// Gives one key, or exactly this slot of it, to a token. False if that is taken, or if the
    /// name is in use as something else.
    #[must_use]
    pub(super) fn place(
        &mut self,
        key: &Key,
        kind: Kind,
        slot: Option<u32>,
        token: FencingToken,
    ) -> bool {
        let name = self.entry(key, kind);
        if name.kind() != kind {
            return false;
        }
        match (&mut name.owners, slot) {
            (Owners::Plain(owner), None) => owner.replace(token).is_none(),
            (Owners::Slots(slots), Some(slot)) => slots.take(slot, token),
            _ => false,
        }
    }

    /// Takes every key back from this token.
    pub(super) fn give_back(&mut self, keys: &[Key], slot: Option<u32>, token: FencingToken) {
        for key in keys {
            self.edit(key, |name| match (&mut name.owners, slot) {
                (Owners::Plain(owner), None) => {
                    assert_eq!(
                        owner.take(),
                        Some(token),
                        "a key is given back by its owner"
                    );
                }
                (Owners::Slots(slots), Some(slot)) => slots.give_back(slot, token),
                _ => unreachable!("a hold has a slot exactly if its name has slots"),
            });
        }
    }

    /// Puts a ticket at the end of every key's queue.
    pub(super) fn enqueue(&mut self, keys: &[Key], kind: Kind, ticket: Ticket) {
        for key in keys {
            let queue = &mut self.entry(key, kind).queue;
            assert!(
                queue.last().is_none_or(|last| *last < ticket),
                "tickets count up"
            );
            queue.insert(ticket);
        }
    }

    /// Takes a ticket out of every key's queue, and notes the keys that it headed.
    pub(super) fn dequeue(&mut self, keys: &[Key], ticket: Ticket, headed: &mut Vec<Key>) {
        for key in keys {
            self.edit(key, |name| {
                if name.queue.first() == Some(&ticket) {
                    headed.push(key.clone());
                }
                assert!(name.queue.remove(&ticket), "a waiter is in all its queues");
            });
        }
    }

    fn entry(&mut self, key: &Key, kind: Kind) -> &mut Name {
        self.names.entry(key.clone()).or_insert_with(|| {
            self.in_use += kind.weight();
            Name::new(kind)
        })
    }

    /// Changes a name in use, and forgets it if it no longer is.
    fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Name)) {
        let Entry::Occupied(mut entry) = self.names.entry(key.clone()) else {
            unreachable!("a key that is held or queued for is in use");
        };
        change(entry.get_mut());
        if !entry.get().is_in_use() {
            self.in_use -= entry.get().kind().weight();
            entry.remove();
        }
    }

    /// The sum that [`Names::in_use`] must be.
    pub(super) fn weighed(&self) -> u64 {
        self.names.values().map(|name| name.kind().weight()).sum()
    }
}

fn conflict(key: &Key, asked: Kind, used: Kind) -> Option<Rejection> {
    let name = key.clone();
    match (asked, used) {
        (Kind::Plain, Kind::Slots(_)) => Some(Rejection::HasSlots { name }),
        (Kind::Slots(_), Kind::Plain) => Some(Rejection::HasNoSlots { name }),
        (Kind::Slots(asked), Kind::Slots(slots)) if asked != slots => {
            Some(Rejection::OtherSlots { name, slots })
        }
        _ => None,
    }
}

//! Every name in use: what holds it, and who queues for it.
//!
//! Holds and waiters are known here by where they stand; what they are stands in
//! [`holds`](super::holds) and [`waiters`](super::waiters). A name that nobody holds or queues for
//! is forgotten at once.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use super::index::Index;
use super::list::List;
use super::slab::{Id, Slab};
use super::slots::Slots;
use super::waiters::Waiters;
use crate::{HashSeed, Key, KeySet, Rejection};

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

/// One name. Most are plain and have no queue: two of those fit into a line of the processor's
/// cache.
#[derive(Clone, Debug)]
#[repr(align(32))]
pub(super) struct Name {
    key: Key,
    /// Of a plain name.
    holder: Option<Id>,
    more: Option<Box<More>>,
}

const _: () = assert!(size_of::<Option<Name>>() == 32);

/// What most names do not have.
#[derive(Clone, Debug, Default)]
struct More {
    queue: List,
    slots: Option<Slots>,
}

impl Name {
    fn new(key: Key, kind: Kind) -> Self {
        let more = match kind {
            Kind::Plain => None,
            Kind::Slots(count) => Some(Box::new(More {
                queue: List::default(),
                slots: Some(Slots::new(count)),
            })),
        };
        Self {
            key,
            holder: None,
            more,
        }
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn slots(&self) -> Option<&Slots> {
        self.more.as_ref()?.slots.as_ref()
    }

    fn slots_mut(&mut self) -> Option<&mut Slots> {
        self.more.as_mut()?.slots.as_mut()
    }

    pub(super) fn queue(&self) -> Option<&List> {
        self.more.as_ref().map(|more| &more.queue)
    }

    pub(super) fn queue_len(&self) -> usize {
        self.queue().map_or(0, |queue| queue.len as usize)
    }

    pub(super) fn head(&self) -> Option<Id> {
        self.queue()?.first
    }

    pub(super) fn kind(&self) -> Kind {
        match self.slots() {
            None => Kind::Plain,
            Some(slots) => Kind::Slots(slots.count()),
        }
    }

    fn has_room(&self) -> bool {
        match self.slots() {
            None => self.holder.is_none(),
            Some(slots) => slots.lowest_free().is_some(),
        }
    }

    pub(super) fn is_in_use(&self) -> bool {
        let taken = self.slots().is_some_and(|slots| !slots.taken().is_empty());
        taken || self.holder.is_some() || self.head().is_some()
    }

    /// What holds it; of a name with slots, what holds this one.
    pub(super) fn owner(&self, slot: Option<u32>) -> Option<Id> {
        match (self.slots(), slot) {
            (None, None) => self.holder,
            (Some(slots), Some(slot)) => slots.taken().get(&slot).copied(),
            _ => None,
        }
    }

    /// All that hold it, in slot order.
    pub(super) fn owners(&self) -> Vec<Id> {
        match self.slots() {
            None => self.holder.into_iter().collect(),
            Some(slots) => slots.taken().values().copied().collect(),
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

#[derive(Clone, Debug)]
pub(super) struct Names {
    seed: HashSeed,
    names: Slab<Name>,
    by_key: Index,
    /// The weights of all names.
    in_use: u64,
}

impl Names {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            seed,
            names: Slab::default(),
            by_key: Index::default(),
            in_use: 0,
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Name> {
        let id = self.find(self.seed.key(key), key)?;
        self.names.get(id)
    }

    fn find(&self, hash: u32, key: &Key) -> Option<Id> {
        self.by_key.find(hash, |id| self.names[id].key == *key)
    }

    /// All of them, in an order that means nothing.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Name> {
        self.names.iter().map(|(_, name)| name)
    }

    /// How many places there are for names, empty ones included.
    pub(super) fn places(&self) -> usize {
        self.names.places()
    }

    /// What stands in a place, if anything does.
    pub(super) fn at(&self, place: usize) -> Option<&Name> {
        self.names.at(place)
    }

    pub(super) fn in_use(&self) -> u64 {
        self.in_use
    }

    pub(super) fn head(&self, key: &Key) -> Option<Id> {
        self.get(key)?.head()
    }

    pub(super) fn survey(&self, keys: &[Key], kind: Kind) -> Survey {
        let mut survey = Survey {
            conflict: None,
            open: true,
            new_keys: 0,
            longest_queue: 0,
        };
        for key in keys {
            let Some(name) = self.get(key) else {
                survey.new_keys += kind.weight();
                continue;
            };
            survey.open &= name.has_room() && name.head().is_none();
            survey.longest_queue = survey.longest_queue.max(name.queue_len());
            survey.conflict = survey.conflict.or_else(|| conflict(key, kind, name.kind()));
        }
        survey
    }

    /// Whether this waiter heads the queue of every key, and every key has room.
    pub(super) fn is_grantable(&self, keys: &[Key], waiter: Id) -> bool {
        keys.iter().all(|key| {
            self.get(key)
                .is_some_and(|name| name.head() == Some(waiter) && name.has_room())
        })
    }

    /// Gives every key to this hold; for a slot name, the lowest free slot, which is returned.
    pub(super) fn take(&mut self, keys: &[Key], kind: Kind, hold: Id) -> Option<u32> {
        let mut taken = None;
        for key in keys {
            let name = self.entry(key, kind);
            match name.slots_mut() {
                None => {
                    assert_eq!(name.holder, None, "a key has one holder");
                    name.holder = Some(hold);
                }
                Some(slots) => {
                    let slot = slots.lowest_free().expect("the caller saw a free slot");
                    assert!(slots.take(slot, hold), "a slot has one holder");
                    taken = Some(slot);
                }
            }
        }
        taken
    }

    /// Gives one key, or exactly this slot of it, to a hold. False if that is taken, or if the
    /// name is in use as something else.
    #[must_use]
    pub(super) fn place(&mut self, key: &Key, kind: Kind, slot: Option<u32>, hold: Id) -> bool {
        let name = self.entry(key, kind);
        if name.kind() != kind {
            return false;
        }
        match (name.slots_mut(), slot) {
            (None, None) => name.holder.replace(hold).is_none(),
            (Some(slots), Some(slot)) => slots.take(slot, hold),
            _ => false,
        }
    }

    /// Takes every key back from this hold.
    pub(super) fn give_back(&mut self, keys: &[Key], slot: Option<u32>, hold: Id) {
        for key in keys {
            self.edit(key, |name| match (name.slots_mut(), slot) {
                (None, None) => {
                    let holder = name.holder.take();
                    assert_eq!(holder, Some(hold), "a key is given back by its owner");
                }
                (Some(slots), Some(slot)) => slots.give_back(slot, hold),
                _ => unreachable!("a hold has a slot exactly if its name has slots"),
            });
        }
    }

    /// The same keys; a single one shares its bytes with all others who use the name.
    pub(super) fn shared(&self, keys: KeySet) -> KeySet {
        match self.get(&keys[0]) {
            Some(name) if keys.len() == 1 => name.key.clone().into(),
            _ => keys,
        }
    }

    /// Puts a waiter at the end of every key's queue.
    pub(super) fn enqueue(&mut self, keys: &[Key], kind: Kind, id: Id, waiters: &mut Waiters) {
        for key in keys {
            let more = self.entry(key, kind).more.get_or_insert_default();
            waiters.enter(&mut more.queue, key, id);
        }
    }

    /// Takes a waiter out of every key's queue, and notes the keys that it headed.
    pub(super) fn dequeue(
        &mut self,
        keys: &[Key],
        id: Id,
        waiters: &mut Waiters,
        mut headed: Option<&mut Vec<Key>>,
    ) {
        for key in keys {
            self.edit(key, |name| {
                let more = name.more.as_mut();
                let queue = &mut more.expect("a waiter is in all its queues").queue;
                if queue.first == Some(id)
                    && let Some(headed) = &mut headed
                {
                    headed.push(key.clone());
                }
                waiters.quit(queue, key, id);
            });
        }
    }

    fn entry(&mut self, key: &Key, kind: Kind) -> &mut Name {
        let hash = self.seed.key(key);
        let id = self.find(hash, key).unwrap_or_else(|| {
            self.in_use += kind.weight();
            let id = self.names.insert(Name::new(key.clone(), kind));
            self.by_key.insert(hash, id);
            id
        });
        &mut self.names[id]
    }

    /// Changes a name in use, and forgets it if it no longer is.
    fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Name)) {
        let hash = self.seed.key(key);
        let id = self.find(hash, key);
        let id = id.expect("a key that is held or queued for is in use");
        let name = &mut self.names[id];
        change(name);
        if !name.is_in_use() {
            self.in_use -= name.kind().weight();
            self.by_key.remove(hash, id);
            self.names.remove(id);
        }
    }

    /// That every name is found, and that [`Names::in_use`] is right.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        self.names.check()?;
        self.by_key.check()?;
        let mut names = self.names.iter();
        let found =
            names.all(|(id, name)| self.find(self.seed.key(&name.key), &name.key) == Some(id));
        if !found || self.by_key.len() != self.names.len() {
            return Err("every name is found by its key");
        }
        let weights = self.iter().map(|name| name.kind().weight());
        if weights.sum::<u64>() != self.in_use {
            return Err("the keys in use are counted");
        }
        Ok(())
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

//! Records that stay where they are, under small numbers.
//!
//! Chunks are never moved or copied, so a growing machine makes no pause, and a record costs
//! nothing but its own bytes. A number is given out again once its record is removed; who keeps
//! one longer than that has a bug.

use alloc::vec::Vec;
use core::num::NonZeroU32;

/// Where a record is. Not zero, so that an optional one needs no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(NonZeroU32);

impl Id {
    /// One bit of a number is free for others to use.
    const MOST: u32 = (1 << 31) - 1;

    fn at(index: u32) -> Self {
        assert!(index < Self::MOST, "a slab has less than 2^31 records");
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    pub(super) fn get(self) -> u32 {
        self.0.get()
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    fn split(self) -> (usize, usize) {
        let index = (self.0.get() - 1) as usize;
        (index / CHUNK, index % CHUNK)
    }
}

const CHUNK: usize = 1_024;

#[derive(Clone, Debug)]
enum Record<T> {
    Vacant { next: Option<Id> },
    Full(T),
}

#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Record<T>>>,
    vacant: Option<Id>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            vacant: None,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many records there are, vacant ones included.
    pub(super) fn places(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// The record with this number, from zero on, unless it is vacant.
    pub(super) fn at(&self, place: usize) -> Option<&T> {
        self.get(Id::at(u32::try_from(place).ok()?))
    }

    pub(super) fn get(&self, id: Id) -> Option<&T> {
        let (chunk, place) = id.split();
        match self.chunks.get(chunk)?.get(place)? {
            Record::Full(value) => Some(value),
            Record::Vacant { .. } => None,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Id {
        self.len += 1;
        if let Some(id) = self.vacant {
            let record = self.record(id);
            let Record::Vacant { next } = *record else {
                unreachable!("a vacant record is listed once");
            };
            *record = Record::Full(value);
            self.vacant = next;
            return id;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            // The first one grows by and by: a small machine stays small.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let last = self.chunks.last_mut().expect("there is a chunk");
        let index = u32::try_from(before + last.len()).unwrap_or(u32::MAX);
        last.push(Record::Full(value));
        Id::at(index)
    }

    pub(super) fn remove(&mut self, id: Id) -> T {
        let next = self.vacant;
        let record = self.record(id);
        let Record::Full(value) = core::mem::replace(record, Record::Vacant { next }) else {
            unreachable!("what is removed is there");
        };
        self.vacant = Some(id);
        self.len -= 1;
        if self.len == 0 && self.chunks.len() > 1 {
            self.chunks.clear();
            self.vacant = None;
        }
        value
    }

    /// All records, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        let records = self.chunks.iter().flatten();
        records.zip(0..).filter_map(|(record, index)| match record {
            Record::Full(value) => Some((Id::at(index), value)),
            Record::Vacant { .. } => None,
        })
    }

    fn record(&mut self, id: Id) -> &mut Record<T> {
        let (chunk, place) = id.split();
        &mut self.chunks[chunk][place]
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        let records = self.places();
        let full = self.iter().count();
        let mut vacant = 0;
        let mut next = self.vacant;
        while let Some(id) = next {
            let (chunk, place) = id.split();
            let record = self.chunks.get(chunk).and_then(|chunk| chunk.get(place));
            let Some(Record::Vacant { next: after }) = record else {
                return Err("the list of vacant records holds vacant records");
            };
            vacant += 1;
            if vacant > records {
                return Err("the list of vacant records ends");
            }
            next = *after;
        }
        if full != self.len || full + vacant != records {
            return Err("every record is counted, or listed as vacant");
        }
        Ok(())
    }
}

impl<T> core::ops::Index<Id> for Slab<T> {
    type Output = T;

    fn index(&self, id: Id) -> &T {
        self.get(id).expect("who is linked to is there")
    }
}

impl<T> core::ops::IndexMut<Id> for Slab<T> {
    fn index_mut(&mut self, id: Id) -> &mut T {
        match self.record(id) {
            Record::Full(value) => value,
            Record::Vacant { .. } => unreachable!("who is linked to is there"),
        }
    }
}

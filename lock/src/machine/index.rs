//! A hash table from hashes to places in a slab: one line of the processor's cache per look.
//!
//! A line has seven entries, and the count of those that found it full and went on to the next
//! one; a search ends at a line with none of these. The table is split into shards that grow each
//! by itself, so no command ever moves the whole of a large table, and entries carry their hash,
//! so moving them looks at nothing else. Nothing that reaches an outcome may depend on where an
//! entry stands.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::array;

use super::slab::Id;

const SHARDS: usize = 64;
const ENTRIES: usize = 7;

/// A hash that finds something, and where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    hash: u32,
    id: Id,
}

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Line {
    entries: [Option<Entry>; ENTRIES],
    /// How many entries went by.
    passed: u32,
}

const _: () = assert!(size_of::<Line>() == 64);

#[derive(Clone, Debug, Default)]
struct Shard {
    /// Their number is a power of two, or zero.
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Index {
    shards: Box<[Shard; SHARDS]>,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            shards: Box::new(array::from_fn(|_| Shard::default())),
            len: 0,
        }
    }
}

/// The lowest bits of a hash choose the line, these the shard.
fn shard(hash: u32) -> usize {
    (hash >> 26) as usize % SHARDS
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first with this hash that is the one looked for.
    pub(super) fn find(&self, hash: u32, is: impl Fn(Id) -> bool) -> Option<Id> {
        self.shards[shard(hash)].find(hash, is)
    }

    /// Adds an entry that is not there yet.
    pub(super) fn insert(&mut self, hash: u32, id: Id) {
        self.len += 1;
        self.shards[shard(hash)].insert(Entry { hash, id });
    }

    /// Removes an entry that is there.
    pub(super) fn remove(&mut self, hash: u32, id: Id) {
        self.len -= 1;
        self.shards[shard(hash)].remove(Entry { hash, id });
    }

    /// How many lines there are, and how many entries went by one of them.
    #[cfg(test)]
    pub(super) fn shape(&self) -> (usize, u32) {
        let shards = self.shards.iter();
        shards.fold((0, 0), |(lines, passed), shard| {
            let by = shard.lines.iter().map(|line| line.passed);
            (lines + shard.lines.len(), passed + by.sum::<u32>())
        })
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        let counts = self.shards.iter().map(|shard| shard.len);
        if counts.sum::<usize>() != self.len {
            return Err("every entry of an index is counted");
        }
        for (number, part) in self.shards.iter().enumerate() {
            // Whatever is not there is not found, from every line, and looking for it ends.
            let lines = u32::try_from(part.lines.len()).map_err(|_| "a shard is small")?;
            if (0..lines).any(|line| part.find(line, |_| false).is_some()) {
                return Err("nothing is found that is not there");
            }
            if part.entries().any(|entry| shard(entry.hash) != number) {
                return Err("an entry is in the shard of its hash");
            }
            part.check()?;
        }
        Ok(())
    }
}

impl Shard {
    fn start(&self, hash: u32) -> usize {
        hash as usize & (self.lines.len() - 1)
    }

    fn after(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    fn find(&self, hash: u32, is: impl Fn(Id) -> bool) -> Option<Id> {
        if self.len == 0 {
            return None;
        }
        let mut number = self.start(hash);
        // An entry that is not there may have been passed by others in every line.
        for _ in 0..self.lines.len() {
            let line = &self.lines[number];
            let found = line
                .entries
                .iter()
                .flatten()
                .find(|entry| entry.hash == hash && is(entry.id));
            if found.is_some() || line.passed == 0 {
                return found.map(|entry| entry.id);
            }
            number = self.after(number);
        }
        None
    }

    fn insert(&mut self, entry: Entry) {
        // At most seven tenths, so that few lines are full.
        if (self.len + 1) * 10 > self.lines.len() * ENTRIES * 7 {
            self.resize((self.lines.len() * 2).max(1));
        }
        self.put(entry);
        self.len += 1;
    }

    fn put(&mut self, entry: Entry) {
        let mut number = self.start(entry.hash);
        loop {
            let line = &mut self.lines[number];
            if let Some(free) = line.entries.iter_mut().find(|entry| entry.is_none()) {
                *free = Some(entry);
                return;
            }
            line.passed += 1;
            number = self.after(number);
        }
    }

    fn remove(&mut self, entry: Entry) {
        let mut number = self.start(entry.hash);
        loop {
            let line = &mut self.lines[number];
            let place = line.entries.iter_mut().find(|place| **place == Some(entry));
            if let Some(place) = place {
                *place = None;
                break;
            }
            assert!(line.passed > 0, "what is removed from an index is there");
            line.passed -= 1;
            number = self.after(number);
        }
        self.len -= 1;
        // Far enough from growing again.
        if self.lines.len() > 8 && self.len * 8 < self.lines.len() * ENTRIES {
            self.resize(self.lines.len() / 2);
        }
    }

    fn resize(&mut self, lines: usize) {
        let fresh = alloc::vec![Line::default(); lines];
        let old = core::mem::replace(&mut self.lines, fresh);
        for entry in old.into_iter().flat_map(|line| line.entries).flatten() {
            self.put(entry);
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let lines = self.lines.iter().flat_map(|line| line.entries);
        lines.flatten()
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.entries().count() != self.len {
            return Err("every entry of an index is counted");
        }
        let mut passed = alloc::vec![0; self.lines.len()];
        for (number, line) in self.lines.iter().enumerate() {
            for entry in line.entries.iter().flatten() {
                let mut by = self.start(entry.hash);
                while by != number {
                    passed[by] += 1;
                    by = self.after(by);
                }
            }
        }
        let counted = self.lines.iter().map(|line| line.passed);
        if !counted.eq(passed) {
            return Err("a line counts the entries that went by");
        }
        Ok(())
    }
}

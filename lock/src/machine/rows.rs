//! A map from numbers that count up, as tokens and connections do, to places in a slab.
//!
//! 64 numbers in a row stand together, with as much room as they have entries. New ones mostly go
//! into the newest row, and a row of numbers that are all there costs a few bytes for each: so
//! what is in use is dense in memory, and mostly at hand in the processor's caches.

use alloc::vec::Vec;

use super::index::Index;
use super::slab::{Id, Slab};
use crate::HashSeed;

/// With no more rows than this the newest stays when the last entry goes.
const SMALL: usize = 1_024;

#[derive(Clone, Debug)]
struct Row {
    number: u64,
    /// One bit for each number that has an entry.
    present: u64,
    /// The entries, in the order of the numbers.
    ids: Vec<Id>,
}

#[derive(Clone, Debug)]
pub(super) struct Rows {
    seed: HashSeed,
    rows: Slab<Row>,
    by_number: Index,
    /// The row that was used last by an insertion. It mostly stays even if it is empty.
    newest: Option<Id>,
    len: usize,
}

fn split(number: u64) -> (u64, u64) {
    (number >> 6, 1 << (number & 63))
}

impl Row {
    /// How many entries stand before that of this bit.
    fn rank(&self, bit: u64) -> usize {
        (self.present & (bit - 1)).count_ones() as usize
    }
}

impl Rows {
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            seed,
            rows: Slab::default(),
            by_number: Index::default(),
            newest: None,
            len: 0,
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<Id> {
        let (row, bit) = split(number);
        let row = &self.rows[self.find(row)?];
        (row.present & bit != 0).then(|| row.ids[row.rank(bit)])
    }

    fn find(&self, row: u64) -> Option<Id> {
        if let Some(newest) = self.newest
            && self.rows[newest].number == row
        {
            return Some(newest);
        }
        let hash = self.seed.number(row);
        self.by_number.find(hash, |id| self.rows[id].number == row)
    }

    /// Adds a number that has no entry yet.
    pub(super) fn insert(&mut self, number: u64, id: Id) {
        let (number, bit) = split(number);
        let at = self.find(number).unwrap_or_else(|| self.begin(number));
        if self.newest != Some(at) {
            let before = self.newest.replace(at);
            self.forget_if_empty(before);
        }
        let row = &mut self.rows[at];
        assert!(row.present & bit == 0, "a number has one entry");
        row.ids.insert(row.rank(bit), id);
        row.present |= bit;
        self.len += 1;
    }

    /// Removes a number that has an entry.
    pub(super) fn remove(&mut self, number: u64) {
        let (number, bit) = split(number);
        let at = self.find(number).expect("what is removed is there");
        let row = &mut self.rows[at];
        assert!(row.present & bit != 0, "what is removed is there");
        row.ids.remove(row.rank(bit));
        row.present &= !bit;
        self.len -= 1;
        if self.newest != Some(at) {
            if row.ids.len() * 4 <= row.ids.capacity() {
                row.ids.shrink_to_fit();
            }
            self.forget_if_empty(Some(at));
        }
        if self.len == 0 && self.rows.places() > SMALL {
            let newest = self.newest.take();
            self.forget_if_empty(newest);
        }
    }

    fn begin(&mut self, number: u64) -> Id {
        let at = self.rows.insert(Row {
            number,
            present: 0,
            ids: Vec::new(),
        });
        self.by_number.insert(self.seed.number(number), at);
        at
    }

    fn forget_if_empty(&mut self, row: Option<Id>) {
        if let Some(at) = row
            && self.rows[at].present == 0
        {
            let number = self.rows[at].number;
            self.by_number.remove(self.seed.number(number), at);
            self.rows.remove(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        self.rows.check()?;
        self.by_number.check()?;
        let mut len = 0;
        for (at, row) in self.rows.iter() {
            if row.ids.len() != row.present.count_ones() as usize {
                return Err("a row has an entry for each number that is present");
            }
            let by_hash = self
                .by_number
                .find(self.seed.number(row.number), |id| id == at);
            if self.find(row.number) != Some(at) || by_hash.is_none() {
                return Err("a row is found by its number");
            }
            if row.present == 0 && self.newest != Some(at) {
                return Err("only the newest row may be empty");
            }
            len += row.ids.len();
        }
        if len != self.len || self.by_number.len() != self.rows.len() {
            return Err("the entries of the rows are counted");
        }
        if self
            .newest
            .is_some_and(|newest| self.rows.get(newest).is_none())
        {
            return Err("the newest row is there");
        }
        Ok(())
    }
}

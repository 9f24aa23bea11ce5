//! Lists through the records of a slab: the queue of a name.
//!
//! A record can stand in several lists. Which of its places belongs to this one is what the
//! caller's closure answers.

use super::slab::{Id, Slab};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    pub(super) first: Option<Id>,
    last: Option<Id>,
    pub(super) len: u32,
}

/// The neighbours in one list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    before: Option<Id>,
    after: Option<Id>,
}

impl List {
    /// Adds a record behind all others.
    pub(super) fn append<T>(
        &mut self,
        records: &mut Slab<T>,
        id: Id,
        place: impl Fn(&mut T) -> &mut Place,
    ) {
        *place(&mut records[id]) = Place {
            before: self.last,
            after: None,
        };
        match self.last {
            Some(last) => place(&mut records[last]).after = Some(id),
            None => self.first = Some(id),
        }
        self.last = Some(id);
        self.len += 1;
    }

    /// Takes a record out, which must be in this list.
    pub(super) fn remove<T>(
        &mut self,
        records: &mut Slab<T>,
        id: Id,
        place: impl Fn(&mut T) -> &mut Place,
    ) {
        let Place { before, after } = core::mem::take(place(&mut records[id]));
        match before {
            Some(before) => place(&mut records[before]).after = after,
            None => {
                assert_eq!(self.first, Some(id), "a waiter is in all its lists");
                self.first = after;
            }
        }
        match after {
            Some(after) => place(&mut records[after]).before = before,
            None => {
                assert_eq!(self.last, Some(id), "a waiter is in all its lists");
                self.last = before;
            }
        }
        self.len -= 1;
    }

    /// All members, first to last.
    pub(super) fn iter<'a, T>(
        &self,
        records: &'a Slab<T>,
        place: impl Fn(&'a T) -> &'a Place,
    ) -> impl Iterator<Item = (Id, &'a T)> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let id = next?;
            let record = &records[id];
            next = place(record).after;
            Some((id, record))
        })
    }

    /// `Err` unless the list is linked both ways, and as long as it says.
    pub(super) fn check<'a, T>(
        &self,
        records: &'a Slab<T>,
        place: impl Fn(&'a T) -> Option<&'a Place>,
    ) -> Result<(), &'static str> {
        let mut before = None;
        let mut next = self.first;
        for _ in 0..self.len {
            let found = next.and_then(|id| records.get(id)).and_then(&place);
            match found {
                Some(found) if found.before == before => {
                    before = next;
                    next = found.after;
                }
                _ => return Err("a list is linked both ways"),
            }
        }
        if next.is_some() || before != self.last {
            return Err("a list ends with its last member");
        }
        Ok(())
    }
}

//! Who ends first, in an exact order, at a cost that does not grow with their number.
//!
//! Leases mostly have one of few lengths, and time goes forward, so deadlines mostly come in
//! order. They are kept in runs: lists that are sorted because each new deadline is put behind one
//! that is not later. A new one goes into the run whose end is the latest that is not later than
//! itself; where there is none, a run begins. As many runs come to be as there are lengths of
//! lease in use, and only the runs stand in an ordered map, not what is in them. In the worst case,
//! when every deadline is earlier than all before it, each is a run by itself, and this is an
//! ordered map as any other.

use alloc::collections::BTreeMap;

use super::slab::{Id, Slab};
use crate::Timestamp;

/// When something ends, and who goes first of those that end in the same moment. Unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    pub(super) order: u64,
}

/// What stands in a slab and has an end.
pub(super) trait Timed {
    fn due(&self) -> Due;
    fn links(&mut self) -> &mut Links;
    fn links_ref(&self) -> Links;
}

/// The neighbours in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    before: Link,
    after: Link,
}

/// Another member of the run, or the run itself where its list begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link(u32);

enum Side {
    Member(Id),
    Run(Id),
}

impl Link {
    const RUN: u32 = 1 << 31;

    fn member(id: Id) -> Self {
        Self(id.get())
    }

    fn run(id: Id) -> Self {
        Self(id.get() | Self::RUN)
    }

    fn side(self) -> Side {
        let id = Id::from_number(self.0 & !Self::RUN).expect("who is removed was inserted");
        if self.0 & Self::RUN == 0 {
            Side::Member(id)
        } else {
            Side::Run(id)
        }
    }
}

#[derive(Clone, Debug)]
struct Run {
    first: Id,
    last: Id,
    /// Of the latest that came in, who may have left again: nothing in the run ends later.
    bound: Due,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    runs: Slab<Run>,
    /// Every run by its first member.
    heads: BTreeMap<Due, Id>,
    /// The run with the latest bound, where most new members go.
    top: Option<Id>,
    /// All other runs by their bounds.
    bounds: BTreeMap<Due, Id>,
}

impl Timers {
    /// When the first one ends.
    pub(super) fn first(&self) -> Option<Timestamp> {
        self.heads.first_key_value().map(|(due, _)| due.at)
    }

    /// When the last one ends. Looks at every run.
    pub(super) fn last<T: Timed>(&self, members: &Slab<T>) -> Option<Timestamp> {
        let lasts = self.runs.iter().map(|(_, run)| members[run.last].due().at);
        lasts.max()
    }

    /// The one that ends first, if its end has come.
    pub(super) fn first_due(&self, now: Timestamp) -> Option<Id> {
        let (due, run) = self.heads.first_key_value()?;
        (due.at <= now).then(|| self.runs[*run].first)
    }

    pub(super) fn insert<T: Timed>(&mut self, members: &mut Slab<T>, id: Id) {
        let due = members[id].due();
        let Some(run) = self.run_before(due) else {
            self.begin(members, id, due);
            return;
        };
        let last = core::mem::replace(&mut self.runs[run].last, id);
        members[last].links().after = Link::member(id);
        *members[id].links() = Links {
            before: Link::member(last),
            after: Link::run(run),
        };
    }

    /// Takes one out, whose deadline must still be that of its insertion.
    pub(super) fn remove<T: Timed>(&mut self, members: &mut Slab<T>, id: Id) {
        let Links { before, after } = members[id].links_ref();
        match (before.side(), after.side()) {
            (Side::Member(earlier), Side::Member(later)) => {
                members[earlier].links().after = after;
                members[later].links().before = before;
            }
            (Side::Member(earlier), Side::Run(run)) => {
                members[earlier].links().after = after;
                self.runs[run].last = earlier;
            }
            (Side::Run(run), Side::Member(later)) => {
                members[later].links().before = before;
                self.runs[run].first = later;
                self.forget_head(members[id].due(), run);
                self.heads.insert(members[later].due(), run);
            }
            (Side::Run(run), Side::Run(_)) => {
                self.forget_head(members[id].due(), run);
                self.end(run);
            }
        }
        *members[id].links() = Links::default();
    }

    /// The run that this one goes behind, with its bound moved already.
    fn run_before(&mut self, due: Due) -> Option<Id> {
        let top = self.top?;
        if self.runs[top].bound <= due {
            self.runs[top].bound = due;
            return Some(top);
        }
        let (bound, run) = self.bounds.range(..=due).next_back()?;
        let (bound, run) = (*bound, *run);
        self.bounds.remove(&bound);
        self.bounds.insert(due, run);
        self.runs[run].bound = due;
        Some(run)
    }

    fn begin<T: Timed>(&mut self, members: &mut Slab<T>, id: Id, due: Due) {
        let run = self.runs.insert(Run {
            first: id,
            last: id,
            bound: due,
        });
        self.heads.insert(due, run);
        if self.top.is_none() {
            self.top = Some(run);
        } else {
            self.bounds.insert(due, run);
        }
        *members[id].links() = Links {
            before: Link::run(run),
            after: Link::run(run),
        };
    }

    fn end(&mut self, run: Id) {
        let bound = self.runs.remove(run).bound;
        if self.top == Some(run) {
            self.top = self.bounds.pop_last().map(|(_, run)| run);
        } else {
            let known = self.bounds.remove(&bound);
            assert_eq!(known, Some(run), "a run is known by its bound");
        }
    }

    fn forget_head(&mut self, due: Due, run: Id) {
        let known = self.heads.remove(&due);
        assert_eq!(known, Some(run), "a run is known by its first member");
    }

    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn check<T: Timed>(&self, members: &Slab<T>) -> Result<(), &'static str> {
        self.runs.check()?;
        let mut seen = 0;
        for (run, list) in self.runs.iter() {
            seen += self.check_run(members, run, list)?;
        }
        if seen != members.len() {
            return Err("every deadline is in one run");
        }
        if self.heads.len() != self.runs.len() {
            return Err("every run is known by its first member");
        }
        let top = self.top.map(|top| self.runs[top].bound);
        let below = self.bounds.last_key_value().map(|(bound, _)| *bound);
        if top.is_some() != (self.runs.len() > 0)
            || self.bounds.len() + usize::from(top.is_some()) != self.runs.len()
            || below.is_some() && below >= top
        {
            return Err("the run with the latest bound is at the top");
        }
        Ok(())
    }

    /// Gives the number of members.
    fn check_run<T: Timed>(
        &self,
        members: &Slab<T>,
        run: Id,
        list: &Run,
    ) -> Result<usize, &'static str> {
        let mut seen = 0;
        let mut before = Link::run(run);
        let mut latest = None;
        let mut next = Side::Member(list.first);
        while let Side::Member(id) = next {
            let Some(member) = members.get(id) else {
                return Err("a run holds what is there");
            };
            if latest >= Some(member.due()) {
                return Err("a run is sorted");
            }
            if member.links_ref().before != before {
                return Err("a run is linked both ways");
            }
            seen += 1;
            latest = Some(member.due());
            before = Link::member(id);
            next = member.links_ref().after.side();
        }
        if before != Link::member(list.last) || latest > Some(list.bound) {
            return Err("a run ends with its last member, within its bound");
        }
        if !matches!(next, Side::Run(end) if end == run) {
            return Err("a list ends in its own run");
        }
        if self.heads.get(&members[list.first].due()) != Some(&run) {
            return Err("every run is known by its first member");
        }
        if self.top != Some(run) && self.bounds.get(&list.bound) != Some(&run) {
            return Err("every run is known by its bound");
        }
        Ok(seen)
    }
}

//! The log of one node: entries after a snapshot.

use highwater_lock::{Command, Timestamp};

/// The generation of each slot's voter.
pub(crate) type Voters = Vec<u64>;

#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(crate) term: u64,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Command { stamp: Timestamp, command: Command },
    Voters(Voters),
}

/// Everything up to a place in the log.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) voters: Voters,
    pub(crate) machine: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) base: Snapshot,
    entries: Vec<LogEntry>,
    /// Where the voters change.
    changes: Vec<(u64, Voters)>,
}

impl Log {
    pub(crate) fn new(base: Snapshot) -> Self {
        Self {
            base,
            entries: Vec::new(),
            changes: Vec::new(),
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    pub(crate) fn last_term(&self) -> u64 {
        self.entries.last().map_or(self.base.term, |last| last.term)
    }

    pub(crate) fn get(&self, index: u64) -> Option<&LogEntry> {
        let place = index.checked_sub(self.base.index + 1)?;
        self.entries.get(place as usize)
    }

    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        self.get(index).map(|entry| entry.term)
    }

    pub(crate) fn append(&mut self, entry: LogEntry) -> u64 {
        if let Body::Voters(voters) = &entry.body {
            self.changes.push((self.last() + 1, voters.clone()));
        }
        self.entries.push(entry);
        self.last()
    }

    /// The entries from `index` on, at most `most`.
    pub(crate) fn from(&self, index: u64, most: usize) -> Vec<LogEntry> {
        let place = (index - self.base.index - 1) as usize;
        let rest = self.entries.get(place..).unwrap_or_default();
        rest.iter().take(most).cloned().collect()
    }

    /// Forgets `index` and everything after it.
    pub(crate) fn truncate(&mut self, index: u64) {
        let keep = index.saturating_sub(self.base.index + 1) as usize;
        self.entries.truncate(keep);
        self.changes.retain(|(at, _)| *at < index);
    }

    /// Forgets everything that is in the snapshot.
    pub(crate) fn compact(&mut self, base: Snapshot) {
        let gone = (base.index - self.base.index) as usize;
        self.entries.drain(..gone.min(self.entries.len()));
        self.changes.retain(|(at, _)| *at > base.index);
        self.base = base;
    }

    /// The voters as of `index`.
    pub(crate) fn voters_at(&self, index: u64) -> &Voters {
        let known = self.changes.iter().rev();
        let newest = known.into_iter().find(|(at, _)| *at <= index);
        newest.map_or(&self.base.voters, |(_, voters)| voters)
    }

    /// Every set of voters that has to agree while `committed` is all that is known to be decided.
    pub(crate) fn electorates(&self, committed: u64) -> impl Iterator<Item = &Voters> {
        let open = self.changes.iter().filter(move |(at, _)| *at > committed);
        let open = open.map(|(_, voters)| voters);
        [self.voters_at(committed)].into_iter().chain(open)
    }

    /// The latest stamp that counts: a command of an older epoch moves no time.
    pub(crate) fn last_stamp(&self) -> Option<Timestamp> {
        let stamps = self.entries.iter().filter_map(|entry| match &entry.body {
            Body::Command { stamp, command } => {
                (command.epoch.get() == entry.term).then_some(*stamp)
            }
            Body::Voters(_) => None,
        });
        stamps.max()
    }
}

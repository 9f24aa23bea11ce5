//! What nodes say to each other.

use highwater_lock::{Command, Timestamp};

use super::log::{LogEntry, Snapshot};

/// One process: its fixed slot, and which process in that slot it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub(crate) slot: usize,
    pub(crate) generation: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) from: Peer,
    pub(crate) to: Peer,
    pub(crate) term: u64,
    pub(crate) body: Message,
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    AskVote {
        last: u64,
        last_term: u64,
    },
    Vote {
        granted: bool,
    },
    Append {
        previous: u64,
        previous_term: u64,
        entries: Vec<LogEntry>,
        committed: u64,
    },
    Install(Snapshot),
    /// `Ok` with the last entry that agrees, or `Err` with the last one that may.
    Appended(Result<u64, u64>),
    /// A process without memory asks to become the voter of its slot.
    Join,
    /// What a deposed leader had proposed, with its old epoch.
    Late(Vec<(Timestamp, Command)>),
}

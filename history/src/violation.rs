//! What the checker can find.

use std::fmt;

use crate::History;

/// A promise of the lock service or of the fence that a history breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// The history contradicts itself: the recorder is wrong, not what it watched.
    Malformed,
    /// One token was given out twice.
    TokenTwice,
    /// A later grant has a lower token.
    TokenBackwards,
    /// One request was granted twice.
    GrantedTwice,
    /// Two ownerships of a key at one time.
    TwoHolders,
    /// Somebody who came later was granted first, in one epoch.
    Overtaken,
    /// A grant to a request that had timed out, was cancelled, belonged to an older epoch, came over
    /// a connection that was gone, or whose wait was over by lease time.
    GrantToDead,
    /// Somebody was left waiting for what was free, and was next.
    SleepsOn,
    /// An extension made a lease shorter.
    ExtensionShortened,
    /// An ownership was extended that had ended, decided or not.
    DeadExtended,
    /// An ownership ended that was not there.
    EndedTwice,
    /// A lease ended earlier than any clock within its bounds allows.
    ExpiredEarly,
    /// The holder was told that it holds nothing, while nothing had ended its ownership.
    LiveDenied,
    /// An ownership was released that nobody had asked to release, or by a leader that only
    /// inherited it.
    NotYoursToRelease,
    /// The client was told that nothing happens, and it happened.
    DeniedYetDone,
    /// The client was told of something that was never decided, or was decided otherwise.
    AnsweredUndecided,
    /// Two replicas differ at the same place of the log.
    Diverged,
    /// A leader's command was applied after one of a newer leader.
    EpochBackwards,
    /// An acknowledged write is not in the database.
    WriteLost,
    /// A write is in the database twice.
    WriteDoubled,
    /// A write was accepted after one with a higher token.
    StaleAccepted,
    /// A row that nobody offered, or whose writer was told that it is refused.
    WriteFromNowhere,
    /// After healing a key was not granted any more, or a call got no answer.
    NoProgress,
}

/// A broken promise and the events that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is broken.
    pub rule: Rule,
    /// Where the events stand in [`History::entries`].
    pub events: Vec<usize>,
    /// What it is about: a key, a token, a call.
    pub about: String,
}

impl Violation {
    /// The violation and its events as text, one a line, with line numbers of the written history.
    pub fn explain(&self, history: &History) -> String {
        let lines = self.events.iter().map(|index| {
            let entry = history.entries().get(*index);
            let line = entry.map_or_else(|| "(nothing)".to_owned(), ToString::to_string);
            format!("\n  {}: {line}", index + 1)
        });
        format!("{self}{}", lines.collect::<String>())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.about)
    }
}

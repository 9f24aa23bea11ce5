//! The checker: a history in, broken promises out.
//!
//! Each file has the promises of one kind and says what it takes as certain. What is not known
//! counts for the service: an unknown outcome may or may not have happened, at any later time.

mod answers;
mod calls;
mod decisions;
mod leases;
mod progress;
mod queues;
mod tokens;
mod writes;

use self::calls::Calls;
use crate::{Answer, Event, History, Request, Rule, Violation};

/// What the lock service may rely on, and so what the checker may hold it to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// How much faster than the recorder's clock a node's may run, in parts per million.
    pub clock_rate_ppm: u64,
    /// How long after healing every key has been granted, in microseconds: longer than the longest
    /// lease, an election, and the turns of those who wait.
    pub recovery: u64,
}

/// What the checker saw and what it found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Every broken promise, in no order that means anything.
    pub violations: Vec<Violation>,
    /// How many grants clients were told of. A history without any proves nothing.
    pub grants: usize,
    /// How many of its calls had an unknown outcome.
    pub unknown: usize,
    /// How many writes were acknowledged.
    pub writes: usize,
    /// How many writes were refused for a higher token.
    pub stale: usize,
}

impl Report {
    /// Whether a promise of this kind is broken.
    pub fn breaks(&self, rule: Rule) -> bool {
        self.violations.iter().any(|found| found.rule == rule)
    }

    fn add(&mut self, rule: Rule, events: impl Into<Vec<usize>>, about: impl ToString) {
        self.violations.push(Violation {
            rule,
            events: events.into(),
            about: about.to_string(),
        });
    }

    fn count(&mut self, history: &History) {
        for entry in history.entries() {
            let Event::Answered { answer, .. } = &entry.event else {
                continue;
            };
            match answer {
                Answer::Granted { .. } => self.grants += 1,
                Answer::Unknown => self.unknown += 1,
                Answer::Committed => self.writes += 1,
                Answer::Stale { .. } => self.stale += 1,
                _ => {}
            }
        }
    }
}

/// Looks for every broken promise in a history.
pub fn check(history: &History, assumptions: Assumptions) -> Report {
    let mut report = Report::default();
    report.count(history);
    let calls = Calls::of(history, &mut report);
    tokens::check(history, &calls, &mut report);
    decisions::check(history, &calls, &mut report);
    queues::check(history, &calls, &mut report);
    leases::check(history, &calls, assumptions, &mut report);
    answers::check(history, &calls, &mut report);
    writes::check(history, &calls, &mut report);
    progress::check(history, &calls, assumptions, &mut report);
    report
}

/// Whether two requests want one key.
fn share_a_key(one: &Request, other: &Request) -> bool {
    let (one, other) = (acquired(one), acquired(other));
    one.iter().any(|key| other.contains(key))
}

/// The keys of an acquire; none of another request.
fn acquired(request: &Request) -> &[String] {
    match request {
        Request::Acquire { keys, .. } => keys,
        _ => &[],
    }
}

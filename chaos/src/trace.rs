//! The decision traces of all nodes, brought together, as events of a history.
//!
//! A decision names the connection and the request; which call of the driver that was is found by
//! its keys and times ([`Times`](crate::workload::Times)). Moments are those at which a line was
//! read, which is later than what it tells: so nothing counts as certain too early.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

use highwater_history::{CallId, Decision, Event, History, Request};

use crate::Failure;

/// What the nodes have told so far.
#[derive(Debug, Default)]
pub(crate) struct Trace(Mutex<Told>);

#[derive(Clone, Debug, Default)]
struct Told {
    /// By position and part: what was told first, and everything that differs from it.
    decisions: BTreeMap<(u64, u32), Vec<Line>>,
    /// The entries of the log, and the epoch of each.
    entries: BTreeMap<u64, u64>,
    /// Entries that nodes tell differently.
    different: BTreeSet<u64>,
    states: Vec<(u64, Event)>,
    gave_back: Vec<(u64, u64, u64)>,
    broken: Option<String>,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    at: u64,
    epoch: u64,
    word: String,
    fields: Vec<(String, String)>,
}

impl Trace {
    /// Takes a line of a node's log, if it is one of the trace.
    pub(crate) fn take(&self, at: u64, slot: u8, line: &str) -> bool {
        let Some((_, text)) = line.split_once(TARGET) else {
            return false;
        };
        let mut told = self.0.lock().expect("nobody panics here");
        if told.take(at, slot, text).is_none() {
            told.broken.get_or_insert_with(|| line.to_owned());
        }
        true
    }

    /// How many entries have been told.
    pub(crate) fn entries(&self) -> usize {
        self.0.lock().expect("nobody panics here").entries.len()
    }

    /// The history with the decisions about keys that begin like this, and nothing of other keys.
    ///
    /// # Errors
    /// A line cannot be read, an entry was told by nobody, or a decision belongs to no call.
    pub(crate) fn join(&self, seen: &History, prefix: &str) -> Result<History, Failure> {
        let told = self.0.lock().expect("nobody panics here").clone();
        if let Some(line) = told.broken {
            return Err(format!("not a line of the decision trace: {line}").into());
        }
        if let Some(position) = told.different.first() {
            return Err(format!("entry {position} is not the same on all nodes").into());
        }
        let first = told.entries.keys().next().copied().unwrap_or(0);
        if first > 1 {
            return Err(format!("the first entry that was told is {first}").into());
        }
        let missing = (first..).zip(told.entries.keys());
        let mut missing = missing.filter(|(expected, position)| expected != *position);
        if let Some((expected, _)) = missing.next() {
            return Err(format!("no node has told entry {expected}").into());
        }
        let mut join = Join::new(seen, prefix);
        for (place, lines) in &told.decisions {
            for line in lines {
                join.decided(*place, line)?;
            }
        }
        let released = join.events.iter().filter_map(|(at, event)| match event {
            Event::Decided {
                decision: Decision::Released { token, .. },
                ..
            } => Some((*token, *at)),
            _ => None,
        });
        let released: HashMap<u64, u64> = released.collect();
        let mut gave_back = Vec::new();
        for (at, token, epoch) in told.gave_back {
            if join.tokens.contains(&token) {
                // Another node's pipe may have been read first.
                let at = at.min(released.get(&token).copied().unwrap_or(at));
                gave_back.push((at, Event::GaveBack { token, epoch }));
            }
        }
        let mut decided = join.events;
        decided.extend(told.states);
        let parts = [seen_of(seen, prefix), of(gave_back), of(decided)];
        let mut joined = History::merge(parts);
        joined.push(0, Event::AllDecisions);
        Ok(joined)
    }
}

/// A history of events in any order.
fn of(mut events: Vec<(u64, Event)>) -> History {
    events.sort_by_key(|(at, _)| *at);
    let mut history = History::default();
    for (at, event) in events {
        history.push(at, event);
    }
    history
}

/// The calls about keys that begin like this, with all that belongs to them.
fn seen_of(seen: &History, prefix: &str) -> History {
    let mut kept = History::default();
    let mut calls = BTreeSet::new();
    for entry in seen.entries() {
        let keep = match &entry.event {
            Event::Called { call, request, .. } => {
                let keep = match request {
                    Request::Acquire { keys, .. }
                    | Request::Release { keys, .. }
                    | Request::Extend { keys, .. } => keys.iter().all(|k| k.starts_with(prefix)),
                    Request::ForceRelease { key } | Request::Write { key, .. } => {
                        key.starts_with(prefix)
                    }
                    Request::Cancel { other } => calls.contains(other),
                };
                keep && calls.insert(*call)
            }
            Event::Answered { call, .. } | Event::QueueSeen { call, .. } => calls.contains(call),
            Event::Row { key, .. } => key.starts_with(prefix),
            _ => true,
        };
        if keep {
            kept.push(entry.at, entry.event.clone());
        }
    }
    kept
}

impl Told {
    fn take(&mut self, at: u64, slot: u8, text: &str) -> Option<()> {
        let mut words = text.split(' ');
        let word = words.next()?.to_owned();
        let (mut position, mut part, mut epoch) = (None, None, None);
        let mut fields = Vec::new();
        for field in words {
            let (name, value) = field.split_once('=')?;
            match name {
                "position" => position = Some(value.parse().ok()?),
                "part" => part = Some(value.parse().ok()?),
                "epoch" => epoch = Some(value.parse().ok()?),
                _ => fields.push((name.to_owned(), value.to_owned())),
            }
        }
        let line = Line {
            at,
            epoch: epoch.unwrap_or(0),
            word,
            fields,
        };
        match &*line.word {
            "entry" => {
                let first = *self.entries.entry(position?).or_insert(epoch?);
                if first != epoch? {
                    self.different.insert(position?);
                }
            }
            "state" => {
                let event = Event::State {
                    node: slot.into(),
                    position: position?,
                    digest: line.number("digest")?,
                };
                self.states.push((at, event));
            }
            "gave-back" => self.gave_back.push((at, line.number("token")?, epoch?)),
            _ => {
                epoch?;
                let known = self.decisions.entry((position?, part?)).or_default();
                let is_new = |known: &Line| {
                    (known.epoch, &known.word, &known.fields)
                        != (line.epoch, &line.word, &line.fields)
                };
                if known.iter().all(is_new) {
                    known.push(line);
                }
            }
        }
        Some(())
    }
}

impl Line {
    fn text(&self, name: &str) -> Option<&str> {
        let field = self.fields.iter().find(|(is, _)| is == name);
        field.map(|(_, value)| &**value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// What an acquire asked for, if it is said here.
    fn asked(&self) -> Option<Asked> {
        let keys = self.fields.iter().filter(|(name, _)| name == "key");
        let keys: Vec<String> = keys.map(|(_, key)| key.clone()).collect();
        Some((keys, self.number("wait")?, self.number("lease")?))
    }
}

/// Keys, wait and lease.
type Asked = (Vec<String>, u64, u64);

/// Which call each decision belongs to.
struct Join<'a> {
    prefix: &'a str,
    calls: HashMap<Asked, Vec<(u64, CallId)>>,
    /// The connection of each call, as the driver numbers them.
    connections: HashMap<CallId, u64>,
    /// By epoch, connection and request, as nodes name them.
    waiters: HashMap<String, CallId>,
    /// By epoch and connection, as nodes name them.
    known: HashMap<String, u64>,
    tokens: BTreeSet<u64>,
    events: Vec<(u64, Event)>,
}

impl<'a> Join<'a> {
    fn new(seen: &History, prefix: &'a str) -> Self {
        let mut calls: HashMap<Asked, Vec<(u64, CallId)>> = HashMap::new();
        let mut connections = HashMap::new();
        for entry in seen.entries() {
            if let Event::Called {
                call,
                connection,
                request:
                    Request::Acquire {
                        keys, wait, lease, ..
                    },
            } = &entry.event
            {
                let asked = (keys.clone(), *wait, *lease);
                calls.entry(asked).or_default().push((entry.at, *call));
                connections.insert(*call, *connection);
            }
        }
        Self {
            prefix,
            calls,
            connections,
            waiters: HashMap::new(),
            known: HashMap::new(),
            tokens: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    fn decided(&mut self, (position, part): (u64, u32), line: &Line) -> Result<(), Failure> {
        let decision = self.decision(line)?;
        if let Some(decision) = decision {
            let event = Event::Decided {
                position,
                part,
                epoch: line.epoch,
                decision,
            };
            self.events.push((line.at, event));
        }
        Ok(())
    }

    /// None about other keys.
    fn decision(&mut self, line: &Line) -> Result<Option<Decision>, Failure> {
        let wrong = || format!("not a decision: {line:?}");
        let number = |name| line.number(name).ok_or_else(wrong);
        Ok(match &*line.word {
            "queued" => {
                let now = number("now")?;
                let call = self.call(line)?;
                call.map(|call| Decision::Queued { call, now })
            }
            "granted" => {
                let (token, until) = (number("token")?, number("until")?);
                let slot = line.number("slot").map(u32::try_from).transpose()?;
                let call = self.call(line)?;
                self.tokens.extend(call.map(|_| token));
                call.map(|call| Decision::Granted {
                    call,
                    token,
                    slot,
                    until,
                })
            }
            "timed-out" => self.call(line)?.map(|call| Decision::TimedOut { call }),
            "dropped" => self.call(line)?.map(|call| Decision::Dropped { call }),
            "cancelled" => self.call(line)?.map(|call| Decision::Cancelled { call }),
            "disconnected" => {
                let known = self.known.get(line.text("connection").ok_or_else(wrong)?);
                known.map(|connection| Decision::Disconnected {
                    connection: *connection,
                })
            }
            word @ ("released" | "extended" | "expired" | "retention-ended") => {
                let token = number("token")?;
                if !self.tokens.contains(&token) {
                    return Ok(None);
                }
                Some(match word {
                    "released" => Decision::Released {
                        token,
                        until: line.number("until"),
                    },
                    "extended" => Decision::Extended {
                        token,
                        now: number("now")?,
                        until: number("until")?,
                    },
                    "expired" => Decision::Expired { token },
                    _ => Decision::RetentionEnded { token },
                })
            }
            _ => return Err(wrong().into()),
        })
    }

    /// The call of a waiter. None if it is about other keys.
    fn call(&mut self, line: &Line) -> Result<Option<CallId>, Failure> {
        let waiter = line.text("waiter").ok_or("a decision about nobody")?;
        let Some(asked) = line.asked() else {
            // It queued before, and that was told; or it is about other keys.
            return Ok(self.waiters.get(waiter).copied());
        };
        if !asked.0.iter().all(|key| key.starts_with(self.prefix)) {
            return Ok(None);
        }
        let made = self
            .calls
            .get(&asked)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let call = made.iter().rev().find(|(at, _)| *at <= line.at);
        let Some((_, call)) = call else {
            return Err(format!("a decision without a call: {line:?}").into());
        };
        self.waiters.insert(waiter.to_owned(), *call);
        if let (Some((link, _)), Some(connection)) =
            (waiter.rsplit_once('/'), self.connections.get(call))
        {
            self.known.insert(link.to_owned(), *connection);
        }
        Ok(Some(*call))
    }
}

const TARGET: &str = "highwater_server::decisions: ";

#[cfg(test)]
mod tests {
    use highwater_history::{Answer, Assumptions, Rule, check};

    use super::*;

    /// One call that is granted and released, and what nodes tell of it.
    fn joined(lines: &[&str]) -> Result<History, Failure> {
        let keys = vec!["wire/a".to_owned()];
        let (one, two) = (CallId(1), CallId(2));
        let mut seen = History::default();
        let called = |call, request| Event::Called {
            call,
            connection: 9,
            request,
        };
        let acquire = Request::Acquire {
            keys: keys.clone(),
            slots: None,
            wait: 0,
            lease: 5_000,
        };
        seen.push(1, called(one, acquire));
        let granted = Answer::Granted {
            token: 7,
            slot: None,
            epoch: None,
        };
        seen.push(
            3,
            Event::Answered {
                call: one,
                answer: granted,
            },
        );
        let release = Request::Release {
            keys,
            token: 7,
            hold: 0,
        };
        seen.push(4, called(two, release));
        let answer = Answer::Released;
        seen.push(6, Event::Answered { call: two, answer });
        let trace = Trace::default();
        for (at, line) in lines.iter().enumerate() {
            assert!(trace.take(2 + at as u64, 0, line));
        }
        trace.join(&seen, "wire/")
    }

    const ENTRIES: [&str; 2] = [
        "t TRACE highwater_server::decisions: entry position=0 epoch=1",
        "t TRACE highwater_server::decisions: entry position=1 epoch=1",
    ];
    const GRANT: &str = "t TRACE highwater_server::decisions: granted waiter=1/4/2 token=7 until=5001 \
                         wait=0 lease=5000 key=wire/a position=1 part=0 epoch=1";
    const RELEASE: &str =
        "t TRACE highwater_server::decisions: released token=7 position=1 part=1 epoch=1";

    fn breaks(history: &History, rule: Rule) -> bool {
        let assumptions = Assumptions {
            clock_rate_ppm: 0,
            recovery: 1,
        };
        check(history, assumptions).breaks(rule)
    }

    #[test]
    fn decisions_find_their_calls() {
        let history = joined(&[ENTRIES[0], ENTRIES[1], GRANT, GRANT, RELEASE]).unwrap();
        let text = history.to_string();
        assert!(
            text.contains("decided-granted call=1 token=7 until=5001"),
            "{text}"
        );
        assert_eq!(text.matches("decided-granted").count(), 1, "{text}");
        let assumptions = Assumptions {
            clock_rate_ppm: 0,
            recovery: 1,
        };
        assert_eq!(check(&history, assumptions).violations, []);
    }

    #[test]
    fn what_was_answered_and_never_decided_is_seen() {
        let history = joined(&[ENTRIES[0], ENTRIES[1], GRANT]).unwrap();
        assert!(breaks(&history, Rule::AnsweredUndecided));
    }

    #[test]
    fn nodes_that_differ_are_seen() {
        let other = GRANT.replace("until=5001", "until=5002");
        let history = joined(&[ENTRIES[0], ENTRIES[1], GRANT, &other, RELEASE]).unwrap();
        assert!(breaks(&history, Rule::Diverged));
        let other = ENTRIES[1].replace("epoch=1", "epoch=2");
        assert!(joined(&[ENTRIES[0], ENTRIES[1], &other]).is_err());
    }

    #[test]
    fn a_gap_and_a_decision_of_nobody_are_seen() {
        let last = ENTRIES[1].replace("position=1", "position=2");
        assert!(joined(&[ENTRIES[0], &last]).is_err());
        let other = GRANT.replace("lease=5000", "lease=5001");
        assert!(joined(&[ENTRIES[0], ENTRIES[1], &other]).is_err());
        let other = GRANT.replace("wire/a", "client/a");
        let history = joined(&[ENTRIES[0], ENTRIES[1], &other]).unwrap();
        assert!(!history.to_string().contains("decided-granted"));
    }
}

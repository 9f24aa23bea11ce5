//! Histories as text: one event a line, `MOMENT WORD field=value …`.
//!
//! Stable: a run that failed is kept in this form and read again by later builds. Keys contain
//! neither spaces nor line ends, so they need no quoting; a line has as many `key` fields as keys.

mod read;

use std::fmt::{self, Write as _};
use std::str::FromStr;

use self::read::read;
use crate::{Answer, CallId, Decision, Entry, Event, History, Request};

/// Why a text is not a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ReadError {
    /// The line, from 1 up.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for History {
    /// One event a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries
            .iter()
            .try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl FromStr for History {
    type Err = ReadError;

    /// Reads what `Display` writes. Empty lines and lines that begin with `#` mean nothing.
    fn from_str(text: &str) -> Result<Self, ReadError> {
        let mut history = Self::default();
        for (number, line) in text.split('\n').enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what| ReadError {
                line: number + 1,
                what,
            };
            let entry = read(line).map_err(wrong)?;
            if history
                .entries
                .last()
                .is_some_and(|last| last.at > entry.at)
            {
                return Err(wrong("the moment is before that of the last event".into()));
            }
            history.entries.push(entry);
        }
        Ok(history)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, line(&self.event))
    }
}

/// A line that is being written.
struct Line(String);

impl Line {
    fn new(word: &str) -> Self {
        Self(word.to_owned())
    }

    fn field(mut self, name: &str, value: impl fmt::Display) -> Self {
        write!(self.0, " {name}={value}").expect("a string takes everything");
        self
    }

    fn optional(self, name: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    fn keys(self, keys: &[String]) -> Self {
        keys.iter().fold(self, |line, key| line.field("key", key))
    }
}

fn line(event: &Event) -> String {
    let line = match event {
        Event::Called {
            call,
            connection,
            request,
        } => write_request(request, call.0, *connection),
        Event::Answered { call, answer } => write_answer(answer, call.0),
        Event::ConnectionEnded { connection } => {
            Line::new("connection-ended").field("connection", connection)
        }
        Event::QueueSeen { call, epoch } => Line::new("queue-seen")
            .field("call", call.0)
            .field("epoch", epoch),
        Event::Led { node, epoch } => Line::new("led").field("node", node).field("epoch", epoch),
        Event::GaveBack { token, epoch } => Line::new("gave-back")
            .field("token", token)
            .field("epoch", epoch),
        Event::Decided {
            position,
            part,
            epoch,
            decision,
        } => write_decision(decision)
            .field("position", position)
            .field("part", part)
            .field("epoch", epoch),
        Event::State {
            node,
            position,
            digest,
        } => Line::new("state")
            .field("node", node)
            .field("position", position)
            .field("digest", digest),
        Event::ClockJumped { micros } => Line::new("clock-jumped").field("micros", micros),
        Event::Row { key, token, call } => Line::new("row")
            .field("call", call.0)
            .field("token", token)
            .field("key", key),
        Event::AllDecisions => Line::new("all-decisions"),
        Event::AllRows => Line::new("all-rows"),
        Event::Healed => Line::new("healed"),
    };
    line.0
}

fn write_request(request: &Request, call: u64, connection: u64) -> Line {
    let line = |word: &str| {
        Line::new(word)
            .field("call", call)
            .field("connection", connection)
    };
    match request {
        Request::Acquire {
            keys,
            slots,
            wait,
            lease,
        } => line("acquire")
            .field("wait", wait)
            .field("lease", lease)
            .optional("slots", *slots)
            .keys(keys),
        Request::Release { keys, token, hold } => line("release")
            .field("token", token)
            .field("hold", hold)
            .keys(keys),
        Request::Extend { keys, token, lease } => line("extend")
            .field("token", token)
            .field("lease", lease)
            .keys(keys),
        Request::Cancel { other } => line("cancel").field("other", other.0),
        Request::ForceRelease { key } => line("force-release").field("key", key),
        Request::Write { key, token } => line("write").field("token", token).field("key", key),
    }
}

fn write_answer(answer: &Answer, call: u64) -> Line {
    let line = |word: &str| Line::new(word).field("call", call);
    match answer {
        Answer::Granted { token, slot, epoch } => line("granted")
            .field("token", token)
            .optional("slot", *slot)
            .optional("epoch", *epoch),
        Answer::ForceReleased { burned } => line("force-released").field("burned", burned),
        Answer::Stale { highest } => line("stale").field("highest", highest),
        Answer::TimedOut => line("timed-out"),
        Answer::Busy => line("busy"),
        Answer::NotTaken => line("not-taken"),
        Answer::Unknown => line("unknown"),
        Answer::Released => line("released"),
        Answer::NotHeld => line("not-held"),
        Answer::Extended => line("extended"),
        Answer::Cancelled => line("cancelled"),
        Answer::NotQueued => line("not-queued"),
        Answer::Committed => line("committed"),
    }
}

fn write_decision(decision: &Decision) -> Line {
    let of_call = |word: &str, call: &CallId| Line::new(word).field("call", call.0);
    let of_token = |word: &str, token: &u64| Line::new(word).field("token", token);
    match decision {
        Decision::Queued { call, now } => of_call("decided-queued", call).field("now", now),
        Decision::Granted {
            call,
            token,
            slot,
            until,
        } => of_call("decided-granted", call)
            .field("token", token)
            .optional("slot", *slot)
            .field("until", until),
        Decision::TimedOut { call } => of_call("decided-timed-out", call),
        Decision::Dropped { call } => of_call("decided-dropped", call),
        Decision::Cancelled { call } => of_call("decided-cancelled", call),
        Decision::Disconnected { connection } => {
            Line::new("decided-disconnected").field("connection", connection)
        }
        Decision::Released { token, until } => {
            of_token("decided-released", token).optional("until", *until)
        }
        Decision::Extended { token, now, until } => of_token("decided-extended", token)
            .field("now", now)
            .field("until", until),
        Decision::Expired { token } => of_token("decided-expired", token),
        Decision::RetentionEnded { token } => of_token("decided-retention-ended", token),
        Decision::ForceReleased { burned, ended } => ended.iter().fold(
            Line::new("decided-force-released").field("burned", burned),
            |line, token| line.field("ended", token),
        ),
    }
}

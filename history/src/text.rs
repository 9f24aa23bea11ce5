//! Histories as text: one event a line, `MOMENT WORD field=value …`.
//!
//! Stable: a run that failed is kept in this form and read again by later builds. Keys contain
//! neither spaces nor line ends, so they need no quoting; a line has as many `key` fields as keys.

use std::fmt::{self, Write as _};
use std::str::FromStr;

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

/// The fields of a line that are not read yet.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn all(&mut self, name: &str) -> Vec<&'a str> {
        let (found, rest) = self.0.drain(..).partition(|(is, _)| *is == name);
        self.0 = rest;
        let found: Vec<(&str, &str)> = found;
        found.into_iter().map(|(_, value)| value).collect()
    }

    fn text(&mut self, name: &str) -> Result<&'a str, String> {
        match self.all(name)[..] {
            [value] => Ok(value),
            _ => Err(format!("it needs one field {name}")),
        }
    }

    fn optional<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let numbers = self.numbers(name)?;
        match numbers.len() {
            0 | 1 => Ok(numbers.into_iter().next()),
            _ => Err(format!("it has two fields {name}")),
        }
    }

    fn numbers<T: FromStr>(&mut self, name: &str) -> Result<Vec<T>, String> {
        let values = self.all(name).into_iter();
        values.map(|value| number(name, value)).collect()
    }

    fn number<T: FromStr>(&mut self, name: &str) -> Result<T, String> {
        number(name, self.text(name)?)
    }

    fn call(&mut self) -> Result<CallId, String> {
        self.number("call").map(CallId)
    }

    fn token(&mut self) -> Result<u64, String> {
        self.number("token")
    }

    fn key(&mut self) -> Result<String, String> {
        self.text("key").map(str::to_owned)
    }

    fn keys(&mut self) -> Result<Vec<String>, String> {
        let keys: Vec<String> = self.all("key").into_iter().map(str::to_owned).collect();
        match keys.is_empty() {
            true => Err("it needs a field key".into()),
            false => Ok(keys),
        }
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{name}={text} is not a number"))
}

fn read(line: &str) -> Result<Entry, String> {
    let mut words = line.split(' ');
    let at = number("moment", words.next().unwrap_or_default())?;
    let word = words.next().ok_or("it has no event")?;
    let fields = words.map(|field| field.split_once('=').ok_or("a field is name=value"));
    let mut fields = Fields(fields.collect::<Result<_, _>>()?);
    let event = match word.strip_prefix("decided-") {
        Some(word) => Event::Decided {
            position: fields.number("position")?,
            part: fields.number("part")?,
            epoch: fields.number("epoch")?,
            decision: read_decision(word, &mut fields)?,
        },
        None => read_event(word, &mut fields)?,
    };
    match fields.0.first() {
        Some((name, _)) => Err(format!("the field {name} means nothing here")),
        None => Ok(Entry { at, event }),
    }
}

fn read_event(word: &str, fields: &mut Fields<'_>) -> Result<Event, String> {
    Ok(match word {
        "connection-ended" => Event::ConnectionEnded {
            connection: fields.number("connection")?,
        },
        "queue-seen" => Event::QueueSeen {
            call: fields.call()?,
            epoch: fields.number("epoch")?,
        },
        "led" => Event::Led {
            node: fields.number("node")?,
            epoch: fields.number("epoch")?,
        },
        "gave-back" => Event::GaveBack {
            token: fields.token()?,
            epoch: fields.number("epoch")?,
        },
        "state" => Event::State {
            node: fields.number("node")?,
            position: fields.number("position")?,
            digest: fields.number("digest")?,
        },
        "clock-jumped" => Event::ClockJumped {
            micros: fields.number("micros")?,
        },
        "row" => Event::Row {
            key: fields.key()?,
            token: fields.token()?,
            call: fields.call()?,
        },
        "all-decisions" => Event::AllDecisions,
        "all-rows" => Event::AllRows,
        "healed" => Event::Healed,
        _ => {
            let call = fields.call()?;
            match read_request(word, fields)? {
                Some(request) => Event::Called {
                    call,
                    connection: fields.number("connection")?,
                    request,
                },
                None => Event::Answered {
                    call,
                    answer: read_answer(word, fields)?,
                },
            }
        }
    })
}

fn read_request(word: &str, fields: &mut Fields<'_>) -> Result<Option<Request>, String> {
    Ok(Some(match word {
        "acquire" => Request::Acquire {
            keys: fields.keys()?,
            slots: fields.optional("slots")?,
            wait: fields.number("wait")?,
            lease: fields.number("lease")?,
        },
        "release" => Request::Release {
            keys: fields.keys()?,
            token: fields.token()?,
            hold: fields.number("hold")?,
        },
        "extend" => Request::Extend {
            keys: fields.keys()?,
            token: fields.token()?,
            lease: fields.number("lease")?,
        },
        "cancel" => Request::Cancel {
            other: fields.number("other").map(CallId)?,
        },
        "force-release" => Request::ForceRelease { key: fields.key()? },
        "write" => Request::Write {
            key: fields.key()?,
            token: fields.token()?,
        },
        _ => return Ok(None),
    }))
}

fn read_answer(word: &str, fields: &mut Fields<'_>) -> Result<Answer, String> {
    Ok(match word {
        "granted" => Answer::Granted {
            token: fields.token()?,
            slot: fields.optional("slot")?,
            epoch: fields.optional("epoch")?,
        },
        "force-released" => Answer::ForceReleased {
            burned: fields.number("burned")?,
        },
        "stale" => Answer::Stale {
            highest: fields.number("highest")?,
        },
        "timed-out" => Answer::TimedOut,
        "busy" => Answer::Busy,
        "not-taken" => Answer::NotTaken,
        "unknown" => Answer::Unknown,
        "released" => Answer::Released,
        "not-held" => Answer::NotHeld,
        "extended" => Answer::Extended,
        "cancelled" => Answer::Cancelled,
        "not-queued" => Answer::NotQueued,
        "committed" => Answer::Committed,
        _ => return Err(format!("{word} is not an event")),
    })
}

fn read_decision(word: &str, fields: &mut Fields<'_>) -> Result<Decision, String> {
    Ok(match word {
        "queued" => Decision::Queued {
            call: fields.call()?,
            now: fields.number("now")?,
        },
        "granted" => Decision::Granted {
            call: fields.call()?,
            token: fields.token()?,
            slot: fields.optional("slot")?,
            until: fields.number("until")?,
        },
        "timed-out" => Decision::TimedOut {
            call: fields.call()?,
        },
        "dropped" => Decision::Dropped {
            call: fields.call()?,
        },
        "cancelled" => Decision::Cancelled {
            call: fields.call()?,
        },
        "disconnected" => Decision::Disconnected {
            connection: fields.number("connection")?,
        },
        "released" => Decision::Released {
            token: fields.token()?,
            until: fields.optional("until")?,
        },
        "extended" => Decision::Extended {
            token: fields.token()?,
            now: fields.number("now")?,
            until: fields.number("until")?,
        },
        "expired" => Decision::Expired {
            token: fields.token()?,
        },
        "retention-ended" => Decision::RetentionEnded {
            token: fields.token()?,
        },
        "force-released" => Decision::ForceReleased {
            burned: fields.number("burned")?,
            ended: fields.numbers("ended")?,
        },
        _ => return Err(format!("decided-{word} is not an event")),
    })
}

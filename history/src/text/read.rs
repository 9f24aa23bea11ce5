//! One line, read.

use std::str::FromStr;

use crate::{Answer, CallId, Decision, Entry, Event, Request};

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

    pub(super) fn number<T: FromStr>(&mut self, name: &str) -> Result<T, String> {
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

pub(super) fn read(line: &str) -> Result<Entry, String> {
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

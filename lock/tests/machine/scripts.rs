//! Scripted scenarios: `testdata/*.txt`, one command and what it caused on each line.
//!
//! With `HIGHWATER_REWRITE=1` the right-hand sides are written anew instead of compared; read the
//! difference before you commit it. The words of a script are explained in `testdata/README.txt`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_lock::{
    Busy, Command, Epoch, Event, FencingToken, Grant, HoldState, Limits, Machine, Operation,
    Outcome, Rejection, Reply, Timestamp, WaiterId,
};

use crate::build::{key, keys, token, waiter};

#[test]
fn every_script_gives_what_stands_in_it() {
    let rewrite = std::env::var_os("HIGHWATER_REWRITE").is_some_and(|value| value == "1");
    let mut scenarios = BTreeSet::new();
    let mut wrong = String::new();
    for path in script_files() {
        let script = fs::read_to_string(&path).unwrap();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let written = replay(&script, &file, &mut scenarios);
        if written == script {
            continue;
        }
        if rewrite {
            fs::write(&path, written).unwrap();
            continue;
        }
        for (number, (is, should)) in written.lines().zip(script.lines()).enumerate() {
            if is != should {
                let line = number + 1;
                writeln!(wrong, "{file}:{line}\n  script  {should}\n  machine {is}").unwrap();
            }
        }
        if wrong.is_empty() {
            writeln!(wrong, "{file}: not in the shape that a rewrite gives it").unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    let count = scenarios.len();
    assert!(count >= 40, "only {count} scenarios: are files missing?");
}

fn script_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| !path.ends_with("README.txt"));
    paths.sort();
    paths
}

/// The script with the right-hand sides that the machine gives.
fn replay(script: &str, file: &str, scenarios: &mut BTreeSet<String>) -> String {
    let width = script.lines().map(|line| left(line).len()).max();
    let width = width.unwrap_or(0);
    let mut written = String::new();
    let mut run = Run::default();
    for (number, line) in script.lines().enumerate() {
        let place = format!("{file}:{}", number + 1);
        let left = left(line);
        if let Some(name) = left.strip_prefix("== ") {
            run = Run::default();
            assert!(scenarios.insert(name.into()), "{place}: a name twice");
            writeln!(written, "{left}").unwrap();
        } else if left.is_empty() || left.starts_with('#') {
            writeln!(written, "{left}").unwrap();
        } else {
            match run.line(left, &place) {
                Some(result) => writeln!(written, "{left:width$} | {result}").unwrap(),
                None => writeln!(written, "{left}").unwrap(),
            }
        }
    }
    written
}

fn left(line: &str) -> &str {
    line.split('|').next().unwrap().trim_end()
}

struct Run {
    limits: Limits,
    first_token: FencingToken,
    machine: Option<Machine>,
    epoch: Epoch,
    now: Timestamp,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            first_token: FencingToken::MIN,
            machine: None,
            epoch: Epoch::new(1),
            now: Timestamp::ZERO,
        }
    }
}

impl Run {
    /// Plays one line. Settings have no result.
    fn line(&mut self, line: &str, place: &str) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["limit", name, value] => self.limit(name, value, place),
            ["first-token", "max"] => self.first_token = FencingToken::MAX,
            ["first-token", number] => self.first_token = token(number.parse().unwrap()),
            ["epoch", number] => self.epoch = Epoch::new(number.parse().unwrap()),
            ["at", time, rest @ ..] => {
                self.now = Timestamp::ZERO.saturating_add(span(time, place));
                return Some(self.action(rest, place));
            }
            _ => panic!("{place}: what is {line:?}?"),
        }
        None
    }

    fn limit(&mut self, name: &str, value: &str, place: &str) {
        let limits = &mut self.limits;
        match name {
            "keys" => limits.keys = value.parse().unwrap(),
            "waiters" => limits.waiters = value.parse().unwrap(),
            "waiters-per-key" => limits.waiters_per_key = value.parse().unwrap(),
            "waiters-per-connection" => limits.waiters_per_connection = value.parse().unwrap(),
            "slots" => limits.slots = value.parse().unwrap(),
            "expiries-per-apply" => limits.expiries_per_apply = value.parse().unwrap(),
            "lease" => limits.lease = span(value, place),
            "wait" => limits.wait = span(value, place),
            "hold" => limits.minimum_hold = span(value, place),
            _ => panic!("{place}: no limit {name}"),
        }
    }

    fn machine(&mut self) -> &mut Machine {
        let (limits, first) = (&self.limits, self.first_token);
        self.machine
            .get_or_insert_with(|| Machine::new(limits.clone(), first))
    }

    fn action(&mut self, words: &[&str], place: &str) -> String {
        match words {
            ["show", name] => return show(self.machine(), name),
            ["next-deadline"] => {
                let next = self.machine().next_deadline();
                return next.map_or("none".into(), moment);
            }
            ["restart"] => {
                let bytes = self.machine().snapshot();
                let machine = Machine::restore(&bytes, self.limits.clone()).unwrap();
                assert_eq!(machine.snapshot(), bytes, "{place}");
                self.machine = Some(machine);
                return "restored".into();
            }
            _ => {}
        }
        let (operation, who) = operation(words, place);
        let (epoch, now) = (self.epoch, self.now);
        let machine = self.machine();
        let outcome = machine.apply(now, Command::new(epoch, operation));
        machine.assert_valid();
        describe(&outcome, &who)
    }
}

fn operation(words: &[&str], place: &str) -> (Operation, String) {
    let plain = |operation| (operation, String::new());
    match words {
        ["tick"] => plain(Operation::Tick),
        ["force", name] => plain(Operation::ForceRelease { key: key(name) }),
        [who, "acquires", what, options @ ..] => {
            let waiter = waiter_named(who);
            let wait = option(options, "wait", place).unwrap_or(Duration::ZERO);
            let lease = option(options, "lease", place).unwrap_or(Duration::from_secs(10));
            let operation = match what.split_once('/') {
                Some((name, slots)) => Operation::AcquireSlot {
                    waiter,
                    name: key(name),
                    slots: slots.parse().unwrap(),
                    wait,
                    lease,
                },
                None => Operation::Acquire {
                    waiter,
                    keys: keys(what),
                    wait,
                    lease,
                },
            };
            (operation, format!("{who} "))
        }
        [who, "releases", names, number, options @ ..] => (
            Operation::Release {
                keys: keys(names),
                token: token(number.parse().unwrap()),
                minimum_hold: option(options, "hold", place).unwrap_or(Duration::ZERO),
            },
            format!("{who} "),
        ),
        [who, "extends", names, number, options @ ..] => (
            Operation::Extend {
                keys: keys(names),
                token: token(number.parse().unwrap()),
                lease: option(options, "lease", place).unwrap_or(Duration::from_secs(10)),
            },
            format!("{who} "),
        ),
        [who, "cancels"] => (
            Operation::Cancel {
                waiter: waiter_named(who),
            },
            format!("{who} "),
        ),
        [who, "disconnects"] => (
            Operation::Disconnect {
                connection: waiter_named(who).connection,
            },
            format!("{who} "),
        ),
        _ => panic!("{place}: what is {words:?}?"),
    }
}

fn option(words: &[&str], name: &str, place: &str) -> Option<Duration> {
    let mut pairs = words.chunks(2);
    let pair = pairs.find(|pair| pair[0] == name)?;
    Some(span(pair[1], place))
}

/// `a` is request 1 of connection a, `a3` its request 3.
fn waiter_named(who: &str) -> WaiterId {
    let connection = u64::from(who.as_bytes()[0]);
    let request = who[1..].parse().unwrap_or(1);
    waiter(connection, request)
}

fn waiter_name(waiter: WaiterId) -> String {
    let letter = char::from(u8::try_from(waiter.connection.get()).unwrap());
    match waiter.request.get() {
        1 => letter.to_string(),
        request => format!("{letter}{request}"),
    }
}

fn span(text: &str, place: &str) -> Duration {
    let number = |digits: &str| digits.parse::<u64>().unwrap();
    if text == "max" {
        Duration::MAX
    } else if let Some(digits) = text.strip_suffix("ns") {
        Duration::from_nanos(number(digits))
    } else if let Some(digits) = text.strip_suffix("us") {
        Duration::from_micros(number(digits))
    } else if let Some(digits) = text.strip_suffix("ms") {
        Duration::from_millis(number(digits))
    } else if let Some(digits) = text.strip_suffix('s') {
        Duration::from_secs(number(digits))
    } else {
        panic!("{place}: {text} is no time")
    }
}

fn moment(at: Timestamp) -> String {
    let micros = at.as_micros();
    match (micros / 1_000_000, micros % 1_000_000) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{micros}us"),
    }
}

fn show(machine: &Machine, name: &str) -> String {
    let mut parts = Vec::new();
    for view in machine.holders(&key(name)) {
        let slot = view
            .slot
            .map_or(String::new(), |slot| format!("slot {slot} "));
        let token = view.token;
        parts.push(match view.state {
            HoldState::Held { expires } => format!("{slot}held {token} until {}", moment(expires)),
            HoldState::Retained { until } => {
                format!("{slot}retained {token} until {}", moment(until))
            }
        });
    }
    if parts.is_empty() {
        parts.push("free".into());
    }
    match machine.queue_len(&key(name)) {
        0 => {}
        queued => parts.push(format!("{queued} queued")),
    }
    parts.join(", ")
}

fn describe(outcome: &Outcome, who: &str) -> String {
    let mut parts = Vec::new();
    let granted = |grant: &Grant| {
        let slot = grant
            .slot
            .map_or(String::new(), |slot| format!(" slot {slot}"));
        format!(
            "{} granted {}{slot}",
            waiter_name(grant.waiter),
            grant.token
        )
    };
    match &outcome.reply {
        Reply::Ticked => {}
        Reply::Granted(grant) => parts.push(granted(grant)),
        Reply::Queued => parts.push(format!("{who}queued")),
        Reply::TimedOut => parts.push(format!("{who}timed out")),
        Reply::Busy(busy) => parts.push(format!("{who}busy: {}", busy_name(*busy))),
        Reply::Rejected(rejection) => {
            parts.push(format!("{who}rejected: {}", rejection_name(rejection)));
        }
        Reply::Released => parts.push(format!("{who}released")),
        Reply::NotHeld => parts.push(format!("{who}not held")),
        Reply::GroupMismatch => parts.push(format!("{who}group mismatch")),
        Reply::Extended { expires } => parts.push(format!("{who}extended to {}", moment(*expires))),
        Reply::Cancelled => parts.push(format!("{who}cancelled")),
        Reply::NotQueued => parts.push(format!("{who}not queued")),
        Reply::Disconnected { waiters } => parts.push(format!("{who}left {waiters} queues")),
        Reply::ForceReleased { burned, ended } => {
            let ended: Vec<String> = ended.iter().map(|ended| ended.token.to_string()).collect();
            let ended = match ended.len() {
                0 => "nothing".into(),
                _ => ended.join(" and "),
            };
            parts.push(format!("ended {ended}, burned {burned}"));
        }
    }
    for event in &outcome.events {
        parts.push(match event {
            Event::Granted(grant) => granted(grant),
            Event::TimedOut(waiter) => format!("{} timed out", waiter_name(*waiter)),
            Event::Dropped(waiter) => format!("{} dropped", waiter_name(*waiter)),
            Event::Expired { token, .. } => format!("{token} expired"),
            Event::RetentionEnded { token, .. } => format!("{token} no longer retained"),
        });
    }
    if parts.is_empty() {
        return "nothing".into();
    }
    parts.join(", ")
}

fn busy_name(busy: Busy) -> &'static str {
    match busy {
        Busy::Keys => "keys",
        Busy::Waiters => "waiters",
        Busy::WaitersPerKey => "waiters per key",
        Busy::WaitersPerConnection => "waiters per connection",
        _ => "?",
    }
}

fn rejection_name(rejection: &Rejection) -> String {
    match rejection {
        Rejection::StaleEpoch { current } => format!("epoch {current} has begun"),
        Rejection::DuplicateWaiter => "queued already".into(),
        Rejection::Lease { longest } => format!("lease up to {longest:?}"),
        Rejection::Wait { longest } => format!("wait up to {longest:?}"),
        Rejection::MinimumHold { longest } => format!("hold up to {longest:?}"),
        Rejection::Slots { most } => format!("up to {most} slots"),
        Rejection::OtherSlots { name, slots } => format!("{name} has {slots} slots"),
        Rejection::HasSlots { name } => format!("{name} has slots"),
        Rejection::HasNoSlots { name } => format!("{name} has no slots"),
        Rejection::TokensExhausted => "no token left".into(),
        _ => "?".into(),
    }
}

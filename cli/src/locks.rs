//! `highwater locks` and `highwater release`: what a lock server holds, for its operators.
//!
//! Both ask the admin listener; the format of its answers is documented at the server.

mod http;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::words::{digits, printable, table};
use http::{Admin, HttpError, encode};

/// List what is locked, or show one lock.
///
/// The list is a look at a server that goes on working: it is read in pages, and what changes meanwhile
/// may be seen before or after the change.
///
/// Examples:
///   highwater locks --prefix stock/
///   highwater locks stock/apple
///   highwater locks --json | jq '.locks[].key'
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Options {
    /// Show this lock with all its holders.
    key: Option<String>,
    /// Only names that begin so.
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        conflicts_with = "key",
        hide_default_value = true
    )]
    prefix: String,
    /// The most names to list.
    #[arg(long, value_name = "N", default_value_t = 1_000, conflicts_with = "key", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Write JSON. Tokens are strings, because some readers round large numbers.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: Admin,
}

/// End a hold by force.
///
/// The next holder gets a higher token. But the one who held the key is told nothing, and a database
/// admits it until a successor has written: raise the marks to the burned token, as the output says.
///
/// Examples:
///   highwater release --force stock/apple
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ReleaseOptions {
    /// The lock to end.
    key: String,
    /// Yes, whoever holds it.
    #[arg(long, required = true)]
    force: bool,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: Admin,
}

#[derive(Deserialize)]
struct List {
    locks: Vec<Value>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    slots: Option<u32>,
    taken: u32,
    queue: u64,
    holder: Option<Holder>,
}

#[derive(Deserialize)]
struct Lock {
    key: String,
    slots: Option<u32>,
    queue: u64,
    holders: Vec<Holder>,
    next_slot: Option<u32>,
}

#[derive(Deserialize)]
struct Holder {
    token: String,
    slot: Option<u32>,
    keys: Vec<String>,
    state: String,
    held_ms: u64,
    expires_in_ms: u64,
}

#[derive(Deserialize)]
struct Released {
    key: String,
    domain: String,
    burned_token: String,
    ended: Vec<Ended>,
    fence_keys: Vec<String>,
}

#[derive(Deserialize)]
struct Ended {
    token: String,
    keys: Vec<String>,
}

/// Lists or shows.
pub(crate) fn run(options: Options) -> Result<(), Error> {
    let text = on_runtime(async {
        match &options.key {
            Some(key) => show(key, &options).await,
            None => list(&options).await,
        }
    })?;
    print(&text)
}

/// Ends a hold.
pub(crate) fn run_release(options: ReleaseOptions) -> Result<(), Error> {
    let text = on_runtime(async {
        let path = format!("/v1/locks/{}/release", encode(&options.key));
        let answer = options.admin.post(&path).await?;
        if options.json {
            return Ok(format!("{answer:#}\n"));
        }
        Ok(told(
            &serde_json::from_value(answer).map_err(Error::Answer)?,
        ))
    })?;
    print(&text)
}

async fn list(options: &Options) -> Result<String, Error> {
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let mut entries: Vec<Value> = Vec::new();
    let mut next = None;
    loop {
        let page = PAGE.min(limit - entries.len());
        let path = next.unwrap_or_else(|| {
            format!("/v1/locks?prefix={}&limit={page}", encode(&options.prefix))
        });
        let answer = options.admin.get(&path).await?;
        let list: List = serde_json::from_value(answer).map_err(Error::Answer)?;
        entries.extend(list.locks);
        next = list.next;
        if next.is_none() || entries.len() >= limit {
            break;
        }
    }
    let more = next.is_some() || entries.len() > limit;
    entries.truncate(limit);
    if options.json {
        let answer = serde_json::json!({ "locks": entries, "more": more });
        return Ok(format!("{answer:#}\n"));
    }
    let entries: Result<Vec<Entry>, _> = entries.into_iter().map(serde_json::from_value).collect();
    let rows = entries.map_err(Error::Answer)?;
    let mut text = table(HEAD, rows.iter().map(Entry::row).collect());
    if more {
        text.push_str("There are more: raise --limit, or choose with --prefix\n");
    }
    Ok(text)
}

async fn show(key: &str, options: &Options) -> Result<String, Error> {
    let path = |slot| format!("/v1/locks/{}?from_slot={slot}", encode(key));
    let mut answer = options.admin.get(&path(0)).await?;
    let mut lock: Lock = serde_json::from_value(answer.clone()).map_err(Error::Answer)?;
    while let Some(slot) = lock.next_slot {
        let more = options.admin.get(&path(slot)).await?;
        if let (Some(all), Some(more)) =
            (answer["holders"].as_array_mut(), more["holders"].as_array())
        {
            all.extend(more.iter().cloned());
        }
        let more: Lock = serde_json::from_value(more).map_err(Error::Answer)?;
        lock.holders.extend(more.holders);
        lock.next_slot = more.next_slot;
    }
    if options.json {
        answer["next_slot"] = Value::Null;
        return Ok(format!("{answer:#}\n"));
    }
    let slots = lock
        .slots
        .map_or(String::new(), |slots| format!(", {slots} slots"));
    let mut text = format!(
        "{}: {} in the queue{slots}\n",
        printable(&lock.key),
        lock.queue
    );
    let rows = lock.holders.iter().map(Holder::row).collect();
    text.push_str(&table(HOLDER_HEAD, rows));
    Ok(text)
}

const HEAD: [&str; 6] = ["KEY", "TOKEN", "HELD", "EXPIRES IN", "QUEUE", "STATE"];
const HOLDER_HEAD: [&str; 6] = ["SLOT", "TOKEN", "HELD", "EXPIRES IN", "STATE", "KEYS"];

impl Entry {
    fn row(&self) -> [String; 6] {
        let of = |text: fn(&Holder) -> String| self.holder.as_ref().map_or("-".to_owned(), text);
        let mut state = of(|holder| holder.state.clone());
        if let Some(slots) = self.slots {
            write!(state, ", {} of {slots} slots", self.taken).expect("a string");
        }
        [
            printable(&self.key),
            of(|holder| holder.token.clone()),
            of(|holder| seconds(holder.held_ms)),
            of(|holder| seconds(holder.expires_in_ms)),
            self.queue.to_string(),
            state,
        ]
    }
}

impl Holder {
    fn row(&self) -> [String; 6] {
        [
            self.slot.map_or("-".to_owned(), |slot| slot.to_string()),
            self.token.clone(),
            seconds(self.held_ms),
            seconds(self.expires_in_ms),
            self.state.clone(),
            printable(&self.keys.join(" ")),
        ]
    }
}

/// What was done, and what is left to do.
fn told(released: &Released) -> String {
    let mut text = String::new();
    for hold in &released.ended {
        let keys = printable(&hold.keys.join(" "));
        writeln!(text, "ended: token {} on {keys}", hold.token).expect("a string");
    }
    if released.ended.is_empty() {
        writeln!(text, "nobody held {}", printable(&released.key)).expect("a string");
    }
    writeln!(text, "burned: token {}", released.burned_token).expect("a string");
    text.push_str(
        "Until a successor writes, the database still admits the old holder. To refuse it now:\n",
    );
    let controls = |key: &String| key.contains(char::is_control);
    let hex = released.fence_keys.iter().any(controls);
    let key = |key: &String| match hex {
        true => format!("--key {}", digits(key.as_bytes())),
        false => format!("--key {}", quoted(key)),
    };
    let keys: Vec<String> = released.fence_keys.iter().map(key).collect();
    writeln!(
        text,
        "  highwater fence raise --domain {} --floor {} {}{}",
        released.domain,
        released.burned_token,
        if hex { "--hex " } else { "" },
        keys.join(" "),
    )
    .expect("a string");
    text
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03} s", millis / 1_000, millis % 1_000)
}

fn on_runtime<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    runtime.block_on(async {
        let done = tokio::time::timeout(TIME, work).await;
        done.map_err(|_| Error::TimedOut)?
    })
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written.and_then(|()| stdout.flush()).map_err(Error::Output)
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the answer is not that of an admin listener of this version")]
    Answer(#[source] serde_json::Error),
    #[error("the admin listener did not answer within {} s", TIME.as_secs())]
    TimedOut,
    #[error("standard output takes nothing")]
    Output(#[source] io::Error),
    #[error("the system refuses what the command needs")]
    Runtime(#[source] io::Error),
}

/// Names in one request.
const PAGE: usize = 1_000;
/// For everything together.
const TIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_can_be_pasted_into_a_shell() {
        let text = told(&Released {
            key: "it's".into(),
            domain: "00ff".into(),
            burned_token: "8".into(),
            ended: vec![Ended {
                token: "7".into(),
                keys: vec!["it's".into(), "b".into()],
            }],
            fence_keys: vec!["it's".into(), "b".into()],
        });
        assert!(
            text.starts_with("ended: token 7 on it's b\nburned: token 8\n"),
            "{text}"
        );
        let command = r"  highwater fence raise --domain 00ff --floor 8 --key 'it'\''s' --key 'b'";
        assert!(text.lines().any(|line| line == command), "{text}");

        let text = told(&Released {
            key: "\u{1b}".into(),
            domain: "00ff".into(),
            burned_token: "8".into(),
            ended: Vec::new(),
            fence_keys: vec!["\u{1b}".into()],
        });
        let command = "  highwater fence raise --domain 00ff --floor 8 --hex --key 1b";
        assert!(text.lines().any(|line| line == command), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}

//! What is held and queued for, and the end of a hold by order of an operator.
//!
//! Tokens are written as text: they have 64 bits, and many readers of JSON have 53.

use std::net::SocketAddr;

use highwater_lock::{Ended, FenceKey, HoldState, HolderView, Key, NameView, Timestamp};
use serde::Serialize;

use super::access::Operator;
use super::connection::Site;
use super::problem::Problem;
use super::routes::{Answer, json};
use super::target::encode;
use crate::desk::{NAMES_AT_ONCE, NotForced, Page};

#[derive(Serialize)]
struct List<'a> {
    locks: Vec<Entry<'a>>,
    /// Where the list goes on.
    next: Option<String>,
}

/// One name in the list.
#[derive(Serialize)]
struct Entry<'a> {
    key: &'a str,
    slots: Option<u32>,
    taken: u32,
    queue: usize,
    /// The holder; of an N-slot lock, the one of the lowest taken slot.
    holder: Option<Holder<'a>>,
}

#[derive(Serialize)]
struct Holder<'a> {
    token: String,
    slot: Option<u32>,
    keys: Vec<&'a str>,
    state: &'static str,
    held_ms: u64,
    expires_in_ms: u64,
}

/// One lock with its holders.
#[derive(Serialize)]
struct Lock<'a> {
    key: &'a str,
    slots: Option<u32>,
    taken: u32,
    queue: usize,
    holders: Vec<Holder<'a>>,
    /// The parameter `from_slot` with which the holders go on.
    next_slot: Option<u32>,
}

#[derive(Serialize)]
struct Released<'a> {
    key: &'a str,
    domain: String,
    burned_token: String,
    ended: Vec<EndedHold<'a>>,
    /// The marks to raise to the burned token, as the databases know them.
    fence_keys: Vec<String>,
}

#[derive(Serialize)]
struct EndedHold<'a> {
    token: String,
    slot: Option<u32>,
    keys: Vec<&'a str>,
}

/// The parameters of a list.
pub(super) struct Wish {
    prefix: String,
    after: Option<Key>,
    limit: usize,
}

/// `GET /v1/locks`
pub(super) async fn list(site: &Site, query: &[(String, String)]) -> Result<Answer, Problem> {
    let wish = Wish::read(query, site.limits.page.max(1))?;
    let (keys, next) = wish.keys(site, "/v1/locks").await?;
    let mut found: Vec<(Timestamp, NameView)> = Vec::new();
    for keys in keys.chunks(NAMES_AT_ONCE) {
        let step = site.shared.desk.names(keys);
        found.extend(step.names.into_iter().map(|name| (step.now, name)));
        tokio::task::yield_now().await;
    }
    let locks = found.iter().map(|(now, name)| Entry::of(*now, name));
    let locks = locks.collect();
    Ok(json(&List { locks, next }))
}

/// `GET /v1/locks/{key}`
pub(super) fn show(site: &Site, key: &str, query: &[(String, String)]) -> Result<Answer, Problem> {
    let key = parse_key(key)?;
    let mut from_slot = 0;
    for (name, value) in query {
        match &**name {
            "from_slot" => from_slot = number(name, value)?,
            _ => return Err(unknown(name)),
        }
    }
    let most = site.limits.page.max(1);
    let lock = site.shared.desk.lock(&key, from_slot, most);
    let lock = lock.ok_or(Problem::NOT_FOUND.because("nobody holds this key or waits for it"))?;
    let last = lock.holders.last().and_then(|holder| holder.slot);
    let full = lock.holders.len() == most;
    let holders = lock.holders.iter().map(|view| Holder::of(lock.now, view));
    Ok(json(&Lock {
        key: key.as_str(),
        slots: lock.name.slots.map(Into::into),
        taken: lock.name.taken,
        queue: lock.name.queue,
        holders: holders.collect(),
        next_slot: last.filter(|_| full).and_then(|slot| slot.checked_add(1)),
    }))
}

/// `POST /v1/locks/{key}/release`
pub(super) async fn release(
    site: &Site,
    peer: SocketAddr,
    operator: &Operator,
    key: &str,
) -> Result<Answer, Problem> {
    let key = parse_key(key)?;
    let desk = &site.shared.desk;
    let by = operator.token.as_deref().unwrap_or("without a token");
    let forced = desk.force_release(key.clone()).await;
    let forced = forced.map_err(|not| {
        if not == NotForced::Unknown {
            tracing::warn!(
                %peer, operator = by, %key,
                "force-release by an operator, of which nobody knows whether it came about",
            );
        }
        refusal(not)
    })?;
    let fence_keys = fence_keys(&key, &forced.ended);
    let tokens: Vec<u64> = forced.ended.iter().map(|hold| hold.token.get()).collect();
    tracing::warn!(
        %peer,
        operator = by,
        %key, burned = %forced.burned, ended = ?tokens,
        "force-release by an operator",
    );
    Ok(json(&Released {
        key: key.as_str(),
        domain: desk.domain().to_string(),
        burned_token: forced.burned.to_string(),
        ended: forced.ended.iter().map(EndedHold::of).collect(),
        fence_keys,
    }))
}

/// What an operator is told whose force-release did nothing.
fn refusal(not: NotForced) -> Problem {
    match not {
        NotForced::NoToken => Problem::UNAVAILABLE.because("no token is left to burn"),
        NotForced::Elsewhere { leader } => Problem::elsewhere(leader),
        NotForced::NoLeader => Problem::UNAVAILABLE
            .because("no node leads, or this one does not know which: nothing was done"),
        NotForced::Busy => {
            Problem::UNAVAILABLE.because("too much waits to be decided: nothing was done")
        }
        NotForced::Unknown => Problem::UNKNOWN
            .because("look at the lock, and do it again if it is still held by the same token"),
    }
}

impl Wish {
    pub(super) fn read(query: &[(String, String)], most: usize) -> Result<Self, Problem> {
        let mut wish = Self {
            prefix: String::new(),
            after: None,
            limit: USUAL_PAGE.min(most),
        };
        for (name, value) in query {
            match &**name {
                "prefix" => wish.prefix.clone_from(value),
                "after" => wish.after = Some(parse_key(value)?),
                "limit" => {
                    wish.limit = number(name, value)?;
                    if wish.limit == 0 || wish.limit > most {
                        let range = format!("limit is 1 to {most}");
                        return Err(Problem::BAD_REQUEST.because(range));
                    }
                }
                _ => return Err(unknown(name)),
            }
        }
        Ok(wish)
    }

    /// The names of the page, and where the list goes on.
    pub(super) async fn keys(
        &self,
        site: &Site,
        path: &str,
    ) -> Result<(Vec<Key>, Option<String>), Problem> {
        // One more than asked for, to know whether there is more.
        let mut page = self.page()?;
        let mut place = Some(0);
        while let Some(from) = place {
            place = site.shared.desk.look(from, &mut page);
            // Whoever waits for the desk goes first.
            tokio::task::yield_now().await;
        }
        let mut keys = page.into_keys();
        let more = keys.len() > self.limit;
        keys.truncate(self.limit);
        let next = keys.last().filter(|_| more).map(|key| self.next(path, key));
        Ok((keys, next))
    }

    fn page(&self) -> Result<Page, Problem> {
        if !self.prefix.is_empty() {
            // What no key begins with is a mistake.
            parse_key(&self.prefix)?;
        }
        let after = self.after.clone();
        Ok(Page::new(&self.prefix, after, self.limit + 1))
    }

    /// Where the list goes on behind this key.
    fn next(&self, path: &str, last: &Key) -> String {
        let mut path = format!("{path}?limit={}", self.limit);
        if !self.prefix.is_empty() {
            path.push_str("&prefix=");
            path.push_str(&encode(&self.prefix));
        }
        path.push_str("&after=");
        path.push_str(&encode(last.as_str()));
        path
    }
}

impl<'a> Entry<'a> {
    fn of(now: Timestamp, name: &'a NameView) -> Self {
        Self {
            key: name.key.as_str(),
            slots: name.slots.map(Into::into),
            taken: name.taken,
            queue: name.queue,
            holder: name.holder.as_ref().map(|view| Holder::of(now, view)),
        }
    }
}

impl<'a> Holder<'a> {
    fn of(now: Timestamp, view: &'a HolderView) -> Self {
        let (state, end) = match view.state {
            HoldState::Held { expires } => ("held", expires),
            HoldState::Retained { until } => ("retained", until),
        };
        Self {
            token: view.token.to_string(),
            slot: view.slot,
            keys: view.keys.iter().map(Key::as_str).collect(),
            state,
            held_ms: millis(now, view.granted_at),
            expires_in_ms: millis(end, now),
        }
    }
}

impl<'a> EndedHold<'a> {
    fn of(hold: &'a Ended) -> Self {
        Self {
            token: hold.token.to_string(),
            slot: hold.slot,
            keys: hold.keys.iter().map(Key::as_str).collect(),
        }
    }
}

/// What an old holder may still write under.
fn fence_keys(key: &Key, ended: &[Ended]) -> Vec<String> {
    let mut keys = Vec::new();
    for hold in ended {
        keys.extend(hold.keys.iter().map(|key| match hold.slot {
            Some(slot) => FenceKey::slot(key, slot),
            None => FenceKey::from(key),
        }));
    }
    if keys.is_empty() {
        keys.push(FenceKey::from(key));
    }
    let texts = keys
        .iter()
        .map(|key| String::from_utf8_lossy(key.as_bytes()));
    texts.map(Into::into).collect()
}

/// Where the holders of one lock are told, from this slot on.
pub(super) fn path(key: &Key, from_slot: u32) -> String {
    format!("/v1/locks/{}?from_slot={from_slot}", encode(key.as_str()))
}

pub(super) fn millis(later: Timestamp, earlier: Timestamp) -> u64 {
    let span = later.saturating_since(earlier);
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn parse_key(text: &str) -> Result<Key, Problem> {
    Key::new(text).map_err(|error| Problem::BAD_REQUEST.because(error.to_string()))
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Problem> {
    let number = value.parse();
    number.map_err(|_| Problem::BAD_REQUEST.because(format!("{name} is not a number in range")))
}

fn unknown(name: &str) -> Problem {
    Problem::BAD_REQUEST.because(format!("there is no parameter {}", name.escape_debug()))
}

/// How many locks a list has if nobody asks for another number.
const USUAL_PAGE: usize = 100;

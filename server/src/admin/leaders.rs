//! The names that are held the way an election holds them, and who leads.
//!
//! The wire does not say what a lock is for, so this is a rule and no knowledge: an election holds one
//! key by itself, or slots of one name. A set of several keys is none. Every other lock of a single key
//! looks the same; who wants them apart gives elections a prefix of their own.

use highwater_lock::{FenceKey, HoldState, HolderView, Key, Timestamp};
use serde::Serialize;

use super::connection::Site;
use super::locks::{self, Wish};
use super::problem::Problem;
use super::routes::{Answer, json};
use crate::desk::Lock;

#[derive(Serialize)]
struct List<'a> {
    leaders: Vec<Election<'a>>,
    /// Where the list goes on.
    next: Option<String>,
}

/// One name with those who lead it.
#[derive(Serialize)]
struct Election<'a> {
    name: &'a str,
    /// How many may lead; `None` for one.
    slots: Option<u32>,
    leading: u32,
    candidates: usize,
    leaders: Vec<Leader>,
    /// Where the list of leaders goes on, for large groups.
    more: Option<String>,
}

/// One leader, or what is left of one.
#[derive(Serialize)]
struct Leader {
    token: String,
    slot: Option<u32>,
    /// Under which a database knows its writes.
    fence_key: String,
    state: &'static str,
    led_ms: u64,
    expires_in_ms: u64,
}

/// `GET /v1/leaders`
pub(super) async fn list(site: &Site, query: &[(String, String)]) -> Result<Answer, Problem> {
    let wish = Wish::read(query, site.limits.page.max(1))?;
    let (keys, next) = wish.keys(site, "/v1/leaders").await?;
    let mut found: Vec<Lock> = Vec::new();
    for keys in keys.chunks(ELECTIONS_AT_ONCE) {
        let desk = &site.shared.desk;
        let locks = keys
            .iter()
            .filter_map(|key| desk.lock(key, 0, LEADERS_OF_A_NAME));
        found.extend(locks.filter(is_election));
        // Whoever waits for the desk goes first.
        tokio::task::yield_now().await;
    }
    let leaders = found.iter().map(Election::of).collect();
    Ok(json(&List { leaders, next }))
}

/// Whether a lock is held as elections hold theirs. One that nobody holds is none: there is no leader.
fn is_election(lock: &Lock) -> bool {
    let alone = |holder: &HolderView| holder.keys.len() == 1;
    !lock.holders.is_empty() && lock.holders.iter().all(alone)
}

impl<'a> Election<'a> {
    fn of(lock: &'a Lock) -> Self {
        let name = &lock.name;
        let leaders = lock.holders.iter();
        let last = lock.holders.last().and_then(|holder| holder.slot);
        let full = lock.holders.len() == LEADERS_OF_A_NAME;
        let from = last.filter(|_| full).and_then(|slot| slot.checked_add(1));
        Self {
            name: name.key.as_str(),
            slots: name.slots.map(Into::into),
            leading: name.taken,
            candidates: name.queue,
            leaders: leaders
                .map(|view| Leader::of(lock.now, &name.key, view))
                .collect(),
            more: from.map(|slot| locks::path(&name.key, slot)),
        }
    }
}

impl Leader {
    fn of(now: Timestamp, name: &Key, view: &HolderView) -> Self {
        let (state, end) = match view.state {
            HoldState::Held { expires } => ("leading", expires),
            HoldState::Retained { until } => ("retained", until),
        };
        let fence_key = match view.slot {
            Some(slot) => FenceKey::slot(name, slot),
            None => FenceKey::from(name),
        };
        Self {
            token: view.token.to_string(),
            slot: view.slot,
            fence_key: String::from_utf8_lossy(fence_key.as_bytes()).into_owned(),
            state,
            led_ms: locks::millis(now, view.granted_at),
            expires_in_ms: locks::millis(end, now),
        }
    }
}

/// How many leaders of one name are shown; `more` leads to the others.
const LEADERS_OF_A_NAME: usize = 16;
/// How many names are looked at before others get their turn.
const ELECTIONS_AT_ONCE: usize = 32;

//! The load: tasks that take a lock and give it back, as fast as they are served.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use highwater_client::Key;
use tokio::task::JoinSet;

use crate::target::Target;

/// Which keys the tasks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// All tasks share the keys: task `t` uses key `t` modulo their number, so with 64 tasks and 32
    /// keys somebody waits for every key all the time.
    Contended,
    /// Every task has a key of its own.
    Uncontended,
    /// Every task takes another key of its own in each cycle, so that none is in a cache.
    Scattered,
}

impl Pattern {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contended => "contended",
            Self::Uncontended => "uncontended",
            Self::Scattered => "scattered",
        }
    }
}

/// Why a cycle did not end as it should.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The lock was not taken or not given back.
    #[error("{0}")]
    Failed(String),
    /// Two tasks held one key at once.
    #[error("two tasks held the key {0} at once")]
    Shared(String),
    /// A later holder of a key got no higher token.
    #[error("the token {token} of the key {key} is not above an earlier one, {earlier}")]
    Token {
        /// Of which key.
        key: String,
        /// What its holder got.
        token: u64,
        /// What a holder before had, of this key or in this task.
        earlier: u64,
    },
    /// A task ended without its histogram.
    #[error("a task of the load has panicked")]
    Panicked,
}

/// A key, and what its holders have in common.
pub(crate) struct Place {
    pub(crate) key: Key,
    held: AtomicBool,
    token: AtomicU64,
}

impl Place {
    pub(crate) fn new(key: Key) -> Self {
        Self {
            key,
            held: AtomicBool::new(false),
            token: AtomicU64::new(0),
        }
    }

    /// That of a task's cycle. Its number is multiplied with an odd one, so that names which follow
    /// each other have nothing in common.
    fn scattered(task: usize, cycle: u64) -> Self {
        let number = cycle.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44;
        let key = Key::new(format!("bench/scattered/{task}/{number}"));
        Self::new(key.expect("a legal and short key"))
    }

    /// Notes that somebody holds it now, who had a token before.
    fn enter(&self, token: u64, own: &mut u64) -> Result<(), Broken> {
        if self.held.swap(true, Ordering::SeqCst) {
            return Err(Broken::Shared(self.key.to_string()));
        }
        // Tokens rise over all keys, so also over those of one task.
        let earlier = self.token.swap(token, Ordering::SeqCst).max(*own);
        *own = token;
        if token <= earlier {
            let key = self.key.to_string();
            return Err(Broken::Token {
                key,
                token,
                earlier,
            });
        }
        Ok(())
    }

    fn leave(&self) {
        self.held.store(false, Ordering::SeqCst);
    }
}

/// What one target did in one slice of time.
pub(crate) struct Slice {
    pub(crate) latency: Histogram<u64>,
    pub(crate) elapsed: Duration,
}

impl Slice {
    pub(crate) fn per_second(&self) -> f64 {
        self.latency.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// A histogram of nanoseconds, exact to 0.1 %, that grows to what it is given.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are possible")
}

/// Runs so many tasks for so long, on scattered keys if there are no places. A cycle that has begun
/// is finished and counted.
pub(crate) async fn run(
    target: &Arc<Target>,
    places: &Arc<[Place]>,
    tasks: usize,
    time: Duration,
) -> Result<Slice, Broken> {
    let started = Instant::now();
    let until = started + time;
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (target, places) = (Arc::clone(target), Arc::clone(places));
        running.spawn(async move {
            match places.get(task % places.len().max(1)) {
                Some(place) => cycles(&target, |_| place, until).await,
                None => cycles(&target, |cycle| Place::scattered(task, cycle), until).await,
            }
        });
    }
    let mut latency = histogram();
    while let Some(done) = running.join_next().await {
        let done = done.map_err(|_| Broken::Panicked)??;
        latency.add(done).map_err(|_| Broken::Panicked)?;
    }
    Ok(Slice {
        latency,
        elapsed: started.elapsed(),
    })
}

async fn cycles<P: Borrow<Place>>(
    target: &Target,
    place: impl Fn(u64) -> P,
    until: Instant,
) -> Result<Histogram<u64>, Broken> {
    let mut latency = histogram();
    let mut earlier = 0;
    loop {
        let place = place(latency.len());
        let place = place.borrow();
        let begun = Instant::now();
        if begun >= until {
            return Ok(latency);
        }
        let held = target.acquire(&place.key).await?;
        // The echo gives everybody everything.
        if target.locks() {
            place.enter(held.token(), &mut earlier)?;
        }
        // Now and then a moment is given to others, who would be seen on this key.
        if latency.len().is_multiple_of(CYCLES_BETWEEN_LOOKS) {
            tokio::task::yield_now().await;
        }
        if target.locks() {
            place.leave();
        }
        target.release(&place.key, held).await?;
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency
            .record(nanoseconds)
            .expect("it grows as it needs to");
    }
}

const CYCLES_BETWEEN_LOOKS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::new(Key::new("a").unwrap())
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let place = place();
        place.enter(1, &mut 0).unwrap();
        assert!(matches!(place.enter(2, &mut 0), Err(Broken::Shared(_))));
    }

    #[test]
    fn a_token_that_does_not_rise_is_found() {
        let twice = Broken::Token {
            key: "a".to_owned(),
            token: 2,
            earlier: 2,
        };
        let place = place();
        place.enter(2, &mut 0).unwrap();
        place.leave();
        let error = place.enter(2, &mut 0).unwrap_err();
        assert_eq!(error.to_string(), twice.to_string());
        // In one task on two keys.
        let mut own = 0;
        place.leave();
        place.enter(3, &mut own).unwrap();
        let other = Place::scattered(0, 1);
        assert!(matches!(
            other.enter(3, &mut own),
            Err(Broken::Token { .. })
        ));
    }
}

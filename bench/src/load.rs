//! The load: tasks that take a lock and give it back, as fast as they are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
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
}

impl Pattern {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contended => "contended",
            Self::Uncontended => "uncontended",
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
    #[error("the token {token} of the key {key} is not above the earlier one, {earlier}")]
    Token {
        /// Of which key.
        key: String,
        /// What its holder got.
        token: u64,
        /// What the holder before had.
        earlier: u64,
    },
    /// A task ended without its histogram.
    #[error("a task of the load has panicked")]
    Panicked,
}

/// A key, and what its holders have in common.
pub(crate) struct Place {
    pub(crate) key: highwater_client::Key,
    held: AtomicBool,
    token: AtomicU64,
}

impl Place {
    pub(crate) fn new(key: highwater_client::Key) -> Self {
        Self {
            key,
            held: AtomicBool::new(false),
            token: AtomicU64::new(0),
        }
    }

    /// Notes that somebody holds it now.
    fn enter(&self, token: u64) -> Result<(), Broken> {
        if self.held.swap(true, Ordering::SeqCst) {
            return Err(Broken::Shared(self.key.to_string()));
        }
        let earlier = self.token.swap(token, Ordering::SeqCst);
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

/// Runs so many tasks for so long. A cycle that has begun is finished and counted.
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
            let place = &places[task % places.len()];
            cycles(&target, place, until).await
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

async fn cycles(target: &Target, place: &Place, until: Instant) -> Result<Histogram<u64>, Broken> {
    let mut latency = histogram();
    let mut now = Instant::now();
    while now < until {
        let held = target.acquire(&place.key).await?;
        // The echo gives everybody everything.
        if target.locks() {
            place.enter(held.token())?;
        }
        // Now and then a moment is given to others, who would be seen on this key.
        if latency.len().is_multiple_of(CYCLES_BETWEEN_LOOKS) {
            tokio::task::yield_now().await;
        }
        if target.locks() {
            place.leave();
        }
        target.release(&place.key, held).await?;
        let done = Instant::now();
        let nanoseconds = u64::try_from((done - now).as_nanos()).unwrap_or(u64::MAX);
        latency
            .record(nanoseconds)
            .expect("it grows as it needs to");
        now = done;
    }
    Ok(latency)
}

const CYCLES_BETWEEN_LOOKS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::new(highwater_client::Key::new("a").unwrap())
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let place = place();
        place.enter(1).unwrap();
        assert!(matches!(place.enter(2), Err(Broken::Shared(_))));
    }

    #[test]
    fn a_token_that_does_not_rise_is_found() {
        let place = place();
        place.enter(2).unwrap();
        place.leave();
        assert!(matches!(
            place.enter(2),
            Err(Broken::Token {
                token: 2,
                earlier: 2,
                ..
            })
        ));
    }
}

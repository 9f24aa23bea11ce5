//! The retry budget of one transaction: how often, how long, and the pause in between.
//!
//! Decides nothing about errors. The pause is random so that writers which collided once do not
//! collide again in step.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Counts the attempts of one transaction.
#[derive(Debug)]
pub(crate) struct Retry {
    started: Instant,
    left: u32,
    time: Duration,
    ceiling: Duration,
}

impl Retry {
    /// Starts the budget with its first attempt.
    pub(crate) fn new((attempts, time): (NonZeroU32, Duration)) -> Self {
        Self {
            started: Instant::now(),
            left: attempts.get() - 1,
            time,
            ceiling: FIRST_PAUSE,
        }
    }

    /// Waits a little and says true, or says false at once if the budget is used up.
    pub(crate) async fn again(&mut self) -> bool {
        let pause = jitter(self.ceiling);
        if self.left == 0 || self.started.elapsed() + pause > self.time {
            return false;
        }
        self.left -= 1;
        self.ceiling = (self.ceiling * 2).min(LONGEST_PAUSE);
        tokio::time::sleep(pause).await;
        true
    }
}

/// A random part of `ceiling`, at least a tenth of it.
fn jitter(ceiling: Duration) -> Duration {
    // The keys of the standard hash map are random and differ at every call: enough for a pause.
    let random = RandomState::new().hash_one(0) % 900;
    ceiling * (100 + u32::try_from(random).expect("below 900")) / 1_000
}

const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(attempts: u32, time: Duration) -> Retry {
        Retry::new((NonZeroU32::new(attempts).unwrap(), time))
    }

    #[tokio::test]
    async fn the_number_of_attempts_is_bounded() {
        let mut retry = budget(3, Duration::from_secs(60));
        assert!(retry.again().await);
        assert!(retry.again().await);
        assert!(!retry.again().await);
    }

    #[tokio::test]
    async fn no_attempt_starts_after_the_time_is_over() {
        assert!(!budget(1_000, Duration::ZERO).again().await);
    }

    #[test]
    fn a_pause_is_between_a_tenth_and_the_whole() {
        for _ in 0..200 {
            let pause = jitter(Duration::from_millis(100));
            assert!((10..=100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}

//! The retry budget of one transaction: how often, how long, and the pause in between.
//!
//! Decides nothing about errors. The pause is random so that writers which collided once do not
//! collide again in step.

use std::any::Any;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crate::FenceError;

/// When something began.
#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began(Instant);

#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
impl Began {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Whether at least so much time has passed since.
    #[allow(dead_code, reason = "asked by PostgreSQL only")]
    pub(crate) fn is_past(self, time: Duration) -> bool {
        self.0.elapsed() >= time
    }
}

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
    #[cfg(feature = "__async")]
    pub(crate) async fn again(&mut self) -> bool {
        let Some(pause) = self.pause() else {
            return false;
        };
        tokio::time::sleep(pause).await;
        true
    }

    /// The same for a caller that blocks its thread.
    #[cfg(feature = "__blocking")]
    pub(crate) fn again_blocking(&mut self) -> bool {
        let Some(pause) = self.pause() else {
            return false;
        };
        std::thread::sleep(pause);
        true
    }

    /// Takes one attempt from the budget and says how long to wait for it.
    fn pause(&mut self) -> Option<Duration> {
        let pause = jitter(self.ceiling);
        if self.left == 0 || self.started.elapsed() + pause > self.time {
            return None;
        }
        self.left -= 1;
        self.ceiling = (self.ceiling * 2).min(LONGEST_PAUSE);
        Some(pause)
    }
}

/// Runs attempts until one succeeds or fails for good, or the budget is used up. With its error an
/// attempt says whether another one makes sense.
#[cfg(feature = "__async")]
#[allow(
    dead_code,
    reason = "diesel-async lends its one connection to each attempt"
)]
pub(crate) async fn repeat<R, E, Attempt>(
    budget: (NonZeroU32, Duration),
    mut attempt: impl FnMut() -> Attempt,
) -> Result<R, E>
where
    Attempt: Future<Output = Result<R, (E, bool)>>,
{
    let mut retry = Retry::new(budget);
    loop {
        let (error, transient) = match attempt().await {
            Ok(value) => return Ok(value),
            Err(failed) => failed,
        };
        if !transient || !retry.again().await {
            return Err(error);
        }
    }
}

/// Looks for an error of the driver in the body's own error, where an adapter did not see it
/// itself: as such, in a [`FenceError`], or among the causes of a boxed error. An enum of the
/// user's cannot be looked into.
pub(crate) fn carries<D: Error + 'static>(error: &dyn Any, is_transient: fn(&D) -> bool) -> bool {
    let of_fence = |error: &FenceError<D>| match error {
        FenceError::Database(error) => is_transient(error),
        _ => false,
    };
    if let Some(error) = error.downcast_ref::<FenceError<D>>() {
        return of_fence(error);
    }
    if let Some(error) = error.downcast_ref::<D>() {
        return is_transient(error);
    }
    let boxed = error.downcast_ref::<Box<dyn Error + Send + Sync>>();
    let boxed = boxed.map(|error| &**error as &(dyn Error + 'static));
    let plain = error.downcast_ref::<Box<dyn Error>>();
    let mut source = boxed.or(plain.map(|error| &**error as _));
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<FenceError<D>>() {
            return of_fence(error);
        }
        if let Some(error) = error.downcast_ref::<D>() {
            return is_transient(error);
        }
        source = error.source();
    }
    false
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

    #[test]
    fn the_number_of_attempts_is_bounded() {
        let mut retry = budget(3, Duration::from_secs(60));
        assert!(retry.pause().is_some());
        assert!(retry.pause().is_some());
        assert!(retry.pause().is_none());
    }

    #[test]
    fn no_attempt_starts_after_the_time_is_over() {
        assert!(budget(1_000, Duration::ZERO).pause().is_none());
    }

    #[test]
    fn an_error_of_the_driver_is_found_wherever_it_can_be() {
        use std::num::ParseIntError;
        let error = || "x".parse::<u8>().unwrap_err();
        let found = |error: &dyn Any| carries(error, |_: &ParseIntError| true);
        assert!(found(&error()));
        assert!(found(&FenceError::Database(error())));
        assert!(!found(&FenceError::Unknown(error())));
        let boxed: Box<dyn Error + Send + Sync> = Box::new(error());
        assert!(found(&boxed));
        let boxed: Box<dyn Error + Send + Sync> = Box::new(FenceError::Database(error()));
        assert!(found(&boxed));
        let boxed: Box<dyn Error> = Box::new(FenceError::Unknown(error()));
        assert!(!found(&boxed));
        assert!(!found(&String::new()));
    }

    #[test]
    fn a_pause_is_between_a_tenth_and_the_whole() {
        for _ in 0..200 {
            let pause = jitter(Duration::from_millis(100));
            assert!((10..=100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}

//! Keeps a misbehaving peer from filling the log.
//!
//! A few lines per second get through, and the next one that does says how many did not. It
//! decides about log lines only, never about connections.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets [`LINES_PER_WINDOW`] lines through in each [`WINDOW`].
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    started: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Throttle {
    /// Whether a line may be written at `now`, and how many were left out since the last one.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = window.started.is_none_or(|started| now >= started + WINDOW);
        if over {
            window.started = Some(now);
            window.lines = 0;
        }
        if window.lines >= LINES_PER_WINDOW {
            window.suppressed += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

const LINES_PER_WINDOW: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_counted_instead_of_written() {
        let throttle = Throttle::default();
        let start = crate::system::now();
        let written = (0..1_000).filter(|_| throttle.admit(start).is_some());
        assert_eq!(written.count(), LINES_PER_WINDOW as usize);
        assert_eq!(throttle.admit(start + WINDOW), Some(990));
        assert_eq!(throttle.admit(start + WINDOW), Some(0));
    }
}

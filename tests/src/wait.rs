//! Waiting in tests: for a condition with a deadline, never for luck.

use std::time::{Duration, Instant};

/// Polls the condition until it gives a value.
///
/// # Panics
/// It gave none before the deadline.
pub async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

//! The pause before a call that was turned away is made again.

use std::time::Duration;

use tokio::time::sleep;

use crate::keeper::Backoff;
use crate::limits::{FIRST_RETRY_PAUSE, LONGEST_RETRY_PAUSE, MOST_HOPS};
use crate::pool::{Pool, Session};

/// Pauses that double, and end early when the leader of a cluster can be asked.
#[derive(Debug)]
pub(crate) struct Retry {
    pauses: Backoff,
    hops: u32,
}

impl Retry {
    pub(crate) const fn new() -> Self {
        Self {
            pauses: Backoff::new(FIRST_RETRY_PAUSE, LONGEST_RETRY_PAUSE),
            hops: 0,
        }
    }

    /// Waits, at most for what is left. The node that was asked is not asked again at once, and
    /// nodes that send each other's clients round in circles are so only for a few times.
    pub(crate) async fn pause(&mut self, pool: &Pool, asked: &Session, left: Duration) {
        let pause = self.pauses.next().min(left);
        if self.hops == MOST_HOPS {
            return sleep(pause).await;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = pool.leader_ready(asked) => self.hops += 1,
        }
    }
}

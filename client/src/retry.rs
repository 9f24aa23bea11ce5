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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater_lock::Domain;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::pool::Link;

    /// A connection that stays open for as long as what is beside it lives.
    fn session() -> (Arc<Session>, impl Sized) {
        let (acquires, waiting) = mpsc::channel(1);
        let (controls, orders) = mpsc::channel(1);
        let session = Session {
            domain: Domain::from_bytes([1; 32]),
            extensions: None,
            acquires,
            controls,
        };
        (Arc::new(session), (waiting, orders))
    }

    /// How long the first pause after an answer of this node is, if that happens at once.
    async fn paused(pool: &Pool, asked: &Session, meanwhile: impl FnOnce()) -> Duration {
        let (from, left) = (Instant::now(), Duration::from_secs(60));
        let mut retry = Retry::new();
        let happens = async { meanwhile() };
        tokio::join!(retry.pause(pool, asked, left), happens);
        from.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_can_be_asked_ends_the_pause() {
        let pool = Pool::new(3);
        let (first, _first) = session();
        let (second, _second) = session();
        pool.set(0, Link::Open(Arc::clone(&first)));
        // Nobody knows who leads, or there is no way to the leader yet.
        assert!(paused(&pool, &first, || {}).await > Duration::ZERO);
        pool.led_by(0, Some(1));
        assert!(paused(&pool, &first, || {}).await > Duration::ZERO);
        let opens = || pool.set(1, Link::Open(Arc::clone(&second)));
        assert_eq!(paused(&pool, &first, opens).await, Duration::ZERO);
        // It was there before the question came back.
        assert_eq!(paused(&pool, &first, || {}).await, Duration::ZERO);
        // The one that was asked is not asked again at once, unless it has just become the leader.
        assert!(paused(&pool, &second, || {}).await > Duration::ZERO);
        pool.led_by(1, Some(2));
        let named = || pool.led_by(1, Some(1));
        assert_eq!(paused(&pool, &second, named).await, Duration::ZERO);
    }

    /// Two nodes, each of which says that the other leads, are not asked without a pause for ever.
    #[tokio::test(start_paused = true)]
    async fn nodes_that_send_each_others_clients_in_circles_get_some_rest() {
        let pool = Pool::new(2);
        let (sessions, _alive): (Vec<_>, Vec<_>) = (0..2).map(|_| session()).unzip();
        for (index, session) in sessions.iter().enumerate() {
            pool.set(index, Link::Open(Arc::clone(session)));
        }
        let (from, mut retry) = (Instant::now(), Retry::new());
        for asked in 0..20 {
            let index = asked % 2;
            pool.led_by(index, Some(1 - index));
            let left = Duration::from_secs(60);
            retry.pause(&pool, &sessions[index], left).await;
        }
        assert!(from.elapsed() > LONGEST_RETRY_PAUSE * 3);
    }
}

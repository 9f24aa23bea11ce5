//! Keeps one connection of a client open: connects, runs it, and connects again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::limits::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::pool::{Link, Naming};
use crate::session::{End, Session};
use crate::setup::{self, Probe, SetupError};
use crate::shared::{Phase, Shared};
use crate::{system, trace};

/// Works until the client is closed.
pub(crate) async fn keep(shared: Arc<Shared>, index: usize) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut closed_on_probe = 0_u32;
    loop {
        let naming = shared.pool.naming();
        let probe = if closed_on_probe < PROBES {
            Probe::Ask
        } else {
            Probe::Assume
        };
        let opened = tokio::select! {
            opened = setup::open(shared.target(index), probe, shared.pool.progress(index)) => opened,
            () = shared.reached(Phase::Closed) => return,
        };
        match opened {
            Ok(opened) => {
                closed_on_probe = 0;
                run(&shared, index, opened, &mut backoff).await;
            }
            Err(error) => {
                closed_on_probe = match error {
                    SetupError::ClosedOnProbe => closed_on_probe + 1,
                    _ => 0,
                };
                let address = &shared.target(index).address;
                shared.counts.connects_failed.add();
                if error.is_fatal() {
                    trace::connect_refused(index, address, &error);
                } else {
                    trace::connect_failed(index, address, &error);
                }
                shared.pool.set(index, Link::Down(Some(Arc::new(error))));
            }
        }
        tokio::select! {
            () = pause(backoff.next(), naming, index) => {}
            () = shared.reached(Phase::Closed) => return,
        }
    }
}

/// Waits before the next attempt. A node that the others say leads is not left alone for longer than
/// after a first failure: everybody waits for it.
async fn pause(pause: Duration, mut naming: Naming, index: usize) {
    let least = pause.min(FIRST_PAUSE);
    sleep(least).await;
    tokio::select! {
        () = sleep(pause - least) => {}
        () = naming.names(index) => {}
    }
}

async fn run(shared: &Arc<Shared>, index: usize, opened: setup::Opened, backoff: &mut Backoff) {
    let address = &shared.target(index).address;
    let (domain, extensions) = (opened.domain, opened.extensions);
    shared.counts.connected.add();
    trace::connected(index, address, domain, extensions);
    let (session, ends) = Session::new(Arc::clone(shared), index, opened);
    shared.pool.set(index, Link::Open(Arc::new(ends)));
    let since = system::now();
    let end = session.run().await;
    shared.pool.set(index, Link::Down(None));
    shared.pool.led_by(index, None);
    // A server that lets in and throws out again is not asked faster than one that is not there.
    if since.elapsed() >= LONGEST_PAUSE {
        backoff.reset();
    }
    if !matches!(end, End::Closed) {
        shared.counts.disconnected.add();
    }
    trace::disconnected(index, address, &end);
}

/// Doubling pauses with jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            next: first,
            longest,
        }
    }

    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        system::jittered(pause)
    }

    fn reset(&mut self) {
        self.next = self.first;
    }
}

/// How often a server must close on the question for its domain, one time after another, until
/// it counts as one that cannot answer it. Once can also be a server that was stopped just then.
const PROBES: u32 = 2;

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::pool::Pool;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_said_to_lead_is_tried_soon_and_others_are_not() {
        let pool = Pool::new(3);
        let paused = async |index, said: &[usize]| {
            let naming = pool.naming();
            for leader in said {
                pool.led_by(0, Some(*leader));
            }
            let from = Instant::now();
            pause(LONGEST_PAUSE, naming, index).await;
            from.elapsed()
        };
        assert_eq!(paused(2, &[]).await, LONGEST_PAUSE);
        assert_eq!(paused(2, &[2]).await, FIRST_PAUSE);
        // That is known already, and was no help.
        assert_eq!(paused(2, &[2]).await, LONGEST_PAUSE);
        assert_eq!(paused(2, &[1]).await, LONGEST_PAUSE);
        assert_eq!(paused(2, &[0, 2]).await, FIRST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_said_during_the_pause_ends_it() {
        let pool = Pool::new(2);
        let from = Instant::now();
        let said = async {
            sleep(Duration::from_secs(1)).await;
            pool.led_by(0, Some(1));
        };
        tokio::join!(pause(LONGEST_PAUSE, pool.naming(), 1), said);
        assert_eq!(from.elapsed(), Duration::from_secs(1));
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_keep_at_least_half() {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for full in [100, 200, 400, 800, 1_600, 3_200, 3_200, 3_200] {
            let pause = backoff.next().as_millis();
            assert!(
                (full / 2..=full).contains(&pause),
                "{pause} ms of {full} ms"
            );
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST_PAUSE);
    }
}

//! Keeps one connection of a client open: connects, runs it, and connects again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::leader::{Panic, caught, told};
use crate::limits::{FIRST_PAUSE, HOP_TIME, LATE_ATTEMPT, LONGEST_PAUSE, MOST_HOPS};
use crate::pool::{Link, Naming};
use crate::session::{End, Session};
use crate::setup::{self, Probe, SetupError};
use crate::shared::{Phase, Shared};
use crate::{system, trace};

/// Works until the client is closed.
pub(crate) async fn keep(shared: Arc<Shared>, index: usize) {
    let mut keeper = Keeper::new(shared, index);
    loop {
        let mut naming = keeper.shared.pool.naming();
        match caught(keeper.once(&mut naming)).await {
            Ok(Next::Pause) => {}
            Ok(Next::Hurry) => continue,
            Ok(Next::Stop) => return,
            // Of a dialer, or of a stream that it gave, before the connection was open.
            Err(panic) => keeper.panicked(panic),
        }
        // A server that lets in and throws out again is not asked faster than one that is not there.
        let naming = keeper.haste.is_left().then_some(naming);
        tokio::select! {
            is_cut = pause(keeper.backoff.next(), naming, index) => {
                if is_cut {
                    keeper.haste.spend();
                }
            }
            () = keeper.shared.reached(Phase::Closed) => return,
        }
    }
}

/// One connection, and what is known from its earlier attempts.
struct Keeper {
    shared: Arc<Shared>,
    index: usize,
    backoff: Backoff,
    closed_on_probe: u32,
    haste: Haste,
    /// Whether a panic was told since the last connection that lasted.
    told: bool,
}

/// What follows an attempt.
enum Next {
    Pause,
    Hurry,
    Stop,
}

impl Keeper {
    fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            closed_on_probe: 0,
            haste: Haste::default(),
            told: false,
        }
    }

    /// Opens the connection and runs it to its end.
    async fn once(&mut self, naming: &mut Naming) -> Next {
        let (shared, index) = (Arc::clone(&self.shared), self.index);
        let probe = if self.closed_on_probe < PROBES {
            Probe::Ask
        } else {
            Probe::Assume
        };
        let may_hurry = self.haste.is_left();
        let opened = tokio::select! {
            opened = setup::open(shared.target(index), probe, shared.pool.progress(index)) => opened,
            // The packets of this attempt may have gone to a machine that was not there yet.
            () = is_late(naming, index), if may_hurry => {
                self.haste.spend();
                return Next::Hurry;
            }
            () = shared.reached(Phase::Closed) => return Next::Stop,
        };
        match opened {
            Ok(opened) => {
                self.closed_on_probe = 0;
                let (lasted, end) = run(&shared, index, opened).await;
                if lasted >= LONGEST_PAUSE {
                    self.backoff.reset();
                    self.haste = Haste::default();
                    self.told = false;
                }
                if let End::Panicked(what) = end {
                    self.tell(&what);
                }
            }
            Err(error) => {
                self.closed_on_probe = match error {
                    SetupError::ClosedOnProbe => self.closed_on_probe + 1,
                    _ => 0,
                };
                self.failed(error);
            }
        }
        Next::Pause
    }

    fn failed(&self, error: SetupError) {
        let (index, address) = (self.index, &self.shared.target(self.index).address);
        self.shared.counts.connects_failed.add();
        if error.is_fatal() {
            trace::connect_refused(index, address, &error);
        } else {
            trace::connect_failed(index, address, &error);
        }
        let link = Link::Down(Some(Arc::new(error)));
        self.shared.pool.set(index, link);
    }

    /// A panic is a connection that failed, and is tried again like any other.
    fn panicked(&mut self, panic: Panic) {
        let what = told(panic);
        self.tell(&what);
        self.closed_on_probe = 0;
        self.shared.pool.led_by(self.index, None);
        self.failed(SetupError::Panicked(what));
    }

    /// Once, and not each time that it is tried again.
    fn tell(&mut self, what: &str) {
        if !std::mem::replace(&mut self.told, true) {
            trace::panicked(self.index, &self.shared.target(self.index).address, what);
        }
    }
}

/// Waits before the next attempt, and says whether for less than the pause. A node that the others say
/// leads is not left alone for longer than after a first failure: everybody waits for it.
async fn pause(pause: Duration, naming: Option<Naming>, index: usize) -> bool {
    let least = pause.min(FIRST_PAUSE);
    sleep(least).await;
    let named = async {
        match naming {
            Some(mut naming) => naming.names(index).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = sleep(pause - least) => false,
        () = named => true,
    }
}

/// Completes when an attempt has not come through for a while, and its node is newly said to lead.
async fn is_late(naming: &mut Naming, index: usize) {
    sleep(LATE_ATTEMPT).await;
    naming.names(index).await;
}

/// Gives how long the connection has lasted, and why it ended.
async fn run(shared: &Arc<Shared>, index: usize, opened: setup::Opened) -> (Duration, End) {
    let address = &shared.target(index).address;
    let (domain, extensions) = (opened.domain, opened.extensions);
    shared.counts.connected.add();
    trace::connected(index, address, domain, extensions);
    let (session, ends) = Session::new(Arc::clone(shared), index, opened);
    shared.pool.set(index, Link::Open(Arc::new(ends)));
    let since = system::now();
    // The stream may also panic when it is dropped.
    let end = caught(session.run()).await;
    let end = end.unwrap_or_else(|panic| End::Panicked(told(panic)));
    shared.pool.set(index, Link::Down(None));
    shared.pool.led_by(index, None);
    let lasted = since.elapsed();
    if !matches!(end, End::Closed) {
        shared.counts.disconnected.add();
    }
    trace::disconnected(index, address, &end);
    (lasted, end)
}

/// How often a node's name may still cut something short: some times in a row, and then once in a while, until
/// a connection has lasted.
#[derive(Debug)]
struct Haste {
    spent: u32,
    /// Until when what was spent has come back.
    since: Instant,
}

impl Default for Haste {
    fn default() -> Self {
        Self {
            spent: 0,
            since: system::now(),
        }
    }
}

impl Haste {
    fn is_left(&mut self) -> bool {
        while self.spent > 0 && self.since.elapsed() >= HOP_TIME {
            self.since += HOP_TIME;
            self.spent -= 1;
        }
        self.spent < MOST_HOPS
    }

    fn spend(&mut self) {
        if self.spent == 0 {
            self.since = system::now();
        }
        self.spent += 1;
    }
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
            let is_cut = pause(LONGEST_PAUSE, Some(naming), index).await;
            assert_eq!(is_cut, from.elapsed() < LONGEST_PAUSE);
            from.elapsed()
        };
        assert_eq!(paused(2, &[]).await, LONGEST_PAUSE);
        assert_eq!(paused(2, &[2]).await, FIRST_PAUSE);
        // That is known already, and was no help.
        assert_eq!(paused(2, &[2]).await, LONGEST_PAUSE);
        assert_eq!(paused(2, &[1]).await, LONGEST_PAUSE);
        assert_eq!(paused(2, &[0, 2]).await, FIRST_PAUSE);
        // One whose name has been of no help too often.
        let from = Instant::now();
        let said = async { pool.led_by(0, Some(1)) };
        tokio::join!(pause(LONGEST_PAUSE, None, 1), said);
        assert_eq!(from.elapsed(), LONGEST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_said_during_the_pause_ends_it() {
        let pool = Pool::new(2);
        let from = Instant::now();
        let said = async {
            sleep(Duration::from_secs(1)).await;
            pool.led_by(0, Some(1));
        };
        tokio::join!(pause(LONGEST_PAUSE, Some(pool.naming()), 1), said);
        assert_eq!(from.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_is_given_up_when_its_node_is_named_and_not_before_its_time() {
        let pool = Pool::new(2);
        for (said_after, late_after) in [(0, 500), (499, 500), (2_000, 2_000)] {
            pool.led_by(0, Some(0));
            let mut naming = pool.naming();
            let from = Instant::now();
            let said = async {
                sleep(Duration::from_millis(said_after)).await;
                pool.led_by(0, Some(1));
            };
            tokio::join!(is_late(&mut naming, 1), said);
            assert_eq!(from.elapsed(), Duration::from_millis(late_after));
        }
    }

    /// Where one node after the other leads and ends, no connection lasts, and names help all the same.
    #[tokio::test(start_paused = true)]
    async fn names_that_come_too_often_are_of_use_now_and_then() {
        let mut haste = Haste::default();
        let mut in_a_row = async |tries: u32, between: Duration| {
            let mut hurried = 0;
            for _ in 0..tries {
                if haste.is_left() {
                    haste.spend();
                    hurried += 1;
                }
                sleep(between).await;
            }
            hurried
        };
        assert_eq!(in_a_row(20, Duration::ZERO).await, MOST_HOPS);
        assert_eq!(in_a_row(100, HOP_TIME / 10).await, 9);
        assert_eq!(in_a_row(50, HOP_TIME).await, 50);
        sleep(HOP_TIME * 100).await;
        assert_eq!(in_a_row(20, Duration::ZERO).await, MOST_HOPS);
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

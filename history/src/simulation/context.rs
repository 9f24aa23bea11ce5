//! What everybody in the simulated world shares: time, chance, the network, and the history.

use std::collections::{BTreeMap, BTreeSet};

use super::faults::Faults;
use super::frame::{Frame, Peer};
use super::mutant::Mutant;
use super::random::Random;
use super::stats::Stats;
use crate::{Answer, CallId, Event, History, Request};

/// Something that will happen.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A node looks at its clock.
    Wake(usize),
    /// A frame arrives.
    Frame(Frame),
    /// A request of a client arrives at a node.
    Request {
        connection: u64,
        call: CallId,
        request: Request,
    },
    /// A node notices that a connection is gone.
    Hangup(u64),
    /// An answer arrives at a client; with the leader's slot, if the node knows it.
    Reply {
        connection: u64,
        call: CallId,
        answer: Answer,
        leader: Option<usize>,
    },
    /// A client goes on, unless it did so for another reason.
    Client { client: usize, turn: u64 },
    /// A client does not want to wait any more.
    Withdraw { client: usize, call: CallId },
    /// A client loses a connection.
    Cut { client: usize, connection: u64 },
    /// A client waited long enough for an answer.
    GiveUp { client: usize, call: CallId },
    /// The database executes a commit.
    Commit { call: CallId },
    /// The database answers a client.
    Committed {
        client: usize,
        call: CallId,
        answer: Answer,
    },
    /// A dead node starts again.
    Start(usize),
    /// A node dies, and starts again after a while.
    Crash { slot: usize, span: u64 },
    /// A node is cut off from all others for a while.
    Isolate { slot: usize, span: u64 },
    /// A cut between nodes ends.
    Mend(Vec<(usize, usize)>),
    /// The dice of the faults.
    Trouble,
    /// The end of the faults.
    Heal,
}

pub(crate) struct Context {
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) history: History,
    pub(crate) stats: Stats,
    pub(crate) clocks: Vec<Clock>,
    /// Directions between nodes in which nothing goes through.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// The client and the node of each connection.
    pub(crate) connections: BTreeMap<u64, (usize, usize)>,
    /// The term of each place in the log that was applied somewhere.
    pub(crate) positions: BTreeMap<u64, u64>,
    /// The place and the term of proposals whose leader lost its office.
    pub(crate) orphans: BTreeSet<(u64, u64)>,
    mutant: Option<Mutant>,
    queue: BTreeMap<(u64, u64), Action>,
    actions: u64,
    calls: u64,
}

impl Context {
    pub(crate) fn new(mut random: Random, nodes: usize, mutant: Option<Mutant>) -> Self {
        let faults = Faults::drawn(&mut random);
        let clocks = (0..nodes).map(|_| Clock::drawn(&mut random, faults.clock_skew_ppm));
        Self {
            now: 0,
            clocks: clocks.collect(),
            random,
            faults,
            history: History::default(),
            stats: Stats::default(),
            cuts: BTreeSet::new(),
            connections: BTreeMap::new(),
            positions: BTreeMap::new(),
            orphans: BTreeSet::new(),
            mutant,
            queue: BTreeMap::new(),
            actions: 0,
            calls: 0,
        }
    }

    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.mutant.is_none()
    }

    pub(crate) fn record(&mut self, event: Event) {
        self.history.push(self.now, event);
    }

    pub(crate) fn later(&mut self, delay: u64, action: Action) {
        self.actions += 1;
        self.queue.insert((self.now + delay, self.actions), action);
    }

    /// The next thing that happens; time goes on to its moment.
    pub(crate) fn next(&mut self) -> Option<Action> {
        let ((at, _), action) = self.queue.pop_first()?;
        self.now = at;
        Some(action)
    }

    pub(crate) fn new_call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    pub(crate) fn connect(&mut self, client: usize, node: usize) -> u64 {
        let connection = self.connections.len() as u64 + 1;
        self.connections.insert(connection, (client, node));
        connection
    }

    /// How long something takes on the way.
    pub(crate) fn latency(&mut self) -> u64 {
        self.random.between(200, 4_000)
    }

    /// Hands a frame to the network, which may lose, double or keep it for a while.
    pub(crate) fn send(&mut self, frame: Frame) {
        let Frame { from, to, .. } = frame;
        if self.cuts.contains(&(from.slot, to.slot)) || self.random.happens(self.faults.lost_frames)
        {
            self.stats.lost_frames += 1;
            return;
        }
        if self.random.happens(self.faults.doubled_frames) {
            self.stats.doubled_frames += 1;
            let delay = self.frame_delay();
            self.later(delay, Action::Frame(frame.clone()));
        }
        let delay = self.frame_delay();
        self.later(delay, Action::Frame(frame));
    }

    fn frame_delay(&mut self) -> u64 {
        if self.random.happens(self.faults.slow_frames) {
            self.random.between(5_000, 1_000_000)
        } else {
            self.latency()
        }
    }

    pub(crate) fn clock(&self, peer: Peer) -> u64 {
        self.clocks[peer.slot].read(self.now)
    }
}

/// The monotonic clock of one machine, which has its own origin and speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    ahead: i64,
    rate_ppm: i64,
}

impl Clock {
    fn drawn(random: &mut Random, skew_ppm: u64) -> Self {
        let ahead = random.below(20_000_000) as i64;
        let rate_ppm = random.between(0, 2 * skew_ppm) as i64 - skew_ppm as i64;
        Self { ahead, rate_ppm }
    }

    fn read(self, now: u64) -> u64 {
        let run = now as i64 / 1_000 * (1_000_000 + self.rate_ppm) / 1_000;
        (run + self.ahead).max(0) as u64
    }

    pub(crate) fn jump(&mut self, micros: i64) {
        self.ahead += micros;
    }
}

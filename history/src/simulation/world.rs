//! The world: who is in it, and what happens to them.

use super::NAMES;
use super::client::Client;
use super::context::{Action, Context};
use super::database::Database;
use super::frame::{Frame, Peer};
use super::mutant::Mutant;
use super::node::{Disk, Node, Role};
use super::random::Random;
use super::stats::Stats;
use crate::{Answer, CallId, Event, History, Request};

/// The place of a process, which outlives it.
enum Seat {
    Running(Box<Node>),
    /// The disk is there in durable mode.
    Down(Option<Disk>),
}

pub(crate) struct World {
    context: Context,
    seats: Vec<Seat>,
    /// Which process of its slot runs, or ran last.
    generations: Vec<u64>,
    clients: Vec<Client>,
    database: Database,
    pub(crate) is_durable: bool,
    is_healed: bool,
    until: u64,
}

const SECOND: u64 = 1_000_000;
const WAKE: u64 = 20_000;
const TROUBLE: u64 = 250_000;
const FAULTY: u64 = 15 * SECOND;
/// Longer than everything a client may wait for after healing.
const CONVALESCENCE: u64 = 60 * SECOND;
const CLIENTS: usize = 6;

impl World {
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = Random::new(seed);
        let nodes = if random.happens(700) { 3 } else { 5 };
        let is_durable = random.happens(500);
        let mut context = Context::new(random, nodes, mutant);
        context.record(Event::AllDecisions);
        let fresh = |slot| Box::new(Node::fresh(&mut context, slot, 1, nodes));
        let seats = (0..nodes).map(fresh).map(Seat::Running).collect();
        let mut clients: Vec<Client> = (0..CLIENTS).map(|n| Client::new(n, nodes)).collect();
        for client in &mut clients {
            client.sleep(&mut context, SECOND);
        }
        for slot in 0..nodes {
            let delay = context.random.below(WAKE);
            context.later(delay, Action::Wake(slot));
        }
        context.later(SECOND, Action::Trouble);
        context.later(FAULTY, Action::Heal);
        Self {
            context,
            seats,
            generations: vec![1; nodes],
            clients,
            database: Database::default(),
            is_durable,
            is_healed: false,
            until: FAULTY + CONVALESCENCE,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.seats.len()
    }

    /// Until every client has what it wants, or has waited for too long.
    pub(crate) fn run(&mut self) {
        while let Some(action) = self.context.next() {
            if self.context.now > self.until {
                return;
            }
            self.act(action);
            if self.is_healed && self.clients.iter().all(Client::is_done) {
                return;
            }
        }
    }

    pub(crate) fn finish(mut self) -> (History, Stats) {
        self.database.dump(&mut self.context);
        (self.context.history, self.context.stats)
    }

    fn act(&mut self, action: Action) {
        let context = &mut self.context;
        match action {
            Action::Wake(slot) => {
                context.later(WAKE, Action::Wake(slot));
                if let Some(node) = self.awake(slot) {
                    node.0.wake(node.1);
                }
            }
            Action::Frame(frame) => self.deliver(frame),
            Action::Request {
                connection,
                call,
                request,
            } => self.request(connection, call, request),
            Action::Hangup(connection) => self.hang_up(connection),
            Action::Reply {
                connection,
                call,
                answer,
                leader,
            } => {
                if let Some((client, _)) = context.connections.get(&connection) {
                    self.clients[*client].answer(context, call, answer, leader);
                }
            }
            Action::Client { client, turn } => self.clients[client].wake(context, turn),
            Action::Withdraw { client, call } => self.clients[client].withdraw(context, call),
            Action::Cut { client, connection } => self.clients[client].lose(context, connection),
            Action::GiveUp { client, call } => self.clients[client].give_up(context, call),
            Action::Commit { call } => self.commit(call),
            Action::Committed {
                client,
                call,
                answer,
            } => self.clients[client].answer(context, call, answer, None),
            Action::Start(slot) => self.start(slot),
            Action::Crash { slot, span } => self.crash(slot, span),
            Action::Isolate { slot, span } => self.isolate(slot, span),
            Action::Mend(cuts) => {
                for cut in cuts {
                    self.context.cuts.remove(&cut);
                }
            }
            Action::Trouble => self.trouble(),
            Action::Heal => self.heal(),
        }
    }

    /// A node that runs and is not stopped, and its surroundings.
    fn awake(&mut self, slot: usize) -> Option<(&mut Node, &mut Context)> {
        match &mut self.seats[slot] {
            Seat::Running(node) if node.paused <= self.context.now => {
                Some((node, &mut self.context))
            }
            _ => None,
        }
    }

    /// How long until a stopped node goes on.
    fn paused(&self, slot: usize) -> Option<u64> {
        match &self.seats[slot] {
            Seat::Running(node) => node.paused.checked_sub(self.context.now),
            Seat::Down(_) => None,
        }
    }

    fn deliver(&mut self, frame: Frame) {
        let slot = frame.to.slot;
        if let Some((node, context)) = self.awake(slot) {
            node.receive(context, frame);
        } else if let Some(rest) = self.paused(slot) {
            self.context.later(rest, Action::Frame(frame));
        }
    }

    fn request(&mut self, connection: u64, call: CallId, request: Request) {
        let (client, slot) = self.context.connections[&connection];
        if let Some((node, context)) = self.awake(slot) {
            node.request(context, connection, call, &request);
        } else if let Some(rest) = self.paused(slot) {
            let again = Action::Request {
                connection,
                call,
                request,
            };
            self.context.later(rest, again);
        } else {
            // Nobody listens there.
            self.clients[client].lose(&mut self.context, connection);
        }
    }

    fn hang_up(&mut self, connection: u64) {
        let (_, slot) = self.context.connections[&connection];
        if let Some((node, context)) = self.awake(slot) {
            node.hang_up(context, connection);
        } else if let Some(rest) = self.paused(slot) {
            self.context.later(rest, Action::Hangup(connection));
        }
    }

    fn commit(&mut self, call: CallId) {
        let history = self.context.history.entries().iter().rev();
        let offered = history
            .filter_map(|entry| match &entry.event {
                Event::Called {
                    call: made,
                    request: Request::Write { key, token },
                    ..
                } if *made == call => Some((key.clone(), *token)),
                _ => None,
            })
            .next();
        let (key, token) = offered.expect("every commit was offered");
        let context = &mut self.context;
        let answer = self.database.commit(context, &key, token, call);
        let client = self.clients.iter().position(|client| client.is_open(call));
        match client {
            Some(client) => {
                let delay = context.latency();
                let committed = Action::Committed {
                    client,
                    call,
                    answer,
                };
                context.later(delay, committed);
            }
            None if context.has(Mutant::WriteDoubled) && answer == Answer::Committed => {
                self.database.repeat(call);
            }
            None => {}
        }
    }

    fn trouble(&mut self) {
        if self.is_healed {
            return;
        }
        self.context.later(TROUBLE, Action::Trouble);
        let faults = self.context.faults.clone();
        let nodes = self.seats.len();
        let slot = self.context.random.index(nodes);
        let span = self.context.random.between(50_000, 2 * SECOND);
        if self.context.random.happens(faults.crashes) {
            self.crash(slot, span);
        }
        if self.context.random.happens(faults.pauses)
            && let Seat::Running(node) = &mut self.seats[slot]
        {
            self.context.stats.pauses += 1;
            node.paused = self.context.now + span * 3 / 2;
        }
        // Faults that hit the leader are the ones that matter.
        let slot = self
            .leader()
            .filter(|_| span.is_multiple_of(2))
            .unwrap_or(slot);
        let other = self.context.random.index(nodes);
        if self.context.random.happens(faults.partitions) {
            self.isolate(slot, span);
        }
        if self.context.random.happens(faults.worst_moments) {
            self.worst_moment();
        }
        if self.context.random.happens(faults.one_way_cuts) && slot != other {
            self.cut(vec![(slot, other)], span);
        }
        if self.context.random.happens(faults.clock_jumps) {
            self.context.stats.clock_jumps += 1;
            let micros = self.context.random.between(100_000, 5 * SECOND);
            let ahead = self.context.random.happens(500);
            let sign = if ahead { 1 } else { -1 };
            self.context.clocks[slot].jump(sign * micros as i64);
            if ahead {
                self.context.record(Event::ClockJumped { micros });
            }
        }
        let client = self.context.random.index(CLIENTS);
        if self.context.random.happens(faults.lost_connections)
            && let Some(connection) = self.clients[client].any_connection()
        {
            self.clients[client].lose(&mut self.context, connection);
        }
    }

    fn worst_moment(&mut self) {
        let nodes = self.seats.len();
        let Some(leader) = self.leader() else { return };
        let behind = (leader + 1 + self.context.random.index(nodes - 1)) % nodes;
        let dies = (0..nodes).find(|slot| *slot != leader && *slot != behind);
        let Some(dies) = dies.filter(|_| self.may_crash()) else {
            return;
        };
        self.context.stats.worst_moments += 1;
        self.isolate(behind, 420_000);
        let (slot, span) = (dies, 100_000);
        self.context.later(300_000, Action::Crash { slot, span });
        let (slot, span) = (leader, SECOND);
        self.context.later(401_000, Action::Isolate { slot, span });
    }

    fn isolate(&mut self, slot: usize, span: u64) {
        if self.is_healed {
            return;
        }
        let others = (0..self.seats.len()).filter(|other| *other != slot);
        let cuts = others.flat_map(|other| [(slot, other), (other, slot)]);
        self.cut(cuts.collect(), span);
    }

    fn leader(&self) -> Option<usize> {
        self.seats.iter().position(
            |seat| matches!(seat, Seat::Running(node) if matches!(node.role, Role::Leader(_))),
        )
    }

    fn cut(&mut self, cuts: Vec<(usize, usize)>, span: u64) {
        self.context.stats.cuts += 1;
        self.context.cuts.extend(cuts.iter().copied());
        self.context.later(span, Action::Mend(cuts));
    }

    /// Whether one more may die. Without disks only one at a time, and the next one only when all
    /// know that the log has made its successor a voter: before that the dead one still counts for
    /// a majority, and with a second dead one there may be none.
    fn may_crash(&self) -> bool {
        let is_settled = |seat: &Seat| match seat {
            Seat::Running(node) => node.has_settled_voters(&self.generations),
            Seat::Down(_) => false,
        };
        self.is_durable || self.seats.iter().all(is_settled)
    }

    fn crash(&mut self, slot: usize, span: u64) {
        if self.is_healed || !self.may_crash() {
            return;
        }
        let seat = std::mem::replace(&mut self.seats[slot], Seat::Down(None));
        let Seat::Running(node) = seat else {
            self.seats[slot] = seat;
            return;
        };
        self.context.stats.crashes += 1;
        self.context.later(span, Action::Start(slot));
        if self.is_durable {
            self.seats[slot] = Seat::Down(Some(node.disk()));
        }
        for client in &mut self.clients {
            if let Some(connection) = client.connection_to(slot) {
                client.lose(&mut self.context, connection);
            }
        }
    }

    fn start(&mut self, slot: usize) {
        let nodes = self.seats.len();
        let context = &mut self.context;
        let Seat::Down(disk) = &mut self.seats[slot] else {
            return;
        };
        let node = match disk.take() {
            Some(disk) => {
                context.stats.restarts += 1;
                let generation = self.generations[slot];
                Node::restart(context, Peer { slot, generation }, disk)
            }
            None => {
                context.stats.replacements += 1;
                self.generations[slot] += 1;
                Node::fresh(context, slot, self.generations[slot], nodes)
            }
        };
        self.seats[slot] = Seat::Running(Box::new(node));
    }

    fn heal(&mut self) {
        self.is_healed = true;
        self.context.faults = self.context.faults.healed();
        self.context.cuts.clear();
        for slot in 0..self.seats.len() {
            self.start(slot);
            if let Seat::Running(node) = &mut self.seats[slot] {
                node.paused = node.paused.min(self.context.now);
            }
        }
        self.context.record(Event::Healed);
        for (number, client) in self.clients.iter_mut().enumerate() {
            let names = 0..NAMES.len();
            client.close(names.filter(|name| name % CLIENTS == number).collect());
        }
    }
}

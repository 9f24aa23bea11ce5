//! A client: takes locks, works under them, sleeps too long, loses connections, asks again.
//!
//! It keeps the rules of the product's client: what may have been sent and got no answer is unknown
//! and never sent again as the same call; only "not taken" is.

use std::collections::BTreeMap;

use super::NAMES;
use super::context::{Action, Context};
use crate::{Answer, CallId, Event, Request};

#[derive(Clone, Debug)]
pub(crate) struct Client {
    number: usize,
    /// The node it takes for the leader.
    leader: usize,
    nodes: usize,
    connections: BTreeMap<usize, u64>,
    /// What has no answer yet; the connection of each, or none to the database.
    open: BTreeMap<CallId, (Option<u64>, Request)>,
    job: Job,
    turn: u64,
    /// After healing: the names it still has to get.
    probes: Vec<usize>,
    pub(crate) is_closing: bool,
}

#[derive(Clone, Debug)]
enum Job {
    Idle,
    Acquiring { plan: Plan, until: u64 },
    Holding { lock: Lock, steps: u64 },
    Releasing { lock: Lock, hold: u64, until: u64 },
    Done,
}

#[derive(Clone, Debug)]
struct Plan {
    keys: Vec<String>,
    slots: Option<u32>,
    lease: u64,
    is_probe: bool,
}

#[derive(Clone, Debug)]
struct Lock {
    plan: Plan,
    slot: Option<u32>,
    token: u64,
    valid_before: u64,
}

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;

impl Client {
    pub(crate) fn new(number: usize, nodes: usize) -> Self {
        Self {
            number,
            leader: number % nodes,
            nodes,
            connections: BTreeMap::new(),
            open: BTreeMap::new(),
            job: Job::Idle,
            turn: 0,
            probes: Vec::new(),
            is_closing: false,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.job, Job::Done) && self.open.is_empty()
    }

    /// No new work any more, but each of these names has to be granted once.
    pub(crate) fn close(&mut self, probes: Vec<usize>) {
        self.is_closing = true;
        self.probes = probes;
    }

    /// Goes on after a while.
    pub(crate) fn sleep(&mut self, context: &mut Context, delay: u64) {
        self.turn += 1;
        let wake = Action::Client {
            client: self.number,
            turn: self.turn,
        };
        context.later(delay, wake);
    }

    fn call(&mut self, context: &mut Context, request: Request, patience: u64) -> CallId {
        let call = context.new_call();
        let node = self.leader;
        let client = self.number;
        let known = self.connections.get(&node).copied();
        let connection = known.unwrap_or_else(|| context.connect(client, node));
        self.connections.insert(node, connection);
        self.open.insert(call, (Some(connection), request.clone()));
        context.record(Event::Called {
            call,
            connection,
            request: request.clone(),
        });
        // One connection keeps the order.
        let arrives = Action::Request {
            connection,
            call,
            request,
        };
        context.later(1_000, arrives);
        context.later(patience, Action::GiveUp { client, call });
        call
    }

    pub(crate) fn wake(&mut self, context: &mut Context, turn: u64) {
        if turn != self.turn {
            return;
        }
        match self.job.clone() {
            Job::Idle => self.plan(context),
            Job::Acquiring { plan, until } => self.acquire(context, plan, until),
            Job::Holding { lock, steps } => self.work(context, lock, steps),
            Job::Releasing { lock, hold, until } => self.release(context, lock, hold, until),
            Job::Done => {}
        }
    }

    fn plan(&mut self, context: &mut Context) {
        let random = &mut context.random;
        let mut plan = Plan {
            keys: Vec::new(),
            slots: None,
            lease: random.between(100, 4_000) * MILLI,
            is_probe: false,
        };
        let mut wait = match random.below(4) {
            0 => 0,
            _ => random.between(50, 3_000) * MILLI,
        };
        let mut name = random.index(NAMES.len());
        if self.is_closing {
            let Some(probe) = self.probes.last() else {
                self.job = Job::Done;
                return;
            };
            name = *probe;
            plan.is_probe = true;
            plan.lease = SECOND;
            wait = 20 * SECOND;
        }
        let (name, slots) = NAMES[name];
        plan.keys.push(name.to_owned());
        plan.slots = slots;
        if slots.is_none() && !plan.is_probe && random.happens(250) {
            let (other, slots) = NAMES[random.index(NAMES.len())];
            if slots.is_none() && other != name {
                plan.keys.push(other.to_owned());
                plan.keys.sort();
            }
        }
        let until = context.now + wait;
        self.acquire(context, plan, until);
    }

    fn acquire(&mut self, context: &mut Context, plan: Plan, until: u64) {
        let wait = until.saturating_sub(context.now);
        let request = Request::Acquire {
            keys: plan.keys.clone(),
            slots: plan.slots,
            wait,
            lease: plan.lease,
        };
        let call = self.call(context, request, wait + 2 * SECOND);
        if context.random.happens(context.faults.lost_connections / 4) {
            // While it waits, or while its grant is on the way.
            let (connection, client) = (self.connections[&self.leader], self.number);
            let delay = context.random.between(0, 10_000);
            context.later(delay, Action::Cut { client, connection });
        }
        if !plan.is_probe && context.random.happens(80) {
            let (client, delay) = (self.number, context.random.between(0, wait / 2));
            context.later(delay, Action::Withdraw { client, call });
        }
        self.job = Job::Acquiring { plan, until };
    }

    pub(crate) fn withdraw(&mut self, context: &mut Context, other: CallId) {
        // Over the connection of the acquire, whoever leads now.
        let over = self
            .open
            .get(&other)
            .and_then(|(connection, _)| *connection);
        let known = self.connections.get(&self.leader).copied();
        if over.is_some() && over == known {
            self.call(context, Request::Cancel { other }, 2 * SECOND);
        }
    }

    fn work(&mut self, context: &mut Context, mut lock: Lock, steps: u64) {
        if steps == 0 || lock.plan.is_probe {
            let hold = match context.random.below(6) {
                0 if !lock.plan.is_probe => context.random.between(100, 1_500) * MILLI,
                _ => 0,
            };
            if context.random.happens(60) && !lock.plan.is_probe {
                // The program forgets it: the lease has to end it.
                self.rest(context);
                return;
            }
            let until = context.now + 5 * SECOND;
            self.release(context, lock, hold, until);
            return;
        }
        if context.random.happens(context.faults.sleepers) {
            let late = lock.valid_before.saturating_sub(context.now);
            let late = late + context.random.between(0, SECOND);
            self.job = Job::Holding { lock, steps };
            self.sleep(context, late);
            return;
        }
        match context.random.below(5) {
            0 | 1 => {
                let lease = context.random.between(50, 4_000) * MILLI;
                let request = Request::Extend {
                    keys: lock.plan.keys.clone(),
                    token: lock.token,
                    lease,
                };
                self.call(context, request, 2 * SECOND);
            }
            2 if context.random.happens(context.faults.force_releases) => {
                let key = lock.plan.keys[0].clone();
                self.call(context, Request::ForceRelease { key }, 2 * SECOND);
            }
            _ => self.write(context, &mut lock),
        }
        let steps = steps - 1;
        self.job = Job::Holding { lock, steps };
    }

    fn write(&mut self, context: &mut Context, lock: &mut Lock) {
        let name = context.random.index(lock.plan.keys.len());
        let name = &lock.plan.keys[name];
        let key = match lock.slot {
            Some(slot) => format!("{name}#{slot}"),
            None => name.clone(),
        };
        let token = lock.token;
        let request = Request::Write { key, token };
        let call = context.new_call();
        self.open.insert(call, (None, request.clone()));
        context.record(Event::Called {
            call,
            connection: 0,
            request,
        });
        let client = self.number;
        let is_lost = context.random.happens(context.faults.lost_commits);
        let delay = match is_lost {
            true => context.random.between(500, 3 * SECOND),
            false => context.latency(),
        };
        // A lost commit may arrive before the client gives up, after it, or never.
        if !is_lost || context.random.happens(700) {
            context.later(delay, Action::Commit { call });
        }
        if is_lost {
            context.stats.unknown_commits += 1;
            let answer = Answer::Unknown;
            let delay = context.random.between(1_000, SECOND);
            let lost = Action::Committed {
                client,
                call,
                answer,
            };
            context.later(delay, lost);
        }
    }

    fn release(&mut self, context: &mut Context, lock: Lock, hold: u64, until: u64) {
        let request = Request::Release {
            keys: lock.plan.keys.clone(),
            token: lock.token,
            hold,
        };
        self.call(context, request, 2 * SECOND);
        self.job = Job::Releasing { lock, hold, until };
    }

    fn rest(&mut self, context: &mut Context) {
        self.job = Job::Idle;
        let delay = context.random.between(1, 100) * MILLI;
        self.sleep(context, delay);
    }

    fn again(&mut self, context: &mut Context) {
        let delay = context.random.between(20, 120) * MILLI;
        self.sleep(context, delay);
    }

    /// An answer arrives. One that nobody waits for any more is not noticed.
    pub(crate) fn answer(
        &mut self,
        context: &mut Context,
        call: CallId,
        answer: Answer,
        leader: Option<usize>,
    ) {
        let Some((_, request)) = self.open.remove(&call) else {
            return;
        };
        context.record(Event::Answered { call, answer });
        if matches!(answer, Answer::NotTaken | Answer::Unknown) {
            let next = context.random.index(self.nodes);
            self.leader = leader.unwrap_or(next);
        }
        self.go_on(context, call, &request, answer);
    }

    fn go_on(&mut self, context: &mut Context, call: CallId, request: &Request, answer: Answer) {
        match (request, self.job.clone()) {
            (Request::Acquire { .. }, Job::Acquiring { plan, until }) => {
                self.acquired(context, plan, until, answer);
            }
            (Request::Extend { lease, .. }, Job::Holding { mut lock, steps }) => {
                match answer {
                    // Counted from now it may be too long, but a sleeper only sleeps longer.
                    Answer::Extended => lock.valid_before = context.now + lease,
                    Answer::NotHeld => return self.rest(context),
                    _ => {}
                }
                self.job = Job::Holding { lock, steps };
                self.again(context);
            }
            (Request::Write { .. } | Request::ForceRelease { .. }, Job::Holding { .. }) => {
                self.again(context);
            }
            (Request::Release { .. }, Job::Releasing { lock, until, .. }) => match answer {
                Answer::Released | Answer::NotHeld => {
                    if lock.plan.is_probe {
                        self.probes.pop();
                    } else if context.random.happens(100) {
                        // Another part of the program has not heard of the release.
                        let request = Request::Extend {
                            keys: lock.plan.keys,
                            token: lock.token,
                            lease: SECOND,
                        };
                        self.call(context, request, 2 * SECOND);
                    }
                    self.rest(context);
                }
                _ if context.now < until => self.again(context),
                _ => self.rest(context),
            },
            _ => {
                let _ = call;
            }
        }
    }

    fn acquired(&mut self, context: &mut Context, plan: Plan, until: u64, answer: Answer) {
        match answer {
            Answer::Granted { token, slot, .. } => {
                let valid_before = context.now + plan.lease;
                let lock = Lock {
                    plan,
                    slot,
                    token,
                    valid_before,
                };
                let steps = context.random.below(5);
                self.job = Job::Holding { lock, steps };
                self.again(context);
            }
            Answer::NotTaken if context.now < until => self.again(context),
            _ => self.rest(context),
        }
    }

    /// Its patience with a call is at an end: it closes the connection with all that is open on it.
    pub(crate) fn give_up(&mut self, context: &mut Context, call: CallId) {
        let connection = self.open.get(&call).and_then(|(connection, _)| *connection);
        if let Some(connection) = connection {
            self.lose(context, connection);
        }
    }

    /// A connection is gone: whatever was sent over it and has no answer is unknown.
    pub(crate) fn lose(&mut self, context: &mut Context, connection: u64) {
        let known = self.connections.len();
        self.connections.retain(|_, number| *number != connection);
        if self.connections.len() == known {
            return;
        }
        context.stats.lost_connections += 1;
        context.record(Event::ConnectionEnded { connection });
        let delay = context.latency();
        context.later(delay, Action::Hangup(connection));
        let open = self.open.iter();
        let lost = open.filter(|(_, (over, _))| *over == Some(connection));
        let lost: Vec<CallId> = lost.map(|(call, _)| *call).collect();
        for call in lost {
            self.answer(context, call, Answer::Unknown, None);
        }
    }

    /// One of its connections, if it has any.
    pub(crate) fn any_connection(&self) -> Option<u64> {
        self.connections.values().next().copied()
    }

    pub(crate) fn connection_to(&self, node: usize) -> Option<u64> {
        self.connections.get(&node).copied()
    }

    /// The write that a commit is about.
    pub(crate) fn is_open(&self, call: CallId) -> bool {
        self.open.contains_key(&call)
    }
}

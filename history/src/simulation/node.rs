//! One node: a toy of a replicated log. Here are its processes and elections; how entries spread
//! and are decided, and who may vote, stands in [`replication`](super::replication).
//!
//! Good enough to lose, truncate, double and delay what a consensus engine may, and small enough to
//! be seen through: one frame per message, no batching, the whole state of a process in one value.
//! What it does with requests of clients stands in [`shell`](super::shell).

use std::collections::{BTreeMap, BTreeSet};

use highwater_lock::{Command, Epoch, Operation, Timestamp};

use super::context::Context;
use super::frame::{Frame, Message, Peer};
use super::log::{Body, Log, LogEntry, Snapshot, Voters};
use super::mutant::Mutant;
use super::replica::Replica;
use super::shell::Desk;
use crate::Event;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) peer: Peer,
    pub(crate) term: u64,
    voted: Option<Peer>,
    pub(crate) log: Log,
    pub(crate) committed: u64,
    pub(crate) replica: Replica,
    pub(crate) role: Role,
    pub(crate) leader: Option<Peer>,
    pub(crate) desk: Desk,
    /// When it heard of a leader, and how long it waits for one.
    heard: u64,
    patience: u64,
    /// Its last time in office: epoch, stamp and clock at the beginning.
    pub(crate) reigned: Option<(u64, Timestamp, u64)>,
    /// Until when the process is stopped.
    pub(crate) paused: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Role {
    Follower,
    Candidate(BTreeSet<Peer>),
    Leader(Reign),
}

#[derive(Clone, Debug)]
pub(crate) struct Reign {
    pub(super) peers: BTreeMap<Peer, Progress>,
    /// The first entry of this reign. Nobody is served before it is applied.
    pub(crate) ready: u64,
    /// The last tick; in flight until it is applied.
    pub(crate) tick: u64,
    pub(super) beat: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) next: u64,
    pub(super) matched: u64,
    pub(super) heard: u64,
}

/// What of a node outlives its process.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    term: u64,
    voted: Option<Peer>,
    log: Log,
}

impl Node {
    /// A process without memory. `generation` 1 is a founder, later ones have to join.
    pub(crate) fn fresh(context: &mut Context, slot: usize, generation: u64, nodes: usize) -> Self {
        // Everybody knows the founders; a later process is none of the voters yet.
        let founders: Voters = vec![1; nodes];
        let replica = Replica::new();
        let base = Snapshot {
            index: 0,
            term: 0,
            voters: founders,
            machine: replica.machine.snapshot(),
        };
        let disk = Disk {
            term: 0,
            voted: None,
            log: Log::new(base),
        };
        Self::with(context, Peer { slot, generation }, disk, replica)
    }

    /// The process that was here before, with what was on its disk.
    pub(crate) fn restart(context: &mut Context, peer: Peer, disk: Disk) -> Self {
        let base = &disk.log.base;
        let replica = Replica::restore(context, &base.machine, base.index);
        Self::with(context, peer, disk, replica)
    }

    fn with(context: &mut Context, peer: Peer, disk: Disk, replica: Replica) -> Self {
        Self {
            peer,
            term: disk.term,
            voted: disk.voted,
            committed: disk.log.base.index,
            log: disk.log,
            replica,
            role: Role::Follower,
            leader: None,
            desk: Desk::default(),
            heard: context.now,
            patience: context.random.between(150_000, 400_000),
            reigned: None,
            paused: 0,
        }
    }

    /// What is left when the process dies.
    pub(crate) fn disk(self) -> Disk {
        Disk {
            term: self.term,
            voted: self.voted,
            log: self.log,
        }
    }

    pub(super) fn frame(&self, to: Peer, body: Message) -> Frame {
        Frame {
            from: self.peer,
            to,
            term: self.term,
            body,
        }
    }

    /// Looks at the clock: elections, heartbeats, ticks, and what waits too long.
    pub(crate) fn wake(&mut self, context: &mut Context) {
        if context.has(Mutant::LocalExpiry) {
            self.expire_alone(context);
        }
        match &self.role {
            Role::Leader(_) => {
                if !self.hears_quorum(context) {
                    self.step_down(context, self.term);
                    return;
                }
                self.beat(context);
                self.look_after_clients(context);
            }
            _ if context.now - self.heard > self.patience => self.stand(context),
            _ => self.pass_on_late(context),
        }
    }

    pub(super) fn voters(&self) -> &Voters {
        self.log.voters_at(self.log.last())
    }

    /// Whether it knows that these are decided to be the voters, and of no change to come.
    pub(crate) fn has_settled_voters(&self, generations: &[u64]) -> bool {
        let mut electorates = self.log.electorates(self.committed);
        electorates.all(|voters| voters == generations)
    }

    fn is_voter(&self) -> bool {
        self.voters().get(self.peer.slot) == Some(&self.peer.generation)
    }

    /// Whether these are a majority wherever one is needed.
    pub(super) fn is_quorum(&self, context: &Context, has: impl Fn(Peer) -> bool) -> bool {
        let mut electorates = self.log.electorates(self.committed);
        electorates.all(|voters| {
            let with = voters.iter().enumerate().filter(|(slot, generation)| {
                let peer = |generation| Peer {
                    slot: *slot,
                    generation,
                };
                match context.has(Mutant::DeadGenerationAccepted) {
                    true => (1..20).any(|generation| has(peer(generation))),
                    false => has(peer(**generation)),
                }
            });
            with.count() * 2 > voters.len()
        })
    }

    /// Asks for office, or to be let in again.
    fn stand(&mut self, context: &mut Context) {
        self.heard = context.now;
        self.patience = context.random.between(150_000, 400_000);
        let slots = self.voters().len();
        if !self.is_voter() {
            for slot in (0..slots).filter(|slot| *slot != self.peer.slot) {
                let everybody = Peer {
                    slot,
                    generation: 0,
                };
                context.send(self.frame(everybody, Message::Join));
            }
            return;
        }
        self.term += 1;
        self.voted = Some(self.peer);
        self.leader = None;
        self.role = Role::Candidate(BTreeSet::from([self.peer]));
        let voters = self.voters().clone();
        for (slot, generation) in voters.into_iter().enumerate() {
            if slot != self.peer.slot {
                let last = self.log.last();
                let last_term = self.log.last_term();
                let ask = Message::AskVote { last, last_term };
                context.send(self.frame(Peer { slot, generation }, ask));
            }
        }
    }

    pub(crate) fn step_down(&mut self, context: &mut Context, term: u64) {
        if term > self.term {
            self.term = term;
            self.voted = None;
        }
        if matches!(self.role, Role::Leader(_)) {
            context.stats.depositions += 1;
            self.lose_office(context);
            // A candidate that cannot win must not keep the others from standing, so only this one
            // waits anew.
            self.heard = context.now;
        }
        self.role = Role::Follower;
        self.leader = None;
    }

    /// Takes a frame in. One for another process of this slot never gets to the log.
    pub(crate) fn receive(&mut self, context: &mut Context, frame: Frame) {
        let is_mine = frame.to == self.peer || matches!(frame.body, Message::Join);
        if !is_mine && !context.has(Mutant::DeadGenerationAccepted) {
            context.stats.refused_frames += 1;
            return;
        }
        if matches!(frame.body, Message::Join) {
            self.let_in(frame.from);
            return;
        }
        if frame.term > self.term {
            self.step_down(context, frame.term);
        }
        let from = frame.from;
        match frame.body {
            Message::AskVote { last, last_term } => {
                self.vote(context, from, frame.term, (last_term, last));
            }
            Message::Vote { granted } => {
                if granted && frame.term == self.term {
                    self.count_vote(context, from);
                }
            }
            Message::Late(commands) => self.take_late(context, commands),
            Message::Appended(result) => {
                if frame.term == self.term {
                    self.note_appended(context, from, result);
                }
            }
            Message::Append { .. } | Message::Install(_) if frame.term < self.term => {
                let refusal = Message::Appended(Err(self.log.last()));
                context.send(self.frame(from, refusal));
            }
            Message::Append {
                previous,
                previous_term,
                entries,
                committed,
            } => {
                self.follow(context, from);
                let result = self.append(context, (previous, previous_term), entries);
                if let Ok(matched) = result {
                    self.commit(context, committed.min(matched));
                }
                context.send(self.frame(from, Message::Appended(result)));
            }
            Message::Install(snapshot) => {
                self.follow(context, from);
                let matched = self.install(context, snapshot);
                context.send(self.frame(from, Message::Appended(Ok(matched))));
            }
            Message::Join => {}
        }
    }

    fn follow(&mut self, context: &Context, leader: Peer) {
        self.heard = context.now;
        self.leader = Some(leader);
        if matches!(self.role, Role::Candidate(_)) {
            self.role = Role::Follower;
        }
    }

    fn vote(&mut self, context: &mut Context, from: Peer, term: u64, theirs: (u64, u64)) {
        let mine = (self.log.last_term(), self.log.last());
        let is_free = self.voted.is_none_or(|voted| voted == from);
        let granted = term == self.term && is_free && theirs >= mine;
        if granted {
            self.voted = Some(from);
            self.heard = context.now;
        }
        context.send(self.frame(from, Message::Vote { granted }));
    }

    fn count_vote(&mut self, context: &mut Context, from: Peer) {
        let Role::Candidate(votes) = &mut self.role else {
            return;
        };
        votes.insert(from);
        let votes = votes.clone();
        if self.is_quorum(context, |peer| votes.contains(&peer)) {
            self.take_office(context);
        }
    }

    fn take_office(&mut self, context: &mut Context) {
        context.stats.elections += 1;
        // Lease time goes on from the last stamp there is, so an outage lengthens leases.
        let base = self.log.last_stamp().unwrap_or(Timestamp::ZERO);
        let base = base.max(self.replica.machine.now());
        self.reigned = Some((self.term, base, context.clock(self.peer)));
        let peers = self.voters().clone().into_iter().enumerate();
        let peers = peers.map(|(slot, generation)| Peer { slot, generation });
        let progress = Progress {
            next: self.log.last() + 1,
            matched: 0,
            heard: context.now,
        };
        let me = self.peer;
        let peers = peers.filter(|peer| *peer != me);
        self.role = Role::Leader(Reign {
            peers: peers.map(|peer| (peer, progress)).collect(),
            ready: self.log.last() + 1,
            tick: 0,
            beat: 0,
        });
        self.leader = Some(self.peer);
        context.record(Event::Led {
            node: self.peer.slot as u64,
            epoch: self.term,
        });
        self.propose(context, Operation::Tick);
    }

    /// Appends a command of its own. Only for a leader.
    pub(crate) fn propose(&mut self, context: &mut Context, operation: Operation) -> u64 {
        let epoch = match context.has(Mutant::OldWaitersGranted) {
            true => 1,
            false => self.term,
        };
        let command = Command::new(Epoch::new(epoch), operation);
        let stamp = self.stamp(context);
        self.append_as_leader(context, Body::Command { stamp, command })
    }

    pub(crate) fn append_as_leader(&mut self, context: &mut Context, body: Body) -> u64 {
        let term = self.term;
        let index = self.log.append(LogEntry { term, body });
        self.replicate(context, false);
        index
    }

    /// The lease time of this reign: from its base on with the own clock.
    pub(crate) fn stamp(&self, context: &Context) -> Timestamp {
        let clock = context.clock(self.peer);
        if context.has(Mutant::RawClockStamped) {
            return Timestamp::from_micros(clock);
        }
        let (_, base, began) = self.reigned.expect("it was a leader");
        let elapsed = clock.saturating_sub(began);
        base.saturating_add(std::time::Duration::from_micros(elapsed))
    }
}

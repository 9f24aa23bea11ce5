//! How entries spread, when they are decided, and how a process without memory becomes a voter.

use super::context::Context;
use super::frame::{Message, Peer};
use super::log::{Body, Log, LogEntry, Snapshot};
use super::node::{Node, Progress, Role};
use super::replica::Replica;

const BEAT: u64 = 50_000;
const QUORUM_LOST: u64 = 400_000;

impl Node {
    pub(super) fn beat(&mut self, context: &mut Context) {
        let Role::Leader(reign) = &mut self.role else {
            return;
        };
        if context.now - reign.beat >= BEAT {
            reign.beat = context.now;
            self.replicate(context, true);
        }
    }

    /// Sends everybody what is new; as a heartbeat also to those who have everything.
    pub(super) fn replicate(&mut self, context: &mut Context, beat: bool) {
        let Role::Leader(reign) = &mut self.role else {
            return;
        };
        let last = self.log.last();
        let mut frames = Vec::new();
        for (peer, progress) in &mut reign.peers {
            if !beat && progress.next > last {
                continue;
            }
            let previous = progress.next - 1;
            let body = match self.log.term_at(previous) {
                Some(previous_term) => Message::Append {
                    previous,
                    previous_term,
                    entries: self.log.from(progress.next, 64),
                    committed: self.committed,
                },
                None => Message::Install(self.log.base.clone()),
            };
            if let Message::Append { entries, .. } = &body {
                progress.next += entries.len() as u64;
            }
            frames.push((*peer, body));
        }
        for (peer, body) in frames {
            context.send(self.frame(peer, body));
        }
    }

    pub(super) fn append(
        &mut self,
        context: &mut Context,
        (previous, previous_term): (u64, u64),
        entries: Vec<LogEntry>,
    ) -> Result<u64, u64> {
        let base = self.log.base.index;
        if previous >= base && self.log.term_at(previous) != Some(previous_term) {
            return Err(self.log.last().min(previous.saturating_sub(1)));
        }
        let mut index = previous;
        for entry in entries {
            index += 1;
            // What a snapshot holds was decided, so it is the same.
            if index <= base || self.log.term_at(index) == Some(entry.term) {
                continue;
            }
            if index <= self.log.last() {
                assert!(
                    index > self.committed || !context.is_sound(),
                    "the toy log forgot entry {index}, which was decided"
                );
                context.stats.truncated_entries += self.log.last() + 1 - index;
                self.log.truncate(index);
            }
            self.log.append(entry);
        }
        Ok(index.max(base))
    }

    pub(super) fn install(&mut self, context: &mut Context, snapshot: Snapshot) -> u64 {
        if self.log.term_at(snapshot.index) == Some(snapshot.term) {
            // It has all of this, and may have said yes to what follows.
            self.commit(context, snapshot.index);
        } else if snapshot.index > self.committed {
            context.stats.snapshots_installed += 1;
            self.replica = Replica::restore(context, &snapshot.machine, snapshot.index);
            self.committed = snapshot.index;
            self.log = Log::new(snapshot);
            self.lose_track(context);
        }
        self.committed
    }

    pub(super) fn note_appended(
        &mut self,
        context: &mut Context,
        from: Peer,
        result: Result<u64, u64>,
    ) {
        let Role::Leader(reign) = &mut self.role else {
            return;
        };
        let Some(progress) = reign.peers.get_mut(&from) else {
            return;
        };
        progress.heard = context.now;
        match result {
            Ok(matched) => {
                progress.matched = progress.matched.max(matched);
                progress.next = progress.next.max(progress.matched + 1);
                self.count_committed(context);
                self.promote(context, from);
            }
            Err(hint) => {
                progress.next = (hint + 1).min(progress.next).max(progress.matched + 1);
            }
        }
    }

    fn count_committed(&mut self, context: &mut Context) {
        let Role::Leader(reign) = &self.role else {
            return;
        };
        let mut agreed: Vec<u64> = reign.peers.values().map(|peer| peer.matched).collect();
        agreed.push(self.log.last());
        agreed.sort_unstable();
        let is_agreed = |index: u64| {
            self.is_quorum(context, |peer| {
                let matched = reign.peers.get(&peer).map(|peer| peer.matched);
                peer == self.peer || matched.is_some_and(|matched| matched >= index)
            })
        };
        let newest = agreed.into_iter().rev().find(|index| is_agreed(*index));
        // Only an entry of its own reign tells a leader that all before it are decided.
        if let Some(index) = newest
            && self.log.term_at(index) == Some(self.term)
        {
            self.commit(context, index);
        }
    }

    pub(super) fn hears_quorum(&self, context: &Context) -> bool {
        let Role::Leader(reign) = &self.role else {
            return false;
        };
        self.is_quorum(context, |peer| {
            let heard = reign.peers.get(&peer).map(|peer| peer.heard);
            peer == self.peer || heard.is_some_and(|heard| context.now - heard < QUORUM_LOST)
        })
    }

    /// A leader sends everything to a process that wants to join.
    pub(super) fn let_in(&mut self, newcomer: Peer) {
        if let Role::Leader(reign) = &mut self.role {
            reign.peers.entry(newcomer).or_insert(Progress {
                next: self.log.base.index.max(1),
                matched: 0,
                heard: 0,
            });
        }
    }

    /// Makes a process that has caught up the voter of its slot.
    fn promote(&mut self, context: &mut Context, peer: Peer) {
        let Role::Leader(reign) = &self.role else {
            return;
        };
        let is_settled = self.log.electorates(self.committed).count() == 1;
        let has_all = reign
            .peers
            .get(&peer)
            .is_some_and(|progress| progress.matched >= self.committed);
        let is_new = self.voters()[peer.slot] < peer.generation;
        if is_new && is_settled && has_all && self.replica.applied >= reign.ready {
            let mut voters = self.voters().clone();
            voters[peer.slot] = peer.generation;
            self.append_as_leader(context, Body::Voters(voters));
        }
    }

    /// Applies everything up to `index`.
    pub(crate) fn commit(&mut self, context: &mut Context, index: u64) {
        while self.committed < index {
            let place = self.committed + 1;
            let Some(LogEntry { term, body }) = self.log.get(place).cloned() else {
                return;
            };
            self.committed = place;
            match body {
                Body::Command { stamp, command } => {
                    let slot = self.peer.slot;
                    let outcome =
                        self.replica
                            .apply(context, slot, (place, term), stamp, command.clone());
                    self.tell(context, (place, term), &command, &outcome);
                }
                Body::Voters(voters) => {
                    self.replica.applied = place;
                    context.positions.insert(place, term);
                    if let Role::Leader(reign) = &mut self.role {
                        let is_old = |peer: &Peer| voters[peer.slot] > peer.generation;
                        reign.peers.retain(|peer, _| !is_old(peer));
                    }
                }
            }
            if context.random.happens(context.faults.snapshots) {
                self.write_snapshot(context);
            }
        }
    }

    fn write_snapshot(&mut self, context: &mut Context) {
        context.stats.snapshots_written += 1;
        let index = self.committed;
        let base = Snapshot {
            index,
            term: self.log.term_at(index).expect("it was just applied"),
            voters: self.log.voters_at(index).clone(),
            machine: self.replica.machine.snapshot(),
        };
        self.log.compact(base);
    }
}

//! One node at work: it proposes, keeps watch over who leads, and answers peers and operators.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use highwater_protocol::handshake::Slot;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::impls::ProgressResponder;
use openraft::{Instant as _, ServerState};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::batch::Sealed;
use super::clocks::Clocks;
use super::desk::{Desk, Fate, Role};
use super::file::ClusterFile;
use super::peer::Trust;
use super::peer::handshake::Caller;
use super::peer::link::Link;
use super::rules::{self, Pace};
use super::status::{Members, NodeRole, NodeStatus, Place};
use super::succession::silence_of;
use super::types::{Address, Member, Raft};
use crate::system;

/// See the module's description.
pub(crate) struct Node {
    pub(super) member: Member,
    trust: Arc<Trust>,
    pub(super) file: ClusterFile,
    pub(super) desk: Arc<Desk>,
    pub(super) raft: Raft,
    /// One change of the members at a time.
    pub(super) changing: tokio::sync::Mutex<()>,
    pub(super) clocks: Clocks,
    pub(super) pace: Pace,
    /// Whether this node is known to be part of a cluster that has begun. Nothing is ever granted before
    /// all nodes are, so one that does not know it has either nothing to remember, or has forgotten it.
    begun: AtomicBool,
    /// Which leader was heard from last, and when.
    heard: Mutex<Option<(Slot, Instant)>>,
}

pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Node {
    pub(super) fn new(
        member: Member,
        trust: Arc<Trust>,
        file: ClusterFile,
        desk: Arc<Desk>,
        raft: Raft,
        clocks: Clocks,
        pace: Pace,
    ) -> Self {
        Self {
            member,
            trust,
            file,
            desk,
            raft,
            changing: tokio::sync::Mutex::new(()),
            clocks,
            pace,
            begun: AtomicBool::new(true),
            heard: Mutex::new(None),
        }
    }

    /// From now on it takes part in what the others decide, or does not.
    pub(super) fn set_begun(&self, begun: bool) {
        self.begun.store(begun, Ordering::SeqCst);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    pub(super) fn member(&self) -> Member {
        self.member
    }

    pub(super) fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    pub(super) fn raft(&self) -> &Raft {
        &self.raft
    }

    pub(super) fn heard_from(&self, slot: Slot) {
        let heard = self.heard.lock();
        *heard.unwrap_or_else(PoisonError::into_inner) = Some((slot, system::now()));
    }

    /// Takes what was asked for into the log, for as long as it is polled.
    pub(super) async fn propose(&self) {
        let mut under_way = FuturesUnordered::new();
        // Until when others who are about to ask for something are waited for.
        let mut late: Option<Instant> = None;
        loop {
            let may_propose = match under_way.len() {
                0 => true,
                count => count < rules::IN_FLIGHT && self.desk.has_another_batch(),
            };
            if !may_propose {
                // Those who were waited for may have come: they are too many for a batch beside the others.
                late = None;
            }
            let is_late = late.is_some_and(|late| system::now() >= late);
            if is_late {
                late = None;
                self.desk.expected_in_vain();
            }
            let next = match may_propose {
                true if !is_late && self.desk.expects_more() => {
                    late.get_or_insert_with(|| system::now() + COMPANY_TIME);
                    None
                }
                true => {
                    late = None;
                    self.desk.next_batch()
                }
                false => None,
            };
            let Some(batch) = next else {
                tokio::select! {
                    () = self.desk.asked.notified() => {}
                    () = sleep_until(late.unwrap_or_else(system::now)), if late.is_some() => {}
                    Some((term, number, outcome)) = under_way.next() => {
                        if let Some(fate) = outcome {
                            self.desk.settle(term, number, fate);
                        }
                    }
                }
                continue;
            };
            let (term, number) = (batch.epoch.get(), batch.number);
            let (responder, outcome) = ProgressResponder::complete_only();
            let written = self
                .raft
                .write(Sealed::new(batch))
                .with_leader(term)
                .responder(responder);
            let sent = written.await.is_ok();
            under_way.push(async move {
                let outcome = match (sent, outcome.await) {
                    (true, Ok(Ok(_))) => None,
                    (true, Ok(Err(ClientWriteError::ForwardToLeader(_)))) => Some(Fate::Refused),
                    // Discarded, or the engine has ended.
                    _ => Some(Fate::Unknown),
                };
                (term, number, outcome)
            });
        }
    }

    /// Tells the desk who leads and what time it is, until the engine has ended.
    pub(super) async fn watch(&self) {
        let mut changes = self.raft.server_metrics();
        let metrics = self.raft.metrics();
        loop {
            let (role, is_doubtful, running) = {
                let metrics = metrics.borrow_watched();
                let silence = silence(&metrics);
                // As long as it leads, answers to entries have much more time than those to heartbeats.
                let is_doubtful = silence.is_none_or(|silence| silence >= self.pace.lease() / 2);
                (
                    self.role(&metrics),
                    is_doubtful,
                    metrics.running_state.clone(),
                )
            };
            if let Err(error) = running {
                if matches!(error, Fatal::Stopped) && self.desk.is_draining() {
                    return;
                }
                tracing::error!(%error, "the consensus engine has ended: this node steps out");
                self.desk.fail();
                return;
            }
            self.desk.look(role);
            if is_doubtful {
                self.desk.reassure();
            }
            let patience = self.desk.patience().unwrap_or(PULSE).min(PULSE);
            tokio::select! {
                _ = changes.changed() => {}
                () = self.desk.earlier.notified() => {}
                () = sleep(patience) => {}
            }
        }
    }

    fn role(&self, metrics: &openraft::RaftMetrics<super::types::Types>) -> Role {
        let term = metrics.current_term;
        if metrics.state == ServerState::Leader {
            let applied = metrics.last_applied.as_ref();
            let begun = applied.is_some_and(|id| id.committed_leader_id().term == term);
            let followed = silence(metrics).is_some_and(|silence| silence < self.pace.lease());
            return match begun && followed {
                true => Role::Leading { term },
                false => Role::Leaderless,
            };
        }
        let leader = metrics.current_leader.and_then(Member::from_id);
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match (leader, heard) {
            (Some(leader), Some((slot, at)))
                if leader != self.member
                    && leader.slot == slot
                    && system::now() < at + self.pace.in_touch() =>
            {
                Role::Following(slot)
            }
            _ => Role::Leaderless,
        }
    }

    /// The nodes that vote, without this one, and where they are.
    pub(super) fn other_voters(&self) -> Vec<(Member, Address)> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = &metrics.membership_config;
        let voters = membership.voter_ids().filter_map(|id| {
            let address = membership.get_node(&id).cloned().unwrap_or_default();
            Some((Member::from_id(id)?, address))
        });
        voters.filter(|(voter, _)| *voter != self.member).collect()
    }

    /// A way of its own to another node.
    pub(super) fn link(&self, to: Member, address: Address) -> Link {
        let own = Caller::Node(self.member);
        Link::new(Arc::clone(&self.trust), own, to.into(), address.0)
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let counts = self.desk.counts();
        let role = self.desk.role();
        let (role, leader) = match role {
            Role::Leading { .. } => (NodeRole::Leader, Some(self.member.slot)),
            Role::Following(slot) => (NodeRole::Follower, Some(slot)),
            Role::Leaderless => (NodeRole::Leaderless, None),
        };
        let voters = metrics.membership_config.voter_ids();
        let voters = voters.filter_map(Member::from_id);
        NodeStatus {
            slot: self.member.slot.get(),
            generation: self.member.generation,
            role,
            term: metrics.current_term,
            leader: leader.map(Slot::get),
            last_entry: metrics.last_log_index,
            applied: metrics.last_applied.as_ref().map(|id| id.index()),
            snapshot: metrics.snapshot.as_ref().map(|id| id.index()),
            voters: voters.map(|member| member.slot.get()).collect(),
            held_keys: counts.held_keys,
            waiters: counts.waiters,
            clock: self.clocks.status(),
            begun: metrics.last_log_index.is_some(),
            process: String::new(),
            members: members(&metrics),
            whole: self.is_whole(&metrics),
            dead: false,
            other_secrets: 0,
            waits_for: None,
        }
    }

    pub(super) fn leads(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.state == ServerState::Leader
    }

    /// Hands the lead over to the node that is furthest, and waits until it has it. One that does not
    /// take it at once, because it has just come back, say, is not waited for long.
    pub(crate) async fn step_down(&self) -> Result<(), Failure> {
        self.step_down_for(|heir| self.clocks.may_lead(heir)).await
    }

    /// The same for one of those that satisfy this. A leader that has offered the lead takes no entry any more, so
    /// it must not be offered to somebody who will refuse it.
    pub(super) async fn step_down_for(
        &self,
        may_lead: impl Fn(Member) -> bool + Send,
    ) -> Result<(), Failure> {
        let heirs = self.heirs(may_lead)?;
        let begun = system::now();
        while system::now() < begun + HAND_OVER_TIME {
            for heir in &heirs {
                tracing::info!(heir, "the lead is handed over");
                self.raft.trigger().transfer_leader(*heir).await?;
                let done = timeout(HEIR_TIME, async {
                    while self.leads() {
                        sleep(SHORT).await;
                    }
                });
                if done.await.is_ok() {
                    return Ok(());
                }
            }
        }
        Err("no other node has taken over in time".into())
    }

    /// The other voters, the best ones first: heard from just now, and furthest in the log.
    fn heirs(&self, may_lead: impl Fn(Member) -> bool) -> Result<Vec<u64>, Failure> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return Err("this node does not lead".into());
        }
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        let replicated = metrics.replication.iter().flatten();
        let mut heirs: Vec<_> = replicated
            .filter(|(id, _)| voters.contains(id) && **id != self.member.id())
            .filter(|(id, _)| Member::from_id(**id).is_some_and(&may_lead))
            .map(|(id, matched)| {
                let silence = silence_of(&metrics, *id);
                (silence, *matched, *id)
            })
            // The engine takes nothing more until the heir leads: never wait for one that is not there.
            .filter(|(silence, ..)| silence.is_some_and(|silence| silence < self.pace.lease()))
            .map(|(silence, matched, id)| (silence < Some(self.pace.heartbeat() * 2), matched, id))
            .collect();
        heirs.sort_unstable();
        match heirs.is_empty() {
            true => Err("no other node is there that may lead".into()),
            false => Ok(heirs.into_iter().rev().map(|(.., id)| id).collect()),
        }
    }

    /// Ends this node's part in an orderly way: another one leads, whoever waits here is told.
    pub(crate) async fn retire(&self) {
        self.desk.drain();
        if self.leads() {
            match self.step_down().await {
                Ok(()) => self.send_on().await,
                Err(error) => tracing::warn!(error, "the lead is not handed over"),
            }
        }
    }

    /// Waits until the clients know who leads now: what they send to a connection that is about to close
    /// would have no answer.
    async fn send_on(&self) {
        let known = async {
            while !matches!(self.desk.role(), Role::Following(_)) || self.desk.has_open() {
                sleep(SHORT).await;
            }
        };
        let _ = timeout(HAND_OVER_TIME, known).await;
        sleep(PARTING_TIME).await;
    }

    /// Ends the engine. What was written stays.
    pub(crate) async fn end(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "the consensus engine did not end in an orderly way");
        }
    }

    /// Whether this node may still speak for its slot: not if another one has taken that over.
    pub(super) fn may_speak(&self, peer: Member) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let mut of_slot = membership
            .nodes()
            .filter_map(|(id, _)| Member::from_id(*id));
        membership.get_node(&peer.id()).is_some()
            || !of_slot.any(|known| known.slot == peer.slot && known.generation > peer.generation)
    }

    /// Whether this node may give its vote away. A node that took a slot over may not before its log says
    /// that it belongs to the cluster at all.
    pub(super) fn may_vote(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        self.member.generation == 1 || membership.get_node(&self.member.id()).is_some()
    }
}

/// For how long this node, as the leader, has had no answer from a majority.
pub(super) fn silence(metrics: &openraft::RaftMetrics<super::types::Types>) -> Option<Duration> {
    let acked = metrics.last_quorum_acked?.into_inner();
    Some(acked.elapsed())
}

/// Who belongs to the cluster, if the log says so.
fn members(metrics: &openraft::RaftMetrics<super::types::Types>) -> Option<Members> {
    let config = &metrics.membership_config;
    let id = config.log_id().as_ref()?;
    let place = |id: &u64| Member::from_id(*id).map(Place::from);
    let voters = config.membership().get_joint_config().iter();
    let learners = config.membership().learner_ids();
    // By generation: the newest one of a slot comes last.
    let nodes = config.membership().nodes();
    let addresses = nodes.filter_map(|(id, address)| {
        let member = Member::from_id(*id)?;
        Some((member.slot.get(), address.0.clone()))
    });
    Some(Members {
        term: id.committed_leader_id().term,
        entry: id.index(),
        committed: metrics.committed_membership_config.log_id().as_ref() == Some(id),
        voters: voters
            .map(|voters| voters.iter().filter_map(place).collect())
            .collect(),
        learners: learners.filter_map(|id| place(&id)).collect(),
        addresses: addresses.collect(),
    })
}

/// How long a batch waits for more at most, while others are about to ask.
const COMPANY_TIME: Duration = Duration::from_millis(1);
/// How often the time is looked at when nothing happens.
const PULSE: Duration = Duration::from_millis(25);
const SHORT: Duration = Duration::from_millis(2);
/// How long the best of the others may take to lead.
const HEIR_TIME: Duration = Duration::from_millis(150);
/// How long clients have to hear of the new leader before their connections are closed.
const PARTING_TIME: Duration = Duration::from_millis(100);
const HAND_OVER_TIME: Duration = Duration::from_secs(2);

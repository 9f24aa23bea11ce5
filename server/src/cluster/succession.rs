//! How a new node comes to vote in the place of an old one of its slot.
//!
//! The new one learns first, under a generation that no node of the slot has had: to reserve it is a
//! change of the members that the log decides, and that only comes about if nobody else has changed
//! them meanwhile. When it has caught up, one more change lets it vote and drops the old one. In a
//! durable cluster an operator asks for both; in a volatile one a process without a memory asks for the first,
//! and the leader does the second by itself. See `docs/adr/0014-volatile-clusters.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_protocol::handshake::Slot;
use openraft::async_runtime::WatchReceiver as _;
use openraft::{ChangeMembers, Instant as _, Precondition, ServerState};
use tokio::time::{Instant, sleep, timeout};

use super::file::ClusterMode;
use super::node::{Failure, Node};
use super::peer::frame::{FRESH, STATUS};
use super::peer::handshake::{Callee, Caller};
use super::peer::link::{Link, LinkError};
use super::status::NodeStatus;
use super::types::{Address, LogId, Member, Membership, Types};
use crate::system;

pub(super) type Metrics = openraft::RaftMetrics<Types>;

/// The members as they were looked at, to change them only if they still are the same.
pub(super) struct Seen {
    at: Option<LogId>,
    membership: Membership,
}

impl Seen {
    fn new(metrics: &Metrics) -> Self {
        Self {
            at: *metrics.membership_config.log_id(),
            membership: metrics.membership_config.membership().clone(),
        }
    }

    /// The number of the entry that says so.
    pub(super) fn entry(&self) -> u64 {
        self.at.map_or(0, |id| id.index())
    }

    pub(super) fn voters(&self) -> impl Iterator<Item = Member> {
        self.membership.voter_ids().filter_map(Member::from_id)
    }

    pub(super) fn learners(&self) -> BTreeSet<Member> {
        let learners = self.membership.learner_ids();
        learners.filter_map(Member::from_id).collect()
    }

    /// The nodes that learn and are to vote beside the others, and not in the place of one of them.
    pub(super) fn joining(&self) -> BTreeSet<Member> {
        let beside = |member: &Member| self.voters().all(|voter| voter.slot != member.slot);
        self.learners().into_iter().filter(beside).collect()
    }

    pub(super) fn is_changing(&self) -> bool {
        self.membership.get_joint_config().len() > 1
    }

    fn of(&self, slot: Slot) -> BTreeSet<Member> {
        let nodes = self.membership.nodes();
        let members = nodes.filter_map(|(id, _)| Member::from_id(*id));
        members.filter(|member| member.slot == slot).collect()
    }

    fn votes(&self, member: Member) -> bool {
        self.membership.voter_ids().any(|id| id == member.id())
    }

    /// The voters with this one in the place of the others of its slot.
    fn with(&self, newcomer: Member) -> BTreeSet<u64> {
        let voters = self.membership.voter_ids();
        let other = |id: &u64| Member::from_id(*id).is_none_or(|old| old.slot != newcomer.slot);
        voters.filter(other).chain([newcomer.id()]).collect()
    }
}

impl Node {
    pub(super) fn seen(&self) -> Result<Seen, Failure> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        match metrics.state {
            ServerState::Leader => Ok(Seen::new(&metrics)),
            _ => Err("this node does not lead".into()),
        }
    }

    /// Changes the members if they still are what was seen. Without an error a majority has it; gives the number
    /// of the entry.
    pub(super) async fn change(
        &self,
        seen: &Seen,
        change: ChangeMembers<u64, Address>,
    ) -> Result<u64, Failure> {
        let last_membership_log_id = seen.at;
        let unchanged = Precondition::LastMembershipLogId {
            last_membership_log_id,
        };
        let changed = self.raft.change_membership_if(change, false, [unchanged]);
        Ok(timeout(CHANGE_TIME, changed).await??.log_id.index())
    }

    /// Lets a new node take a slot over whose node is gone, in a durable cluster: gives the generation
    /// that it has to have. It learns first, and votes when [`Node::promote`] finds that it has caught up.
    pub(super) async fn replace(&self, slot: Slot) -> Result<u64, Failure> {
        if self.file.mode() == ClusterMode::Volatile {
            return Err(BY_ITSELF.into());
        }
        let _one = self.changing.lock().await;
        let seen = self.seen()?;
        let of_slot = seen.of(slot);
        let newest = *of_slot.last().ok_or("this slot has no node")?;
        if !seen.votes(newest) {
            // One that was there, and is there no more, may have lost what it had: it cannot come again.
            let was_there = self.has_been_there(newest) && !self.is_lively(newest);
            if !was_there || self.answers(newest).await {
                return Ok(newest.generation);
            }
            return self.reserve_as_known(&seen, newest, &[newest]).await;
        }
        if newest == self.member || self.answers(newest).await {
            return Err("the node of this slot still answers: stop it first".into());
        }
        self.reserve_as_known(&seen, newest, &[]).await
    }

    /// Lets a process of a volatile cluster that has no memory take its slot over: gives the generation
    /// that it has from now on, and that no other process ever has, and the entry that says so. It votes when
    /// it has caught up, and in a slot that [`Node::grow`] has opened, when the other one has too.
    ///
    /// It is refused as long as the node of the slot answers, also if that is learning itself. The process
    /// that asks has to be the one that the other nodes find at the address of the slot: two
    /// that are there at once cannot take the slot from each other in turns.
    pub(super) async fn let_in(&self, slot: Slot, process: &str) -> Result<(u64, u64), Failure> {
        if self.file.mode() != ClusterMode::Volatile {
            return Err("only a process of a volatile cluster joins by itself".into());
        }
        let _one = self.changing.lock().await;
        let seen = self.seen()?;
        if seen.is_changing() {
            return Err("another node is being replaced".into());
        }
        let of_slot = seen.of(slot);
        let newest = *of_slot
            .last()
            .ok_or("this slot is not part of the cluster")?;
        let address = self.find(&seen, newest, process).await?;
        for member in &of_slot {
            if *member == self.member || self.is_lively(*member) || self.answers(*member).await {
                return Err(format!("{member} still answers").into());
            }
        }
        // One that died before it could vote leaves with the same step.
        let gone: Vec<Member> = of_slot
            .into_iter()
            .filter(|old| !seen.votes(*old))
            .collect();
        self.reserve(&seen, newest, &gone, address).await
    }

    /// The same as [`Node::reserve`], where the next node of the slot is looked for first.
    async fn reserve_as_known(
        &self,
        seen: &Seen,
        newest: Member,
        gone: &[Member],
    ) -> Result<u64, Failure> {
        let address = self.addresses(seen, newest).into_iter().next();
        let address = address.unwrap_or_default();
        let (generation, _) = self.reserve(seen, newest, gone, address).await?;
        Ok(generation)
    }

    /// Adds the next node of a slot to the members, as a learner, in the place of the learners of the
    /// slot that are gone. Gives its generation, and the entry that says so.
    async fn reserve(
        &self,
        seen: &Seen,
        newest: Member,
        gone: &[Member],
        address: Address,
    ) -> Result<(u64, u64), Failure> {
        let newcomer = Member {
            generation: newest.generation + 1,
            ..newest
        };
        tracing::warn!(replaced = %newest, by = newcomer.generation, "a node is to be replaced");
        let gone = gone.iter().map(|member| member.id()).collect();
        let change = ChangeMembers::Batch(vec![
            ChangeMembers::RemoveNodes(gone),
            ChangeMembers::AddNodes([(newcomer.id(), address)].into()),
        ]);
        let entry = self.change(seen, change).await?;
        Ok((newcomer.generation, entry))
    }

    /// Where a process of this slot is looked for: where the file of this node says, and where the log does. Either
    /// may be the older one.
    fn addresses(&self, seen: &Seen, newest: Member) -> Vec<Address> {
        let node = self.file.node(newest.slot.get());
        let told = node.map(|node| Address(node.addresses.peers.clone()));
        let known = seen.membership.get_node(&newest.id()).cloned();
        let known = known.filter(|known| told.as_ref() != Some(known));
        told.into_iter().chain(known).collect()
    }

    /// Where this process is, if it is there where its slot is looked for, and no node.
    async fn find(&self, seen: &Seen, newest: Member, process: &str) -> Result<Address, Failure> {
        let addresses = self.addresses(seen, newest).into_iter();
        let asked = addresses.map(|address| async {
            let there = self.process_at(newest.slot, &address).await;
            (address, there)
        });
        let mut refused: Option<Failure> = None;
        for (address, there) in futures_util::future::join_all(asked).await {
            match there {
                Ok(there) if there.process == process && there.generation == 0 => {
                    return Ok(address);
                }
                Ok(_) => {
                    let why = "another process is there where the others look for this slot";
                    refused = Some(why.into());
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| "nobody knows where this slot is".into()))
    }

    /// What the process says of itself that is there.
    async fn process_at(&self, slot: Slot, address: &Address) -> Result<NodeStatus, Failure> {
        let own = Caller::Process(self.member.slot);
        let generation = None;
        let to = Callee { slot, generation };
        let link = Link::new(Arc::clone(self.trust()), own, to, address.0.clone());
        let said = link.call(STATUS, Vec::new(), ASK_TIME).await;
        let said = said.map_err(|error| format!("nothing to be seen of its process: {error}"))?;
        NodeStatus::decode(&said).ok_or("it speaks another version".into())
    }

    /// Whether this very node is there, however badly it may be.
    pub(super) async fn answers(&self, member: Member) -> bool {
        let address = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let node = metrics.membership_config.get_node(&member.id());
            node.map(|address| address.0.clone()).unwrap_or_default()
        };
        let own = Caller::Node(self.member);
        let link = Link::new(Arc::clone(self.trust()), own, member.into(), address);
        let answered = link.call(FRESH, Vec::new(), ASK_TIME).await;
        matches!(answered, Ok(_) | Err(LinkError::Failed(_)))
    }

    /// Whether this node is there, and only some entries behind.
    pub(super) fn is_up_to_date(&self, seen: &Seen, member: Member) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        is_lively(&metrics, member.id(), self.pace.lease()) && has_caught_up(&metrics, seen, member)
    }

    /// Whether this node has answered the leader just now.
    fn is_lively(&self, member: Member) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        is_lively(&metrics, member.id(), self.pace.lease())
    }

    /// Whether this node has taken anything since this one leads.
    fn has_been_there(&self, member: Member) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        matched(&metrics, member).is_some()
    }

    /// Lets the new node of a slot vote in the place of the old one, if it is there and has caught up. Says
    /// whether it has, and the change is through.
    pub(super) async fn promote(&self, slot: Slot) -> Result<bool, Failure> {
        if self.file.mode() == ClusterMode::Volatile {
            return Err(BY_ITSELF.into());
        }
        let _one = self.changing.lock().await;
        let (seen, newcomer) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            if metrics.state != ServerState::Leader {
                return Err("this node does not lead".into());
            }
            let seen = Seen::new(&metrics);
            let newest = seen.of(slot).last().copied();
            let newest = newest.filter(|newest| !seen.votes(*newest) || seen.is_changing());
            // One that is to join beside the others comes with a second one: see `resize`.
            let newest = newest.filter(|_| seen.of(slot).iter().any(|old| seen.votes(*old)));
            let newest = newest.ok_or("nobody waits to take this slot over")?;
            let is_ready = is_lively(&metrics, newest.id(), self.pace.lease())
                && has_caught_up(&metrics, &seen, newest);
            if seen.is_changing() || !is_ready {
                return Ok(false);
            }
            (seen, newest)
        };
        let change = ChangeMembers::ReplaceAllVoters(seen.with(newcomer));
        self.change(&seen, change).await?;
        Ok(true)
    }

    /// Whether any one member may go: see [`NodeStatus::whole`].
    pub(super) fn is_whole(&self, metrics: &Metrics) -> bool {
        let seen = Seen::new(metrics);
        let mut nodes = seen.membership.nodes();
        metrics.state == ServerState::Leader
            && !seen.is_changing()
            && metrics.committed_membership_config.log_id() == metrics.membership_config.log_id()
            && nodes.all(|(id, _)| {
                let member = Member::from_id(*id);
                member == Some(self.member)
                    || member.is_some_and(|member| {
                        seen.votes(member)
                            && is_lively(metrics, *id, self.pace.lease())
                            && has_caught_up(metrics, &seen, member)
                    })
            })
    }

    /// While this node leads: finishes a change of the members that another leader has left half done, and
    /// lets new nodes of a volatile cluster vote as soon as they have caught up.
    pub(super) async fn tend(&self) {
        let mut left: Option<(Option<LogId>, Instant)> = None;
        let mut learning = BTreeMap::new();
        loop {
            sleep(LOOK_TIME).await;
            let Ok(seen) = self.seen() else {
                left = None;
                learning.clear();
                continue;
            };
            self.complain_of_learners(&seen, &mut learning);
            if !seen.is_changing() {
                left = None;
                if let Some(newcomer) = self.heir_of_a_slot(&seen) {
                    self.hand_slot_over(newcomer).await;
                } else if self.file.mode() == ClusterMode::Volatile
                    && self.may_admit(&seen)
                    && let Err(error) = self.admit().await
                {
                    tracing::warn!(error, "two new nodes do not vote yet");
                }
                continue;
            }
            let since = match left {
                Some((at, since)) if at == seen.at => since,
                _ => left.insert((seen.at, system::now())).1,
            };
            // Whoever began it here finishes it, in much less time.
            if since.elapsed() >= LEFT_TIME {
                let none = ChangeMembers::AddVoterIds(BTreeSet::new());
                match self.change(&seen, none).await {
                    Ok(_) => tracing::info!("a change of the members is finished"),
                    Err(error) => tracing::debug!(error, "a change of the members waits"),
                }
            }
        }
    }

    /// A node that has caught up and is to vote in the place of another one of its slot.
    fn heir_of_a_slot(&self, seen: &Seen) -> Option<Member> {
        if self.file.mode() != ClusterMode::Volatile {
            return None;
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let learners = seen.membership.learner_ids();
        let mut learners = learners.filter_map(Member::from_id);
        learners.find(|newcomer| {
            let of_slot = seen.of(newcomer.slot);
            of_slot.last() == Some(newcomer)
                && of_slot.iter().any(|old| seen.votes(*old))
                && is_lively(&metrics, newcomer.id(), self.pace.lease())
                && has_caught_up(&metrics, seen, *newcomer)
        })
    }

    /// Says so if a node learns for long, and why it does not vote. Keeps since when each one has.
    fn complain_of_learners(&self, seen: &Seen, learning: &mut BTreeMap<Member, Instant>) {
        let now = system::now();
        let learners = seen.membership.learner_ids();
        let learners: BTreeSet<Member> = learners.filter_map(Member::from_id).collect();
        learning.retain(|member, _| learners.contains(member));
        for member in learners {
            let since = learning.entry(member).or_insert(now);
            if now.duration_since(*since) < LEARNING_TIME {
                continue;
            }
            *since = now;
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let answers = is_lively(&metrics, member.id(), self.pace.lease());
            let matched = matched(&metrics, member).unwrap_or(0);
            let behind = metrics.last_log_index.unwrap_or(0).saturating_sub(matched);
            tracing::warn!(%member, answers, behind, "a new node is learning for long and does not vote yet");
        }
    }

    async fn hand_slot_over(&self, newcomer: Member) {
        let _one = self.changing.lock().await;
        // What was seen before the lock was had may be the past.
        let Ok(seen) = self.seen() else { return };
        if seen.is_changing() || self.heir_of_a_slot(&seen) != Some(newcomer) {
            return;
        }
        let change = ChangeMembers::ReplaceAllVoters(seen.with(newcomer));
        match self.change(&seen, change).await {
            Ok(_) => tracing::info!(%newcomer, "votes in the place of the one before"),
            Err(error) => tracing::warn!(%newcomer, error, "does not vote yet"),
        }
    }
}

/// Whether the leader has heard from it just now.
pub(super) fn is_lively(metrics: &Metrics, id: u64, lease: Duration) -> bool {
    silence_of(metrics, id).is_some_and(|silence| silence < lease)
}

/// For how long this node, as the leader, has had no answer from that one.
pub(super) fn silence_of(metrics: &Metrics, id: u64) -> Option<Duration> {
    let heard = metrics.heartbeat.as_ref()?.get(&id)?;
    Some((*heard)?.elapsed())
}

/// Whether it is only some entries behind, and knows who belongs to the cluster.
fn has_caught_up(metrics: &Metrics, seen: &Seen, member: Member) -> bool {
    let matched = matched(metrics, member);
    let members = seen.at.map_or(0, |id| id.index());
    let last = metrics.last_log_index.unwrap_or(0);
    matched.is_some_and(|matched| matched >= members && matched + CAUGHT_UP >= last)
}

/// The last entry that it is known to have.
pub(super) fn matched(metrics: &Metrics, member: Member) -> Option<u64> {
    let replicated = metrics.replication.as_ref()?;
    Some((*replicated.get(&member.id())?)?.index())
}

const BY_ITSELF: &str =
    "a volatile cluster replaces its nodes by itself: only start the process again";
/// How many entries a node may be behind when it begins to vote.
const CAUGHT_UP: u64 = 100;
/// How long a node may learn before the leader says so, and says so again.
const LEARNING_TIME: Duration = Duration::from_secs(10);
/// How often the leader looks whether a new node may vote.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// After how long a change of the members is taken for one that was left half done.
const LEFT_TIME: Duration = Duration::from_secs(1);
/// How long a majority may take for a change of the members.
const CHANGE_TIME: Duration = Duration::from_secs(5);
const ASK_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;

    use super::*;
    use crate::cluster::testing::{begun, eventually};

    #[tokio::test]
    async fn a_generation_is_reserved_only_if_the_members_are_those_that_were_looked_at() {
        let (_folder, presences) = begun().await;
        let node = presences[0].node().unwrap();
        let other = Member::first(presences[1].slot);
        let seen = node.seen().unwrap();
        assert_eq!(node.reserve_as_known(&seen, other, &[]).await.unwrap(), 2);
        let late = node.reserve_as_known(&seen, other, &[]).await;
        assert!(late.is_err(), "two processes have one generation");
        eventually(|| node.seen().unwrap().of(other.slot).len() == 2).await;
    }

    /// The newest node of a slot stays a member, so its number is never given again.
    #[tokio::test]
    async fn a_learner_that_is_gone_leaves_when_the_next_one_comes() {
        let (_folder, presences) = begun().await;
        let node = presences[0].node().unwrap();
        let other = Member::first(presences[1].slot);
        let second = Member {
            generation: 2,
            ..other
        };
        let seen = node.seen().unwrap();
        assert_eq!(node.reserve_as_known(&seen, other, &[]).await.unwrap(), 2);
        let generations = || {
            let of_slot = node.seen().unwrap().of(other.slot).into_iter();
            of_slot.map(|member| member.generation).collect::<Vec<_>>()
        };
        eventually(|| generations() == [1, 2]).await;
        let seen = node.seen().unwrap();
        assert_eq!(
            node.reserve_as_known(&seen, second, &[second])
                .await
                .unwrap(),
            3
        );
        eventually(|| generations() == [1, 3]).await;
    }

    /// As after a leader that died between the two steps of a change.
    #[tokio::test]
    async fn a_change_that_was_left_half_done_is_finished() {
        let (_folder, presences) = begun().await;
        let node = presences[0].node().unwrap();
        let seen = node.seen().unwrap();
        let voters: BTreeSet<u64> = seen.membership.voter_ids().collect();
        let nodes = seen.membership.nodes();
        let nodes: BTreeMap<u64, Address> = nodes.map(|(id, at)| (*id, at.clone())).collect();
        let half = Membership::new(vec![voters.clone(), voters], nodes).unwrap();
        let left = node.raft.append_membership(half, EntryPayload::Blank, []);
        left.await.unwrap();
        eventually(|| node.seen().unwrap().is_changing()).await;
        assert!(!presences[0].status().whole);
        eventually(|| presences[0].status().whole).await;
        assert!(!node.seen().unwrap().is_changing());
    }
}

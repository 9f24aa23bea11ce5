//! One node at work: it proposes, keeps watch over who leads, and answers peers and operators.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use highwater_protocol::handshake::Slot;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::impls::ProgressResponder;
use openraft::{Instant as _, ServerState};
use tokio::time::{Instant, sleep, timeout};

use super::desk::{Desk, Fate, Role};
use super::file::ClusterFile;
use super::journal::sync_folder;
use super::peer::Trust;
use super::peer::frame::{FRESH, MARK};
use super::peer::handshake::Caller;
use super::peer::link::{Link, LinkError};
use super::rules;
use super::status::{NodeRole, NodeStatus};
use super::types::{Address, Member, Raft};
use crate::system;

/// See the module's description.
pub(crate) struct Node {
    member: Member,
    trust: Arc<Trust>,
    file: ClusterFile,
    folder: PathBuf,
    pub(super) desk: Arc<Desk>,
    raft: Raft,
    /// Which leader was heard from last, and when.
    heard: Mutex<Option<(Slot, Instant)>>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Node {
    pub(super) fn new(
        member: Member,
        trust: Arc<Trust>,
        file: ClusterFile,
        folder: PathBuf,
        desk: Arc<Desk>,
        raft: Raft,
    ) -> Self {
        Self {
            member,
            trust,
            file,
            folder,
            desk,
            raft,
            heard: Mutex::new(None),
        }
    }

    pub(super) fn member(&self) -> Member {
        self.member
    }

    pub(super) fn trust(&self) -> &Trust {
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
        loop {
            let next = match under_way.len() < rules::IN_FLIGHT {
                true => self.desk.next_batch(),
                false => None,
            };
            let Some(batch) = next else {
                tokio::select! {
                    () = self.desk.asked.notified() => {}
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
                .write(batch)
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
            let (role, running) = {
                let metrics = metrics.borrow_watched();
                (self.role(&metrics), metrics.running_state.clone())
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
            let acked = metrics.last_quorum_acked.map(|acked| acked.into_inner());
            let lease = rules::ELECTION.1;
            let followed = acked.is_some_and(|acked| acked.elapsed() < lease);
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
                    && system::now() < at + rules::IN_TOUCH =>
            {
                Role::Following(slot)
            }
            _ => Role::Leaderless,
        }
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
            begun: metrics.last_log_index.is_some(),
        }
    }

    fn leads(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.state == ServerState::Leader
    }

    /// Hands the lead over to the node that is furthest, and waits until it has it. One that does not
    /// take it at once, because it has just come back, say, is not waited for long.
    pub(crate) async fn step_down(&self) -> Result<(), Failure> {
        let heirs = self.heirs()?;
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
    fn heirs(&self) -> Result<Vec<u64>, Failure> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return Err("this node does not lead".into());
        }
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        let replicated = metrics.replication.iter().flatten();
        let mut heirs: Vec<_> = replicated
            .filter(|(id, _)| voters.contains(id) && **id != self.member.id())
            .map(|(id, matched)| {
                let acked = metrics.heartbeat.as_ref().and_then(|acked| acked.get(id));
                let silence = acked.and_then(|acked| Some((*acked)?.elapsed()));
                let lively = silence.is_some_and(|silence| silence < rules::HEARTBEAT * 2);
                (lively, *matched, *id)
            })
            .collect();
        heirs.sort_unstable();
        match heirs.is_empty() {
            true => Err("no other node is there".into()),
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

    /// Lets a new node take a slot over whose node is gone: gives the generation that it has to have.
    /// It learns first, and votes when [`Node::promote`] finds that it has caught up.
    pub(super) async fn replace(&self, slot: Slot) -> Result<u64, Failure> {
        let (replaced, newcomer) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            if metrics.state != ServerState::Leader {
                return Err("this node does not lead".into());
            }
            let membership = metrics.membership_config.membership();
            let voters: Vec<u64> = membership.voter_ids().collect();
            let of_slot = |id: &u64| Member::from_id(*id).filter(|member| member.slot == slot);
            let all: Vec<Member> = membership
                .nodes()
                .filter_map(|(id, _)| of_slot(id))
                .collect();
            let newest = all.iter().max().ok_or("this slot has no node")?;
            if !voters.contains(&newest.id()) {
                return Ok(newest.generation);
            }
            let generation = newest.generation + 1;
            (*newest, Member { slot, generation })
        };
        if replaced == self.member || self.answers(replaced).await {
            return Err("the node of this slot still answers: stop it first".into());
        }
        let node = self
            .file
            .node(slot.get())
            .ok_or("this slot is not in the cluster file")?;
        let address = Address(node.addresses.peers.clone());
        tracing::warn!(%replaced, by = newcomer.generation, "a node is to be replaced");
        self.raft.add_learner(newcomer.id(), address, false).await?;
        Ok(newcomer.generation)
    }

    /// Whether this very node is there, however badly it may be.
    async fn answers(&self, member: Member) -> bool {
        let address = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let node = metrics.membership_config.get_node(&member.id());
            node.map(|address| address.0.clone()).unwrap_or_default()
        };
        let own = Caller::Node(self.member);
        let link = Link::new(Arc::clone(&self.trust), own, member.into(), address);
        let answered = link.call(FRESH, Vec::new(), ASK_TIME).await;
        matches!(answered, Ok(_) | Err(LinkError::Failed(_)))
    }

    /// Lets the new node of a slot vote in the place of the old one, if it has caught up.
    pub(super) async fn promote(&self, slot: Slot) -> Result<bool, Failure> {
        let voters: std::collections::BTreeSet<u64> = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            if metrics.state != ServerState::Leader {
                return Err("this node does not lead".into());
            }
            let membership = metrics.membership_config.membership();
            let of_slot = |id: &u64| Member::from_id(*id).is_some_and(|member| member.slot == slot);
            let newcomer = membership.learner_ids().find(of_slot);
            let newcomer = newcomer.ok_or("nobody waits to take this slot over")?;
            let replicated = metrics
                .replication
                .as_ref()
                .and_then(|all| all.get(&newcomer));
            let matched = replicated.and_then(|matched| Some((*matched)?.index()));
            let last = metrics.last_log_index.unwrap_or(0);
            if matched.is_none_or(|matched| matched + CAUGHT_UP < last) {
                return Ok(false);
            }
            let others = membership.voter_ids().filter(|id| !of_slot(id));
            others.chain([newcomer]).collect()
        };
        self.raft.change_membership(voters, false).await?;
        Ok(true)
    }

    /// That this node has never been part of this cluster.
    pub(super) async fn is_fresh(&self) -> Result<(), Failure> {
        let used = "this identity was used here before: a cluster begins only once";
        if self.raft.is_initialized().await? || self.file.marker(self.member.slot).exists() {
            return Err(used.into());
        }
        Ok(())
    }

    /// Notes that the identity is used, beside the cluster file and in the data directory.
    pub(super) async fn mark(&self) -> Result<(), Failure> {
        self.is_fresh().await?;
        let (marker, folder) = (self.file.marker(self.member.slot), self.folder.clone());
        let member = self.member;
        let marked = tokio::task::spawn_blocking(move || mark(&marker, &folder, member)).await?;
        Ok(marked?)
    }

    /// Begins the cluster, once.
    pub(super) async fn init(&self) -> Result<(), Failure> {
        let own = Caller::Node(self.member);
        let all = self.file.all().iter();
        let others = all.filter(|node| node.slot != self.member.slot);
        let links: Vec<Link> = others
            .map(|node| {
                let to = Member::first(node.slot).into();
                let address = node.addresses.peers.clone();
                Link::new(Arc::clone(&self.trust), own, to, address)
            })
            .collect();
        for kind in [FRESH, MARK] {
            for link in &links {
                let asked = link.call(kind, Vec::new(), ASK_TIME).await;
                asked.map_err(|error| format!("slot {}: {error}", link.slot().get()))?;
            }
            match kind {
                FRESH => self.is_fresh().await?,
                _ => self.mark().await?,
            }
        }
        let members = self.file.all().iter().map(|node| {
            let address = Address(node.addresses.peers.clone());
            (Member::first(node.slot).id(), address)
        });
        let members: std::collections::BTreeMap<_, _> = members.collect();
        self.raft.initialize(members).await?;
        tracing::info!("the cluster begins");
        Ok(())
    }
}

/// The file in the data directory that says that it belongs to a cluster that has begun.
pub(super) const BEGUN: &str = "begun";

/// Leaves both marks.
pub(super) fn mark(marker: &Path, folder: &Path, member: Member) -> std::io::Result<()> {
    for path in [&folder.join(BEGUN), marker] {
        let mut file = std::fs::File::create(path)?;
        std::io::Write::write_all(&mut file, member.generation.to_string().as_bytes())?;
        file.sync_all()?;
        sync_folder(match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        })?;
    }
    Ok(())
}

/// The generation in a mark, if there is one. One that says nothing is taken for the highest.
pub(super) fn marked(marker: &Path) -> std::io::Result<Option<u64>> {
    match std::fs::read_to_string(marker) {
        Ok(text) => Ok(Some(text.trim().parse().unwrap_or(u64::MAX))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// How often the time is looked at when nothing happens.
const PULSE: Duration = Duration::from_millis(25);
const SHORT: Duration = Duration::from_millis(2);
/// How long the best of the others may take to lead.
const HEIR_TIME: Duration = Duration::from_millis(150);
/// How many entries a node may be behind when it begins to vote.
const CAUGHT_UP: u64 = 100;
/// How long clients have to hear of the new leader before their connections are closed.
const PARTING_TIME: Duration = Duration::from_millis(100);
const HAND_OVER_TIME: Duration = Duration::from_secs(2);
const ASK_TIME: Duration = Duration::from_secs(3);
